// The job of a measurement: its World, the mesh that the topology suggests, and a communicator over
// the selected axis.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "atoll/communicator.hpp"
#include "atoll/mesh.hpp"
#include "atoll/rank_device.hpp"
#include "atoll/topology.hpp"
#include "atoll/world.hpp"
#include "options.hpp"

namespace busbw {

// Configuration of the library: the environment, overridden by the options.
atoll::Config config_of(const Options& options);

// The device of a rank, in the form that nccl-tests prints.
struct UsedDevice {
  std::string number;
  std::string pci;   // PCI address without function: "0000:0f:00"
  std::string info;  // description: "cuda:0 (NVIDIA H200)", or "CPU"
};

class Job {
 public:
  // Collective. `world` must outlive the job.
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
  // Devices by world rank.
  const std::vector<UsedDevice>& devices() const noexcept { return devices_; }

  bool is_root() const noexcept { return world_.rank() == 0; }
  int group_size() const noexcept { return communicator_->size(); }
  // World ranks of every group of the axis, in the order of the axis.
  const std::vector<std::vector<int>>& groups() const noexcept { return groups_; }
  // Index of the rank's group, by world rank.
  int group_of(int rank) const noexcept { return group_of_[static_cast<std::size_t>(rank)]; }
  const std::vector<int>& host_of() const noexcept { return host_of_; }
  std::size_t hosts_of_group() const;
  // GB/s of a ring over the axis, from the topology; 0 if unknown.
  double axis_gbyte_s() const noexcept { return axis_gbyte_s_; }

  // Memory of the communicator's device.
  atoll::Buffer allocate(std::uint64_t bytes, MemoryKind kind);

  // Exchanges numbers of all ranks and returns them by rank. Lists may differ in length. Collective
  // over the World.
  std::vector<std::vector<double>> exchange(const std::vector<double>& mine);
  // Barrier over the World. The ranks of a group leave it within the time of one backend barrier.
  // Collective.
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
