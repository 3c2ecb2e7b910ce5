// Random contents for matrices of products that are timed.
#pragma once

#include "atoll/device.hpp"
#include "atoll/view.hpp"

namespace train {

// Fills `view` (f32 or bf16) with a block of normal values that repeats, because zeros need less
// power, so that products of zeros run faster than those of a training. Blocks until the stream is
// idle.
void fill_normal(atoll::Stream& stream, atoll::View view);

}  // namespace train
