// Lists the values that must be equal on all ranks of an engine, for agree().
#pragma once

#include <vector>

#include "fsdp/unit.hpp"
#include "world/agreement.hpp"

namespace atoll_v1::atoll::fsdp {

std::vector<Declaration> declarations_of(const Mesh& mesh, const Options& options);
std::vector<Declaration> declarations_of(const std::vector<std::unique_ptr<Unit>>& units,
                                         const std::vector<std::string>& order);
std::vector<Declaration> declarations_of(const OptimizerOptions& options);

}  // namespace atoll_v1::atoll::fsdp
