// A mesh in words.
#pragma once

#include <string>

#include "atoll/inspect/inspection.hpp"

namespace atoll_v1::atoll {

// The shape, why, its shard groups and its findings.
std::string to_text(const MeshPlan& plan, Colour colour);

}  // namespace atoll_v1::atoll
