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
  std::string pci;   // PCI address without the function number, such as "0000:0f:00"
  std::string info;  // description: "cuda:0 (NVIDIA H200)", or "CPU"
};

struct Job {
  // Collective. The World `in` must outlive the job.
  Job(atoll::World& in, const Options& options);
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  bool is_on_gpu() const noexcept { return rank_device.device.kind() == atoll::DeviceKind::cuda; }
  bool is_root() const noexcept { return world.rank() == 0; }
  int group_size() const noexcept { return communicator->size(); }
  std::size_t hosts_of_group() const;

  // Memory of the communicator's device.
  atoll::Buffer allocate(std::uint64_t bytes, MemoryKind kind);

  // Returns the list of numbers that each rank passes, by rank. The lists may differ in length.
  // Collective over the World.
  std::vector<std::vector<double>> exchange(const std::vector<double>& mine);
  // Barrier over the World. The ranks of a group leave it within the time of one backend barrier.
  // Collective.
  void meet();

  atoll::World& world;
  atoll::RankDevice rank_device;
  std::vector<UsedDevice> devices;  // device of each rank, by world rank
  atoll::Topology topology;
  atoll::Mesh mesh;
  std::vector<std::vector<int>> groups;  // world ranks of every group, in the order of the axis
  std::vector<int> group_of;             // index of the rank's group, by world rank
  std::vector<int> host_of;              // number of the rank's host, by world rank
  double axis_gbyte_s = 0;  // GB/s of a ring over the axis, from the topology; 0 if unknown
  std::optional<atoll::Communicator> communicator;
  std::optional<atoll::Stream> stream;
};

}  // namespace busbw
