// What is published of GPU models: NVIDIA's and AMD's data sheets, and the PCI ids of pci-ids.
#pragma once

#include <optional>
#include <string_view>

namespace atoll_v1::atoll {

struct Topology;
struct TopologyGpu;

// How a model can be joined to its like.
enum class LinkKind {
  never,     // the card has no connector: proves that there are no links
  possible,  // boards, bridges: links may be there
};

struct GpuModel {
  std::string_view word;  // occurs in the name that the driver gives
  LinkKind kind = LinkKind::possible;
  int generation = 0;       // of NVLink; 0: none, or xGMI
  int links = 0;            // per GPU
  double link_gbyte_s = 0;  // payload of one link in one direction
};

// By name ("NVIDIA H100 80GB HBM3"); null for a model that is not listed.
const GpuModel* find_gpu_model(std::string_view model) noexcept;
// By name, else by PCI device id, else by `sm` (which gives generation and rate only).
const GpuModel* find_gpu_model(const TopologyGpu& gpu) noexcept;
// Whether the model is listed as a card without NVLink or xGMI, so that it cannot have links.
bool has_no_connector(const TopologyGpu& gpu) noexcept;
// "NVIDIA H100 SXM" for "10de:2330"; "" unknown.
std::string_view model_of_pci_device(std::string_view device) noexcept;

// Gives rates to links that have a count and no rate, where the model of an end is known.
void fill_link_rates(Topology& topology);

}  // namespace atoll_v1::atoll
