// Packs samples into rows of a bounded length.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

namespace train {

using Row = std::vector<std::uint32_t>;  // samples, in row order

// Packs by best fit, longest sample first. Ties, and samples within a row, keep the given order.
// Precondition: no length exceeds `capacity`.
std::vector<Row> pack_rows(std::span<const std::uint32_t> samples,
                           const std::function<std::int64_t(std::uint32_t)>& length,
                           std::int64_t capacity);

}  // namespace train
