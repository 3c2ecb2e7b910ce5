#include "collectives/group.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <new>

namespace atoll_collectives {
namespace {

constexpr std::align_val_t scratch_alignment{cache_line};
// Sizes of the last-level cache and of one core's L2 cache that are assumed if sysfs does not list
// the caches.
constexpr std::size_t usual_last_level_bytes = std::size_t{32} << 20;
constexpr std::size_t usual_l2_bytes = std::size_t{1} << 20;

// Returns the size of the first processor's cache of this level; level 0 selects its largest cache.
// Returns `otherwise` if sysfs does not list the cache. Sysfs writes sizes as "32768K".
std::size_t read_cache_bytes(int level, std::size_t otherwise) {
  std::size_t largest = 0;
  for (int index = 0; index < 8; ++index) {
    const auto folder = fmt::format("/sys/devices/system/cpu/cpu0/cache/index{}/", index);
    std::ifstream level_file(folder + "level");
    int found = 0;
    if (!(level_file >> found) || (level != 0 && level != found)) continue;
    std::ifstream file(folder + "size");
    std::size_t number = 0;
    char unit = ' ';
    if (file >> number >> unit && (unit == 'K' || unit == 'M')) {
      largest = std::max(largest, number << (unit == 'K' ? 10 : 20));
    }
  }
  return largest > 0 ? largest : otherwise;
}

// Returns true if stores to the last-level cache are slow, so that non-temporal stores are faster
// as soon as the data exceeds the L2 caches. On Intel's Sapphire Rapids non-temporal stores are
// then 1.4 to 1.9 times faster; on AMD's EPYC they are faster only if the data exceeds the
// last-level cache.
bool has_slow_last_level() {
#if defined(__x86_64__) || defined(__i386__)
  return __builtin_cpu_is("intel") != 0;
#else
  return false;
#endif
}

}  // namespace

Stores Group::stores_for(std::size_t bytes) const {
  static const std::size_t last = read_cache_bytes(0, usual_last_level_bytes);
  static const std::size_t own = read_cache_bytes(2, usual_l2_bytes);
  static const bool slow = has_slow_last_level();
  const auto caches = static_cast<std::size_t>(std::min(sync.size(), team.processors));
  return bytes > (slow ? own * caches : last) ? Stores::streaming : Stores::cached;
}

Group::Scratch::~Scratch() { drop(); }

void Group::Scratch::drop() {
  if (memory_ == nullptr) return;
  for (auto* transport : team_.transports) transport->remove_memory(memory_.get());
  memory_.reset();
  bytes_ = 0;
}

std::span<std::byte> Group::Scratch::get(std::size_t bytes) {
  if (bytes > bytes_) {
    drop();
    memory_.reset(static_cast<std::byte*>(::operator new(bytes, scratch_alignment)));
    bytes_ = bytes;
    for (auto* transport : team_.transports) transport->add_memory({memory_.get(), bytes});
  }
  return {memory_.get(), bytes};
}

void Group::Scratch::Free::operator()(std::byte* memory) const noexcept {
  ::operator delete(memory, scratch_alignment);
}

std::size_t piece_of_work(std::size_t bytes) noexcept {
  constexpr std::size_t jobs_wanted = 16;
  constexpr std::size_t smallest = 32 * 1024;
  constexpr std::size_t largest = 1024 * 1024;
  return std::clamp(bytes / jobs_wanted / cache_line * cache_line, smallest, largest);
}

}  // namespace atoll_collectives
