// File work that succeeds or fails on all ranks together.
#pragma once

#include <fmt/core.h>

#include <cstdlib>
#include <optional>
#include <string>

#include "atoll/rank_set.hpp"
#include "core/errors.hpp"

namespace atoll_v1::atoll::fsdp {

// Runs `body` and exchanges whether it failed. Either all ranks of the group return, or all throw
// the error of the lowest rank that failed. A rank waits for the others for Config::file_timeout,
// because a slow disk of one rank is not a fault of a collective. `body` must not wait for other
// ranks. Collective over the group.
template <class Body>
void together(const RankSet& group, const Body& body) {
  // Longer texts are cut, so that one exchange can hold the errors of all ranks.
  constexpr std::size_t longest = 2000;
  std::optional<std::string> problem;
  ErrorCode code = ErrorCode::io;
  try {
    body();
  } catch (const Error& error) {
    problem = error.what();
    code = error.code();
  } catch (const std::exception& error) {
    problem = text_of(error);
  } catch (...) {
    problem = foreign_exception;
  }
  const std::string mine =
      problem ? fmt::format("{} {}", static_cast<int>(code), problem->substr(0, longest)) : "";
  const auto limit = group.world().config().file_timeout;
  for (const std::string& theirs : group.exchange(group.key("files of the ranks"), mine, limit)) {
    if (theirs.empty()) continue;
    const std::size_t space = theirs.find(' ');
    throw Error(static_cast<ErrorCode>(std::atoi(theirs.c_str())), theirs.substr(space + 1));
  }
}

}  // namespace atoll_v1::atoll::fsdp
