// File work that succeeds or fails on all ranks together.
#pragma once

#include <fmt/core.h>

#include <cstdlib>
#include <string>

#include "core/rank_set.hpp"

namespace atoll_v1::atoll::fsdp {

// Runs `body` and exchanges whether it failed. Either all ranks of the group return, or all throw
// the error of the lowest rank that failed. Collective over the group.
template <class Body>
void together(const RankSet& group, const Body& body) {
  std::string problem;
  ErrorCode code = ErrorCode::io;
  try {
    body();
  } catch (const Error& error) {
    problem = error.what();
    code = error.code();
  } catch (const std::exception& error) {
    problem = error.what();
  }
  const std::string mine =
      problem.empty() ? "" : fmt::format("{} {}", static_cast<int>(code), problem);
  for (const std::string& theirs : group.exchange(group.key("checkpoint"), mine)) {
    if (theirs.empty()) continue;
    const std::size_t space = theirs.find(' ');
    throw Error(static_cast<ErrorCode>(std::atoi(theirs.c_str())), theirs.substr(space + 1));
  }
}

}  // namespace atoll_v1::atoll::fsdp
