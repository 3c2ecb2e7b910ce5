#include "model/normal_values.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

#include "model/ops.hpp"

namespace train {

void fill_normal(atoll::Stream& stream, atoll::View view) {
  std::vector<std::byte> block(
      static_cast<std::size_t>(std::min(view.bytes(), std::uint64_t{1} << 18)));
  const atoll::View values(block.data(), block.size() / size_of(view.dtype), view.dtype);
  std::mt19937 random{1};
  std::normal_distribution<float> normal;
  for (std::uint64_t i = 0; i < values.count; ++i) {
    const float value = normal(random);
    if (is_bf16(view.dtype)) {
      values.as<atoll::bfloat16>()[i] = atoll::to_bfloat16(value);
    } else {
      values.as<float>()[i] = value;
    }
  }
  auto* const first = static_cast<std::byte*>(view.data);
  stream.copy(first, block.data(), block.size());
  const auto bytes = static_cast<std::size_t>(view.bytes());
  for (std::size_t done = block.size(); done < bytes;) {
    const std::size_t more = std::min(done, bytes - done);
    stream.copy(first + done, first, more);
    done += more;
  }
  stream.synchronize();
}

}  // namespace train
