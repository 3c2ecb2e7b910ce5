#include "data/packing.hpp"

#include <algorithm>
#include <cstddef>
#include <map>
#include <numeric>

namespace train {

std::vector<Row> pack_rows(std::span<const std::uint32_t> samples,
                           const std::function<std::int64_t(std::uint32_t)>& length,
                           std::int64_t capacity) {
  std::vector<std::size_t> order(samples.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(
      order, [&](std::size_t a, std::size_t b) { return length(samples[a]) > length(samples[b]); });
  std::vector<std::vector<std::size_t>> rows;      // indices into `samples`
  std::multimap<std::int64_t, std::size_t> rooms;  // free tokens of a row -> row
  for (const std::size_t place : order) {
    const std::int64_t tokens = length(samples[place]);
    std::int64_t room = capacity;
    std::size_t row = rows.size();
    if (const auto found = rooms.lower_bound(tokens); found != rooms.end()) {
      room = found->first;
      row = found->second;
      rooms.erase(found);
    } else {
      rows.emplace_back();
    }
    rows[row].push_back(place);
    rooms.emplace(room - tokens, row);
  }
  std::vector<Row> packed(rows.size());
  for (std::size_t r = 0; r < rows.size(); ++r) {
    std::ranges::sort(rows[r]);
    for (const std::size_t place : rows[r]) packed[r].push_back(samples[place]);
  }
  return packed;
}

}  // namespace train
