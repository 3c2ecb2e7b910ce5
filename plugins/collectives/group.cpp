#include "collectives/group.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <fstream>
#include <map>
#include <new>

#include "sdk/describe.hpp"
#include "sdk/guard.hpp"

namespace atoll_sdk {
namespace {

constexpr std::align_val_t scratch_alignment{cache_line};
// Where the kernel does not tell: of the last-level cache, and of a core's own.
constexpr std::size_t usual_cache_bytes = std::size_t{32} << 20;
constexpr std::size_t usual_own_bytes = std::size_t{1} << 20;

// "32768K": what the kernel says about a cache of the first processor, of this level or, for 0, the
// largest.
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

// Whether stores to the last-level cache are slow, so that those past it win as soon as data leaves
// the cores' own caches: measured on Sapphire Rapids (1.4 to 1.9 times); on EPYC only beyond the
// last level.
bool has_slow_last_level() {
#if defined(__x86_64__) || defined(__i386__)
  return __builtin_cpu_is("intel") != 0;
#else
  return false;
#endif
}

}  // namespace

Layout::Layout(const atoll_group& group) {
  std::map<int, int> number;  // of the host, by what the group calls it
  for (int rank = 0; rank < group.nranks; ++rank) {
    const auto [entry, added] =
        number.emplace(group.placements[rank]->host, static_cast<int>(ranks_.size()));
    if (added) ranks_.emplace_back();
    auto& ranks = ranks_[static_cast<std::size_t>(entry->second)];
    host_.push_back(entry->second);
    local_.push_back(static_cast<int>(ranks.size()));
    ranks.push_back(rank);
  }
  for (const auto& ranks : ranks_) {
    const bool in_a_row = ranks.back() - ranks.front() + 1 == static_cast<int>(ranks.size());
    if (!in_a_row || ranks.size() != ranks_.front().size() || !std::has_single_bit(ranks.size())) {
      tree_of_hosts_ = false;
    }
  }
  if (hosts() == 1) tree_of_hosts_ = true;
}

int Layout::twin(int rank, int host) const noexcept {
  const auto& there = ranks_of(host);
  return there[static_cast<std::size_t>(local_of(rank)) % there.size()];
}

int Layout::fewest_ranks() const noexcept {
  std::size_t fewest = ranks_.front().size();
  for (const auto& ranks : ranks_) fewest = std::min(fewest, ranks.size());
  return static_cast<int>(fewest);
}

void Group::reduce(const atoll_reduction& reduction) const {
  if (reduction.count == 0) return;
  const auto status = host.reduce_into(host.ctx, &reduction);
  if (status != ATOLL_OK) {
    throw Error(status, fmt::format("core's reduction of {} {} elements failed", reduction.count,
                                    dtype_name(reduction.dtype)));
  }
}

std::span<std::byte> Group::scratch(std::size_t bytes) {
  if (bytes > scratch_bytes_) {
    scratch_.reset();
    scratch_bytes_ = 0;
    scratch_.reset(static_cast<std::byte*>(::operator new(bytes, scratch_alignment)));
    scratch_bytes_ = bytes;
  }
  return {scratch_.get(), bytes};
}

void Group::Free::operator()(std::byte* memory) const noexcept {
  ::operator delete(memory, scratch_alignment);
}

std::size_t piece_of_work(std::size_t bytes) noexcept {
  constexpr std::size_t jobs_wanted = 16;
  constexpr std::size_t smallest = 32 * 1024;
  constexpr std::size_t largest = 1024 * 1024;
  return std::clamp(bytes / jobs_wanted / cache_line * cache_line, smallest, largest);
}

int streaming(std::size_t bytes, int ranks) {
  static const std::size_t last = read_cache_bytes(0, usual_cache_bytes);
  static const std::size_t own = read_cache_bytes(2, usual_own_bytes);
  static const bool slow = has_slow_last_level();
  static const int cores = std::max(1, static_cast<int>(::sysconf(_SC_NPROCESSORS_ONLN)));
  const std::size_t fits = slow ? own * static_cast<std::size_t>(std::min(ranks, cores)) : last;
  return bytes > fits ? 1 : 0;
}

}  // namespace atoll_sdk
