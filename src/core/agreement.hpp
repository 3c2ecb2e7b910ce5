// Lets ranks compare what they must share, before they act on it.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "core/rank_group.hpp"

namespace atoll_v1::atoll {

// One fact that all ranks must share.
struct Declaration {
  std::string subject;  // what the fact is about, such as "the shape of parameter w of unit head"
  std::string value;    // such as "4 x 8"
  friend bool operator==(const Declaration&, const Declaration&) = default;
};

// Calls `declare` on every rank of the group and compares the results. Collective over the group,
// for which a World stands for all its ranks; blocks.
//
// If `declare` throws on a rank, every rank throws the error of the lowest such rank, and the other
// ranks name it. If the lists differ, every rank throws Error(mismatch) that names `call`, the
// first subject with different values, and two ranks with their values. All ranks must declare the
// same subjects in the same order as long as the values are the same, so counts and names come
// before the facts that depend on them. If a rank does not call agree() before the timeout, or has
// left the job, the error on the other ranks names `call` and that rank.
//
// Each rank sends 8 bytes; only after a difference do two ranks send their lists.
void agree(const RankGroup& group, std::string_view call,
           const std::function<std::vector<Declaration>()>& declare);

}  // namespace atoll_v1::atoll
