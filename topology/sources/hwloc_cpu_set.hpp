// A set of hardware threads or NUMA nodes, in the text form of hwloc's bitmaps.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace atoll_v1::atoll::topology_sources {

class CpuSet {
 public:
  static constexpr unsigned most = 16'384;  // upper bound of the numbers in a set

  // Parses "0x00000003,,0xffffffff": words of 32 bits, the highest first; an empty word is 0. A
  // leading "0xf...f" adds all numbers above the words. Returns nothing when the text has another
  // form.
  static std::optional<CpuSet> parse(std::string_view text);
  std::string to_text() const;

  void add(unsigned number);
  bool contains(unsigned number) const;
  bool empty() const { return words_.empty(); }
  int count() const;
  bool intersects(const CpuSet& other) const;
  CpuSet& operator|=(const CpuSet& other);
  CpuSet& operator&=(const CpuSet& other);
  bool operator==(const CpuSet& other) const = default;

 private:
  void trim();
  std::vector<std::uint64_t> words_;  // words of 64 bits, the lowest first; the last one is not 0
};

}  // namespace atoll_v1::atoll::topology_sources
