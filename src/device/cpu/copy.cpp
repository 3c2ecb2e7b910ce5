// Copies memory past the caches. Highway compiles this file once per instruction set, as it does
// reduce.cpp.
#include <cstdint>
#include <cstring>

#include "device/cpu/reduce.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "device/cpu/copy.cpp"
#include <hwy/cache_control.h>
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace atoll_v1::atoll::cpu {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// Copies whole cache lines with non-temporal stores, four vectors at a time, and the ends with
// memcpy. FlushStream() makes the stores visible before any later store.
void copy_lines(std::uint8_t* out, const std::uint8_t* in, std::size_t bytes) {
  constexpr std::size_t line = 64;
  const hn::ScalableTag<std::uint8_t> tag;
  const std::size_t lanes = hn::Lanes(tag);
  const std::size_t head = (line - reinterpret_cast<std::uintptr_t>(out) % line) % line;
  if (bytes < head + 4 * lanes) {
    std::memcpy(out, in, bytes);
    return;
  }
  std::memcpy(out, in, head);
  std::size_t at = head;
  for (; at + 4 * lanes <= bytes; at += 4 * lanes) {
    const auto a = hn::LoadU(tag, in + at);
    const auto b = hn::LoadU(tag, in + at + lanes);
    const auto c = hn::LoadU(tag, in + at + 2 * lanes);
    const auto d = hn::LoadU(tag, in + at + 3 * lanes);
    hn::Stream(a, tag, out + at);
    hn::Stream(b, tag, out + at + lanes);
    hn::Stream(c, tag, out + at + 2 * lanes);
    hn::Stream(d, tag, out + at + 3 * lanes);
  }
  std::memcpy(out + at, in + at, bytes - at);
  hwy::FlushStream();
}

}  // namespace HWY_NAMESPACE
}  // namespace atoll_v1::atoll::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace atoll_v1::atoll::cpu {

HWY_EXPORT(copy_lines);

void copy_streaming(void* dst, const void* src, std::size_t bytes) {
  HWY_DYNAMIC_DISPATCH(copy_lines)
  (static_cast<std::uint8_t*>(dst), static_cast<const std::uint8_t*>(src), bytes);
}

}  // namespace atoll_v1::atoll::cpu
#endif  // HWY_ONCE
