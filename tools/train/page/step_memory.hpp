// The memory that holds data over one step, calculated from the spans of a trace and the memory
// plan.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

namespace train::page {

// Draws the memory of the lowest traced rank over the step that draw_timeline() shows. atoll
// allocates everything before the first step; the picture shows when each part of it is needed:
//  - parameters that were gathered, from the begin of the gather to the end of their last use;
//  - whole gradients, from the begin of a unit's backward to the end of its reduction;
//  - activations, from the end of a unit's forward to the end of its backward, where each unit
//    counts for an equal part of the plan's activations;
//  - and the rest of the plan, which is needed all the time.
// `plan` has the bytes of the parts, with the names of fsdp::MemoryPlan's members. Returns "" if
// the trace has no whole step or the plan no bytes.
std::string draw_step_memory(const nlohmann::json& trace, const nlohmann::json& plan);

}  // namespace train::page
