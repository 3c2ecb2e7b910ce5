#include "sources/hwloc_cpu_set.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>

#include "parse_number.hpp"

namespace atoll_v1::atoll::topology_sources {
namespace {

constexpr unsigned word_bits = 64;
constexpr std::size_t most_words = CpuSet::most / word_bits;
constexpr std::string_view infinite = "0xf...f";

// Parses one word of 32 bits, with or without "0x".
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
  std::vector<std::uint32_t> halves;  // the set as words of 32 bits, the highest word first
  while (!text.empty()) {
    const auto comma = text.find(',');
    const auto word = parse_word(text.substr(0, comma));
    if (!word || halves.size() == 2 * most_words) return std::nullopt;
    halves.push_back(*word);
    if (comma == std::string_view::npos) break;
    text.remove_prefix(comma + 1);
    if (text.empty())
      halves.push_back(0);  // the text ends with a comma, which stands for a last word of 0
  }
  if (halves.size() > 2 * most_words) return std::nullopt;
  if (is_infinite) halves.insert(halves.begin(), 2 * most_words - halves.size(), ~std::uint32_t{0});
  CpuSet set;
  set.words_.resize((halves.size() + 1) / 2);
  for (std::size_t i = 0; i < halves.size(); ++i)
    set.words_[i / 2] |= std::uint64_t{halves[halves.size() - 1 - i]} << (i % 2 == 0 ? 0 : 32);
  set.trim();
  return set;
}

std::string CpuSet::to_text() const {
  std::string text;
  for (std::size_t i = 2 * words_.size(); i-- > 0;) {
    const auto half = static_cast<std::uint32_t>(words_[i / 2] >> (i % 2 == 0 ? 0 : 32));
    if (text.empty() && half == 0 && i > 0) continue;
    if (!text.empty()) text += ',';
    if (half != 0)
      text += fmt::format("0x{:08x}", half);
    else if (i == 0)
      text += "0x0";
  }
  return text.empty() ? "0x0" : text;
}

void CpuSet::add(unsigned number) {
  if (number >= most) return;
  if (words_.size() <= number / word_bits) words_.resize(number / word_bits + 1);
  words_[number / word_bits] |= std::uint64_t{1} << (number % word_bits);
}

bool CpuSet::contains(unsigned number) const {
  const std::size_t word = number / word_bits;
  return word < words_.size() && ((words_[word] >> (number % word_bits)) & 1) != 0;
}

int CpuSet::count() const {
  int bits = 0;
  for (const std::uint64_t word : words_) bits += std::popcount(word);
  return bits;
}

bool CpuSet::intersects(const CpuSet& other) const {
  const std::size_t common = std::min(words_.size(), other.words_.size());
  for (std::size_t i = 0; i < common; ++i)
    if ((words_[i] & other.words_[i]) != 0) return true;
  return false;
}

CpuSet& CpuSet::operator|=(const CpuSet& other) {
  if (words_.size() < other.words_.size()) words_.resize(other.words_.size());
  for (std::size_t i = 0; i < other.words_.size(); ++i) words_[i] |= other.words_[i];
  return *this;
}

CpuSet& CpuSet::operator&=(const CpuSet& other) {
  words_.resize(std::min(words_.size(), other.words_.size()));
  for (std::size_t i = 0; i < words_.size(); ++i) words_[i] &= other.words_[i];
  trim();
  return *this;
}

void CpuSet::trim() {
  while (!words_.empty() && words_.back() == 0) words_.pop_back();
}

}  // namespace atoll_v1::atoll::topology_sources
