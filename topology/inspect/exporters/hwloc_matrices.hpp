// The links of a host as hwloc's matrices: MB/s in one direction between GPUs, and between GPUs
// and switches or packages.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "inspect/exporters/hwloc_devices.hpp"

namespace atoll_v1::atoll {

// A switch has no bus id in a Topology, and no matrix names it without a PCI device: it gets one in
// a PCI domain of its own.
struct HwlocSwitch {
  std::string name;
  topology_sources::HwlocPciDevice pci;
  std::uint64_t id = 0;  // gp_index
};

class HwlocMatrices {
 public:
  HwlocMatrices(const Topology& topology, const HwlocDevices& devices, const HwlocLayout& layout,
                std::vector<std::string>& lost);

  // A number for an object (gp_index); all objects of a topology have different ones.
  std::uint64_t new_id() { return next_id_++; }
  // Which object stands for a GPU or a package; `type` is hwloc's.
  void set_id(const std::string& name, std::string_view type, std::uint64_t id);

  const std::vector<HwlocSwitch>& switches() const { return switches_; }
  // After all ids were set.
  std::string text() const;

 private:
  using Pair = std::pair<std::string, std::string>;
  struct Matrix {
    std::string_view name;
    std::vector<std::string> ends;
    std::map<Pair, double> mbyte_s;
    bool zeros = false;  // the diagonal too: how atoll says that there are no links
  };

  bool is_gpu(const std::string& name) const { return gpus_.contains(name); }
  void read_links(const Topology& topology);
  void add_nvlinks(const HwlocDevices& devices);
  void add_xgmi(const HwlocDevices& devices);
  void add_zeros(const Topology& topology, const HwlocDevices& devices);
  void name_switches(const HwlocDevices& devices);
  std::vector<std::string> gpus_of(const HwlocDevices& devices, bool (*holds)(GpuDriver)) const;
  void print(const Matrix& matrix, std::string& text) const;

  std::vector<std::string>& lost_;
  std::string host_;
  std::set<std::string> gpus_, packages_, switch_names_;
  std::map<Pair, double> nvlink_, xgmi_;
  std::size_t without_rate_ = 0;
  std::vector<HwlocSwitch> switches_;
  std::vector<Matrix> matrices_;
  std::map<std::string, std::pair<std::string, std::uint64_t>> ids_;
  std::uint64_t next_id_ = 1;
};

}  // namespace atoll_v1::atoll
