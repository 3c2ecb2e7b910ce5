// Converts the links of a host to hwloc's matrices. The values are bandwidths in MB/s in one
// direction, between GPUs, and between GPUs and switches or packages.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "inspect/exporters/hwloc_devices.hpp"

namespace atoll_v1::atoll {

// An NVSwitch as hwloc object. A switch in a Topology has no bus id, but hwloc's matrix can only
// refer to PCI devices, so each switch gets a bus id in an unused PCI domain.
struct HwlocSwitch {
  std::string name;
  topology_sources::HwlocPciDevice pci;
  std::uint64_t id = 0;  // hwloc's gp_index of the switch in the file
};

class HwlocMatrices {
 public:
  HwlocMatrices(const Topology& topology, const HwlocDevices& devices, const HwlocLayout& layout,
                std::vector<std::string>& lost);

  // Returns a new value of hwloc's gp_index, which must differ for all objects of a file.
  std::uint64_t new_id() { return next_id_++; }
  // Registers the object of a GPU or package; `type` is hwloc's name of the object's type.
  void set_id(const std::string& name, std::string_view type, std::uint64_t id);

  const std::vector<HwlocSwitch>& switches() const { return switches_; }
  // Prints all matrices. Call this after all ids are registered.
  std::string text() const;

 private:
  using Pair = std::pair<std::string, std::string>;
  struct Matrix {
    std::string_view name;
    std::vector<std::string> ends;
    std::map<Pair, double> mbyte_s;
    // True if all values are 0, even on the diagonal. Such a matrix states that the GPUs have no
    // links.
    bool zeros = false;
  };

  bool is_gpu(const std::string& name) const { return gpus_.contains(name); }
  void read_links(const Topology& topology);
  void add_nvlinks(const HwlocDevices& devices);
  void add_zeros(const Topology& topology, const HwlocDevices& devices);
  void name_switches(const HwlocDevices& devices);
  void print(const Matrix& matrix, std::string& text) const;

  std::vector<std::string>& lost_;
  std::string host_;
  std::set<std::string> gpus_, packages_, switch_names_;
  std::vector<std::string> ordered_gpus_;  // the GPUs in the order of the exported file
  std::map<Pair, double> nvlink_, xgmi_;
  std::size_t without_rate_ = 0;
  std::vector<HwlocSwitch> switches_;
  std::vector<Matrix> matrices_;
  std::map<std::string, std::pair<std::string, std::uint64_t>> ids_;
  std::uint64_t next_id_ = 1;
};

}  // namespace atoll_v1::atoll
