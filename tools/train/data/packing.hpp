// Samples put together into rows of a bounded length.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

namespace train {

using Row = std::vector<std::uint32_t>;  // samples, in the order of their places

// Best fit, longest first; equal lengths, and the samples of a row, in the order given.
// Precondition: no length is over `capacity`.
std::vector<Row> pack_rows(std::span<const std::uint32_t> samples,
                           const std::function<std::int64_t(std::uint32_t)>& length,
                           std::int64_t capacity);

}  // namespace train
