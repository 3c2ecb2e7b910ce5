#include "collectives/communicator/processors.hpp"

#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <charconv>
#include <cstddef>
#include <numeric>
#include <string_view>

namespace atoll_collectives {
namespace {

// Returns the bits of one hexadecimal digit, which stands for four processors; 0 for any other
// character.
unsigned processors_of(char digit) {
  unsigned bits = 0;
  std::from_chars(&digit, &digit + 1, bits, 16);
  return bits;
}

}  // namespace

std::string own_processors() {
  constexpr std::string_view digits = "0123456789abcdef";
  std::array<unsigned char, 8192> mask{};  // the kernel has at most 65,536 processors
  const long bytes = ::syscall(SYS_sched_getaffinity, 0, mask.size(), mask.data());
  std::string text;
  for (long i = 0; i < bytes; ++i) {
    const unsigned byte = mask[static_cast<std::size_t>(i)];
    text += {digits[byte & 15U], digits[byte >> 4U]};
  }
  text.erase(text.find_last_not_of('0') + 1);
  return text;
}

int count_processors(std::span<const std::string> masks) {
  std::string any;  // union of the masks; each char is a value of 0 to 15 for four processors
  for (const auto& mask : masks) {
    any.resize(std::max(any.size(), mask.size()));
    for (std::size_t i = 0; i < mask.size(); ++i) {
      any[i] = static_cast<char>(static_cast<unsigned>(any[i]) | processors_of(mask[i]));
    }
  }
  return std::accumulate(any.begin(), any.end(), 0, [](int count, char digit) {
    return count + std::popcount(static_cast<unsigned>(digit));
  });
}

Waiting waiting_of(std::span<const std::string> masks, int host_ranks, int online) {
  const auto here = static_cast<int>(masks.size());
  int all = count_processors(masks), sum = 0;
  for (std::size_t rank = 0; rank < masks.size(); ++rank) {
    sum += count_processors(masks.subspan(rank, 1));
  }
  if (all == 0) all = online;  // no mask could be read
  const int ranks = std::max(here, host_ranks);
  // One mask alone does not show whether the other ranks have processors of their own. Assume so if
  // the host has enough for all.
  const bool bound_apart = here == 1 ? all * ranks <= online : sum == all;
  return (bound_apart ? here : ranks) <= all ? Waiting::spin_then_sleep : Waiting::sleep;
}

}  // namespace atoll_collectives
