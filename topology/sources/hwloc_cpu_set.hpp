// A set of hardware threads or NUMA nodes, in the text form of hwloc's bitmaps.
#pragma once

#include <bitset>
#include <optional>
#include <string_view>

namespace atoll_v1::atoll::topology_sources {

class CpuSet {
 public:
  static constexpr unsigned most = 16'384;  // upper bound of the numbers in a set

  // Parses "0x00000003,,0xffffffff": words of 32 bits, the highest first; an empty word is 0. A
  // leading "0xf...f" adds all numbers above the words. Returns nothing when the text has another
  // form.
  static std::optional<CpuSet> parse(std::string_view text);

  // Adds a number to the set. Ignores numbers of at least `most`.
  void add(unsigned number) {
    if (number < most) bits_.set(number);
  }
  bool contains(unsigned number) const { return number < most && bits_[number]; }
  bool empty() const { return bits_.none(); }
  int count() const { return static_cast<int>(bits_.count()); }
  bool intersects(const CpuSet& other) const { return (bits_ & other.bits_).any(); }
  CpuSet& operator|=(const CpuSet& other) {
    bits_ |= other.bits_;
    return *this;
  }
  CpuSet& operator&=(const CpuSet& other) {
    bits_ &= other.bits_;
    return *this;
  }
  bool operator==(const CpuSet& other) const = default;

 private:
  std::bitset<most> bits_;
};

}  // namespace atoll_v1::atoll::topology_sources
