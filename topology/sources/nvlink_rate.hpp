// What one NVLink of a GPU model carries, from NVIDIA's data sheets.
#pragma once

#include <array>
#include <optional>
#include <string_view>

namespace atoll_v1::atoll::topology_sources {

struct NvlinkRate {
  int generation;
  double gbyte_s;  // payload of one link in one direction
};

// Empty for a model that is not listed.
constexpr std::optional<NvlinkRate> nvlink_rate(std::string_view model) {
  struct Entry {
    std::string_view word;
    NvlinkRate rate;
  };
  // The first word that occurs in the model's name decides ("H20" stands for H200 and H20 too).
  constexpr std::array entries{
      Entry{"B100", {5, 50}},       Entry{"B200", {5, 50}},     Entry{"B300", {5, 50}},
      Entry{"H100", {4, 25}},       Entry{"H800", {4, 25}},     Entry{"H20", {4, 25}},
      Entry{"A100", {3, 25}},       Entry{"A800", {3, 25}},     Entry{"A30", {3, 25}},
      Entry{"A6000", {3, 14.0625}}, Entry{"A40", {3, 14.0625}}, Entry{"3090", {3, 14.0625}},
      Entry{"V100", {2, 25}},       Entry{"RTX 6000", {2, 25}}, Entry{"RTX 8000", {2, 25}},
      Entry{"P100", {1, 20}},
  };
  for (const Entry& entry : entries)
    if (model.find(entry.word) != std::string_view::npos) return entry.rate;
  return std::nullopt;
}

}  // namespace atoll_v1::atoll::topology_sources
