// Published properties of GPU models, from NVIDIA's and AMD's data sheets and the pci-ids database.
#pragma once

#include <string_view>

namespace atoll_v1::atoll {

struct Topology;
struct TopologyGpu;

// States whether a GPU model can have links to other GPUs.
enum class LinkKind {
  never,     // the card has no connector, which proves that there are no links
  possible,  // a board or bridges may provide links
};

struct GpuModel {
  std::string_view word;  // text that occurs in the driver's name of the model
  LinkKind kind = LinkKind::possible;
  int generation = 0;        // NVLink generation; 0 for a GPU without NVLink
  int links = 0;             // number of links of one GPU
  double link_gbyte_s = 0;   // payload bandwidth of one link in one direction, in GB/s
  double bf16 = 0, f32 = 0;  // PeakRates in TFLOP/s; 0 if they are not listed
};

// Finds a model by name ("NVIDIA H100 80GB HBM3"). Null for a model that is not listed.
const GpuModel* find_gpu_model(std::string_view model) noexcept;
// Finds a model by name, otherwise by PCI device id, otherwise by compute capability, which
// determines only the generation and the rate of NVLink.
const GpuModel* find_gpu_model(const TopologyGpu& gpu) noexcept;
// True if the model is listed as a card without NVLink or xGMI connector, so that it cannot have
// links.
bool has_no_connector(const TopologyGpu& gpu) noexcept;
// Names the model of a PCI device id: "NVIDIA H100 80GB HBM3" for "10de:2330"; "" for an unknown
// device.
std::string_view model_of_pci_device(std::string_view device) noexcept;

// Sets the missing rates of links, if the GPU model at one end of the link is known.
void fill_link_rates(Topology& topology);

}  // namespace atoll_v1::atoll
