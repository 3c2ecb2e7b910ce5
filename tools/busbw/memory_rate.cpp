#include "memory_rate.hpp"

#include <hwy/cache_control.h>
#include <hwy/highway.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <functional>
#include <memory>
#include <vector>

namespace busbw {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::uint64_t least_footprint = 16 << 10;
constexpr std::uint64_t most_footprint = 1 << 30;
constexpr std::size_t alignment = 4096;
constexpr int trials = 3;
// Long enough for a rank that starts late to matter little, short enough for a tool.
constexpr auto trial_time = std::chrono::milliseconds(15);

struct Unaligned {
  void operator()(std::byte* memory) const {
    ::operator delete(memory, std::align_val_t(alignment));
  }
};
using Memory = std::unique_ptr<std::byte, Unaligned>;

Memory touched(std::size_t bytes, int value) {
  Memory memory(static_cast<std::byte*>(::operator new(bytes, std::align_val_t(alignment))));
  std::memset(memory.get(), value, bytes);
  return memory;
}

// Past the caches. `bytes` is a multiple of the vector.
void stream_copy(std::byte* to, const std::byte* from, std::size_t bytes) {
  namespace hn = hwy::HWY_NAMESPACE;
  const hn::ScalableTag<std::uint8_t> lanes;
  auto* dst = reinterpret_cast<std::uint8_t*>(to);
  const auto* src = reinterpret_cast<const std::uint8_t*>(from);
  for (std::size_t i = 0; i < bytes; i += hn::Lanes(lanes))
    hn::Stream(hn::Load(lanes, src + i), lanes, dst + i);
  hwy::FlushStream();
}

// In pieces that are too small for the C library to go past the caches by itself.
void cached_copy(std::byte* to, const std::byte* from, std::size_t bytes) {
  constexpr std::size_t piece = 64 << 10;
  for (std::size_t i = 0; i < bytes; i += piece)
    std::memcpy(to + i, from + i, std::min(piece, bytes - i));
}

using Copy = void (*)(std::byte*, const std::byte*, std::size_t);

// Bytes read and written per second.
double rate_of(Copy copy, std::byte* to, const std::byte* from, std::size_t bytes) {
  const auto begin = Clock::now();
  std::uint64_t moved = 0;
  auto now = begin;
  do {
    copy(to, from, bytes);
    moved += 2 * bytes;
    now = Clock::now();
  } while (now - begin < trial_time);
  return static_cast<double>(moved) / std::chrono::duration<double>(now - begin).count();
}

}  // namespace

double MemoryRate::gbyte_s(std::uint64_t footprint) {
  std::uint64_t rounded = least_footprint;
  while (rounded < footprint && rounded < most_footprint) rounded *= 4;
  if (const auto found = known_.find(rounded); found != known_.end()) return found->second;
  return known_[rounded] = measure(rounded);
}

double MemoryRate::measure(std::uint64_t bytes) {
  const std::size_t half = bytes / 2;
  const Memory from = touched(half, 1), to = touched(half, 2);
  std::vector<double> best;
  for (const Copy copy : {&stream_copy, &cached_copy}) {
    copy(to.get(), from.get(), half);
    double rate = 0;
    for (int trial = 0; trial < trials; ++trial) {
      job_.world().barrier();
      rate = std::max(rate, rate_of(copy, to.get(), from.get(), half));
    }
    best.push_back(rate);
  }
  const auto all = job_.exchange(best);
  double slowest = 0;
  for (const atoll::HostInfo& host : job_.world().hosts()) {
    double fastest = 0;
    for (std::size_t kernel = 0; kernel < best.size(); ++kernel) {
      double sum = 0;
      for (const int rank : host.ranks) sum += all[static_cast<std::size_t>(rank)][kernel];
      fastest = std::max(fastest, sum / static_cast<double>(host.ranks.size()));
    }
    slowest = slowest == 0 ? fastest : std::min(slowest, fastest);
  }
  return slowest / 1e9;
}

}  // namespace busbw
