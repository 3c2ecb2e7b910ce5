// A set of hardware threads (or of NUMA nodes), in the text form of hwloc's bitmaps.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace atoll_v1::atoll::topology_sources {

class CpuSet {
 public:
  static constexpr unsigned most = 16'384;  // numbers are below it

  // "0x00000003,,0xffffffff": 32 bits a word, the highest first, an empty word is 0; a leading
  // "0xf...f" stands for all numbers above the words. Empty when it is no such text.
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
  std::vector<std::uint64_t> words_;  // the lowest first; the last one is not 0
};

}  // namespace atoll_v1::atoll::topology_sources
