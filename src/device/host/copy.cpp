// Copies, also past the caches. Compiled once for each instruction set that Highway knows; the best
// one for the processor is chosen at the first call.
#include <cstdint>
#include <cstring>

#include "device/host/kernels.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "device/host/copy.cpp"
#include <hwy/cache_control.h>
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace atoll_v1::atoll::host {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// Whole lines go past the caches, four vectors at a time; the ends do not. FlushStream() orders the
// stores with later ones, before anybody is told of them.
void copy_streaming(std::uint8_t* out, const std::uint8_t* in, std::size_t bytes) {
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
}  // namespace atoll_v1::atoll::host
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace atoll_v1::atoll::host {

HWY_EXPORT(copy_streaming);

void copy(void* dst, const void* src, std::size_t bytes, Stores stores) {
  if (stores == Stores::cached) {
    std::memcpy(dst, src, bytes);
    return;
  }
  HWY_DYNAMIC_DISPATCH(copy_streaming)
  (static_cast<std::uint8_t*>(dst), static_cast<const std::uint8_t*>(src), bytes);
}

}  // namespace atoll_v1::atoll::host
#endif  // HWY_ONCE
