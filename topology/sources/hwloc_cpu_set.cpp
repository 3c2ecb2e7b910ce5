#include "sources/hwloc_cpu_set.hpp"

#include <algorithm>
#include <cstdint>

#include "parse_number.hpp"

namespace atoll_v1::atoll::topology_sources {
namespace {

constexpr unsigned word_bits = 32;
constexpr std::string_view infinite = "0xf...f";

// Parses a hexadecimal number of up to 32 bits, with or without "0x". An empty text means 0.
std::optional<std::uint32_t> parse_word(std::string_view text) {
  if (text.empty()) return 0;
  if (text.starts_with("0x") || text.starts_with("0X")) text.remove_prefix(2);
  return parse_number<std::uint32_t>(text, 16);
}

}  // namespace

std::optional<CpuSet> CpuSet::parse(std::string_view text) {
  const bool is_infinite = text.starts_with(infinite);
  if (is_infinite) {
    text.remove_prefix(infinite.size());
    if (!text.empty() && !text.starts_with(',')) return std::nullopt;
    if (!text.empty()) text.remove_prefix(1);
  }
  if (std::ranges::count(text, ',') >= most / word_bits) return std::nullopt;
  CpuSet set;
  unsigned first = 0;  // lowest number in the last word of `text`
  for (bool is_left = !text.empty(); is_left; first += word_bits) {
    const std::size_t comma = text.rfind(',');
    is_left = comma != std::string_view::npos;
    const auto word = parse_word(is_left ? text.substr(comma + 1) : text);
    if (!word) return std::nullopt;
    for (unsigned bit = 0; bit < word_bits; ++bit)
      if ((*word >> bit & 1) != 0) set.bits_.set(first + bit);
    if (is_left) text = text.substr(0, comma);
  }
  if (is_infinite) set.bits_ |= std::bitset<most>().set() << first;
  return set;
}

}  // namespace atoll_v1::atoll::topology_sources
