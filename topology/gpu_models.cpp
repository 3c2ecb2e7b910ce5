#include "gpu_models.hpp"

#include <algorithm>
#include <array>
#include <cctype>

#include "atoll/topology.hpp"
#include "facts.hpp"

namespace atoll_v1::atoll {
namespace {

using enum LinkKind;

// A model is the first entry with a text that occurs in the GPU's name, so special texts precede
// general ones. Cards without an NVLink or xGMI connector are listed because they are known to have
// no links. Nothing is known about the links of a model that is not listed. The last two numbers
// are peak_rates() in TFLOP/s, where they are needed.
constexpr std::array models{
    // Blackwell: 18 NVLinks of 50 GB/s.
    GpuModel{"GB300", possible, 5, 18, 50},
    GpuModel{"GB200", possible, 5, 18, 50, 2500, 80},
    GpuModel{"B300", possible, 5, 18, 50},
    GpuModel{"B200", possible, 5, 18, 50, 2250, 75},
    GpuModel{"B100", possible, 5, 18, 50},
    GpuModel{"RTX PRO", never},
    // Hopper: 18 NVLinks of 25 GB/s, but 8 on the H800, and 12 on H100 cards with bridges.
    GpuModel{"H100 PCIe", possible, 4, 12, 25, 756, 51},
    GpuModel{"H100 NVL", possible, 4, 12, 25, 835, 60},
    GpuModel{"H200 NVL", possible, 4, 18, 25, 835, 60},
    GpuModel{"GH200", possible, 4, 18, 25, 989, 67},
    GpuModel{"H100", possible, 4, 18, 25, 989, 67},
    GpuModel{"H200", possible, 4, 18, 25, 989, 67},
    GpuModel{"H800 PCIe", possible, 4, 8, 25, 756, 51},
    GpuModel{"H800", possible, 4, 8, 25, 989, 67},
    GpuModel{"H20", possible, 4, 18, 25},
    // Ada: no GPU has NVLink.
    GpuModel{"L40S", never, 0, 0, 0, 362, 91.6},
    GpuModel{"L40", never},
    GpuModel{"L20", never},
    GpuModel{"NVIDIA L4", never, 0, 0, 0, 121, 30.3},
    GpuModel{"NVIDIA L2", never},
    GpuModel{"Ada Generation", never},
    GpuModel{"RTX 40", never},
    // Ampere: 12 NVLinks of 25 GB/s, but 8 on the A800, and 4 on the A30 and on graphics cards.
    GpuModel{"A100", possible, 3, 12, 25, 312, 19.5},
    GpuModel{"A800", possible, 3, 8, 25, 312, 19.5},
    GpuModel{"A30", possible, 3, 4, 25, 165, 10.3},
    GpuModel{"A6000", possible, 3, 4, 14.0625},
    GpuModel{"A5500", possible, 3, 4, 14.0625},
    GpuModel{"A5000", possible, 3, 4, 14.0625},
    GpuModel{"A4500", possible, 3, 4, 14.0625},
    GpuModel{"A4000", never},
    GpuModel{"A2000", never},
    GpuModel{"A40", possible, 3, 4, 14.0625, 149.7, 37.4},
    GpuModel{"NVIDIA A10", never, 0, 0, 0, 125, 31.2},
    GpuModel{"NVIDIA A16", never},
    GpuModel{"NVIDIA A2", never},
    GpuModel{"RTX 3090", possible, 3, 4, 14.0625},
    GpuModel{"RTX 30", never},
    // Turing and Volta: 6 NVLinks of 25 GB/s on the V100 SXM; the V100 PCIe card has no connector.
    GpuModel{"T4", never},
    GpuModel{"V100-PCIE", never},
    GpuModel{"V100S-PCIE", never},
    GpuModel{"GV100", possible, 2, 4, 25},
    GpuModel{"V100", possible, 2, 6, 25, 125, 15.7},
    GpuModel{"RTX 8000", possible, 2, 2, 25},
    GpuModel{"RTX 6000", possible, 2, 2, 25},
    GpuModel{"RTX 5000", possible, 2, 2, 25},
    GpuModel{"RTX 50", never},  // GeForce cards of the Blackwell generation
    // Pascal and older GPUs.
    GpuModel{"P100-PCIE", never},
    GpuModel{"P100", possible, 1, 4, 20},
    GpuModel{"P40", never},
    GpuModel{"P4", never},
    GpuModel{"K80", never},
    GpuModel{"K40", never},
    // AMD. The counts of links are 0, because the driver lists the xGMI links.
    GpuModel{"MI300X", possible, 0, 0, 0, 1307, 163},
};

// Maps PCI device ids to models, for files that have no model names.
struct DeviceModel {
  std::string_view device, model;
};
constexpr std::array device_models{
    DeviceModel{"10de:31c2", "NVIDIA GB300"},
    DeviceModel{"10de:2941", "NVIDIA GB200"},
    DeviceModel{"10de:3182", "NVIDIA B300 SXM6"},
    DeviceModel{"10de:2901", "NVIDIA B200"},
    DeviceModel{"10de:2330", "NVIDIA H100 80GB HBM3"},
    DeviceModel{"10de:2335", "NVIDIA H200"},
    DeviceModel{"10de:233b", "NVIDIA H200 NVL"},
    DeviceModel{"10de:2331", "NVIDIA H100 PCIe"},
    DeviceModel{"10de:2321", "NVIDIA H100 NVL"},
    DeviceModel{"10de:2324", "NVIDIA H800"},
    DeviceModel{"10de:2329", "NVIDIA H20"},
    DeviceModel{"10de:2342", "NVIDIA GH200 120GB"},
    DeviceModel{"10de:20b0", "NVIDIA A100-SXM4-40GB"},
    DeviceModel{"10de:20b2", "NVIDIA A100-SXM4-80GB"},
    DeviceModel{"10de:20b5", "NVIDIA A100 80GB PCIe"},
    DeviceModel{"10de:20f1", "NVIDIA A100-PCIE-40GB"},
    DeviceModel{"10de:20f3", "NVIDIA A800-SXM4-80GB"},
    DeviceModel{"10de:20b7", "NVIDIA A30"},
    DeviceModel{"10de:2235", "NVIDIA A40"},
    DeviceModel{"10de:2236", "NVIDIA A10"},
    DeviceModel{"10de:2230", "NVIDIA RTX A6000"},
    DeviceModel{"10de:2204", "NVIDIA GeForce RTX 3090"},
    DeviceModel{"10de:2684", "NVIDIA GeForce RTX 4090"},
    DeviceModel{"10de:26b5", "NVIDIA L40"},
    DeviceModel{"10de:26b9", "NVIDIA L40S"},
    DeviceModel{"10de:26ba", "NVIDIA L20"},
    DeviceModel{"10de:27b8", "NVIDIA L4"},
    DeviceModel{"10de:1eb8", "Tesla T4"},
    DeviceModel{"10de:1db1", "Tesla V100-SXM2-16GB"},
    DeviceModel{"10de:1db5", "Tesla V100-SXM2-32GB"},
    DeviceModel{"10de:1db8", "Tesla V100-SXM3-32GB"},
    DeviceModel{"10de:1db4", "Tesla V100-PCIE-16GB"},
    DeviceModel{"10de:1db6", "Tesla V100-PCIE-32GB"},
    DeviceModel{"10de:15f9", "Tesla P100-SXM2-16GB"},
    DeviceModel{"10de:15f8", "Tesla P100-PCIE-16GB"},
    DeviceModel{"1002:74a0", "AMD Instinct MI300A"},
    DeviceModel{"1002:74a1", "AMD Instinct MI300X"},
    DeviceModel{"1002:74a5", "AMD Instinct MI325X"},
    DeviceModel{"1002:740c", "AMD Instinct MI250X"},
    DeviceModel{"1002:738c", "AMD Instinct MI100"},
};

// The compute capability alone gives the rate of a link, but not the number of links.
struct SmModel {
  std::string_view sm;
  GpuModel model;
};
constexpr std::array sm_models{
    SmModel{"60", {"", possible, 1, 0, 20}},  SmModel{"70", {"", possible, 2, 0, 25}},
    SmModel{"80", {"", possible, 3, 0, 25}},  SmModel{"86", {"", possible, 3, 0, 14.0625}},
    SmModel{"90", {"", possible, 4, 0, 25}},  SmModel{"100", {"", possible, 5, 0, 50}},
    SmModel{"103", {"", possible, 5, 0, 50}},
};

// True if `name` contains `part` and no letter or digit is next to it.
bool has_whole(std::string_view name, std::string_view part) noexcept {
  const std::size_t at = name.find(part);
  if (at == name.npos) return false;
  const auto in_word = [&](std::size_t place) {
    return place < name.size() && std::isalnum(static_cast<unsigned char>(name[place])) != 0;
  };
  return (at == 0 || !in_word(at - 1)) && !in_word(at + part.size());
}

}  // namespace

const GpuModel* find_gpu_model(std::string_view model) noexcept {
  for (const GpuModel& entry : models)
    if (model.find(entry.word) != std::string_view::npos) return &entry;
  return nullptr;
}

const GpuModel* find_gpu_model(const TopologyGpu& gpu) noexcept {
  if (const GpuModel* found = find_gpu_model(gpu.model)) return found;
  const std::string_view device = model_of_pci_device(get_fact(gpu.facts, fact::pci_device));
  if (const GpuModel* found = device.empty() ? nullptr : find_gpu_model(device)) return found;
  const std::string_view sm = get_fact(gpu.facts, fact::sm);
  const auto by_sm = std::ranges::find(sm_models, sm, &SmModel::sm);
  return by_sm == sm_models.end() ? nullptr : &by_sm->model;
}

PeakRates peak_rates(std::string_view gpu) {
  constexpr double tera = 1e12;
  const GpuModel* model = find_gpu_model(gpu);
  if (model == nullptr || !has_whole(gpu, model->word) || has_whole(gpu, "MIG")) return {};
  return {model->bf16 * tera, model->f32 * tera};
}

bool has_no_connector(const TopologyGpu& gpu) noexcept {
  const GpuModel* model = find_gpu_model(gpu);
  return model != nullptr && model->kind == LinkKind::never;
}

std::string_view model_of_pci_device(std::string_view device) noexcept {
  const auto found = std::ranges::find(device_models, device, &DeviceModel::device);
  return found == device_models.end() ? std::string_view() : found->model;
}

void fill_link_rates(Topology& topology) {
  std::map<std::string_view, const GpuModel*> by_id;
  for (const TopologyGpu& gpu : topology.gpus) by_id[gpu.id] = find_gpu_model(gpu);
  for (TopologyLink& link : topology.links) {
    if (link.type != "nvlink" || link.gbyte_s) continue;
    for (const std::string* end : {&link.a, &link.b}) {
      const auto found = by_id.find(*end);
      if (found == by_id.end() || found->second == nullptr || found->second->link_gbyte_s <= 0)
        continue;
      link.gbyte_s = link.count * found->second->link_gbyte_s;
      break;
    }
  }
}

}  // namespace atoll_v1::atoll
