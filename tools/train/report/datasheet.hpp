// Published peak rates of GPUs.
#pragma once

#include <string_view>

namespace train {

// Returns the peak of dense matrix products in FLOP/s of a GPU with this name, as CUDA reports it:
// bf16 with f32 sums on tensor cores for "bf16", and f32 without tensor cores for "f32". 0 for an
// unknown GPU, for a part of one (MIG) and for another type.
double datasheet_peak(std::string_view gpu, std::string_view dtype) noexcept;

}  // namespace train
