// The job that measures: in a World, the mesh that the topology suggests, and a communicator over
// the axis that was asked for.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "atoll/communicator.hpp"
#include "atoll/mesh.hpp"
#include "atoll/rank_device.hpp"
#include "atoll/topology.hpp"
#include "atoll/world.hpp"
#include "options.hpp"

namespace busbw {

// The library's settings: the environment, then the options.
atoll::Config config_of(const Options& options);

// As nccl-tests shows it.
struct UsedDevice {
  std::string number;
  std::string pci;   // "0000:0f:00"
  std::string info;  // "cuda:0 (NVIDIA H200)", or "CPU"
};

class Job {
 public:
  // Collective. `world` outlives it.
  Job(atoll::World& world, const Options& options);
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  atoll::World& world() noexcept { return world_; }
  const atoll::World& world() const noexcept { return world_; }
  const atoll::Topology& topology() const noexcept { return topology_; }
  const atoll::Mesh& mesh() const noexcept { return *mesh_; }
  atoll::Communicator& communicator() noexcept { return *communicator_; }
  const atoll::Communicator& communicator() const noexcept { return *communicator_; }
  atoll::Stream& stream() noexcept { return *stream_; }
  const atoll::RankDevice& rank_device() const noexcept { return rank_device_; }
  bool is_on_gpu() const noexcept { return rank_device_.device.kind() == atoll::DeviceKind::cuda; }
  // What the ranks use, by world rank.
  const std::vector<UsedDevice>& devices() const noexcept { return devices_; }

  bool is_root() const noexcept { return world_.rank() == 0; }
  int group_size() const noexcept { return communicator_->size(); }
  // World ranks of every group of the axis, in the order of the axis.
  const std::vector<std::vector<int>>& groups() const noexcept { return groups_; }
  // By world rank.
  int group_of(int rank) const noexcept { return group_of_[static_cast<std::size_t>(rank)]; }
  const std::vector<int>& host_of() const noexcept { return host_of_; }
  std::size_t hosts_of_group() const;
  // Of a ring over the axis, as the topology says; 0: not known.
  double axis_gbyte_s() const noexcept { return axis_gbyte_s_; }

  // Memory of the communicator's device.
  atoll::Buffer allocate(std::uint64_t bytes, MemoryKind kind);

  // Collective over the World: every rank's numbers, by rank. They may differ in length.
  std::vector<std::vector<double>> exchange(const std::vector<double>& mine);
  // Collective over the World; the ranks of a group leave it within the time of a barrier of the
  // backend.
  void meet();

 private:
  atoll::World& world_;
  atoll::RankDevice rank_device_;
  std::vector<UsedDevice> devices_;
  atoll::Topology topology_;
  std::optional<atoll::Mesh> mesh_;
  std::vector<std::vector<int>> groups_;
  std::vector<int> group_of_;
  std::vector<int> host_of_;
  double axis_gbyte_s_ = 0;
  std::optional<atoll::Communicator> communicator_;
  std::optional<atoll::Stream> stream_;
};

}  // namespace busbw
