// Lets ranks compare values that must be equal on all of them, before they use these values.
#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "world/rank_set.hpp"

namespace atoll_v1::atoll {

// A value that must be equal on all ranks, with its name.
struct Declaration {
  std::string subject;  // name of the value, such as "the shape of parameter w of unit head"
  std::string value;    // the value as text, such as "4 x 8"
  friend bool operator==(const Declaration&, const Declaration&) = default;
};

// Calls `declare` on every rank of the group and compares the results. A World converts to the
// group of all its ranks. Collective over the group; blocks.
//
// If `declare` throws on some ranks, every rank throws the error of the lowest of them; the text on
// the other ranks names that rank. If the lists differ, every rank throws Error(mismatch) that
// names `call`, the first subject with different values, and two ranks with their values. Lists
// with the same values so far must continue with the same subject. Therefore a list has counts and
// names before the values that depend on them. If a rank does not call agree() before the timeout
// (by default Config::timeout), or has left the job, the error on the other ranks names `call` and
// that rank.
//
// Each rank sends a short digest of its list. Only if the digests differ, two ranks send digests of
// parts of their lists until the first difference is found, and then its entry. Lists and texts may
// have any size; a text above 64 KiB is cut in the error.
void agree(const RankSet& group, std::string_view call,
           const std::function<std::vector<Declaration>()>& declare,
           std::optional<std::chrono::milliseconds> timeout = {});

}  // namespace atoll_v1::atoll
