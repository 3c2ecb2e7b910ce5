#include "job.hpp"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <set>

namespace busbw {

atoll::Config config_of(const Options& options) {
  atoll::Config config = atoll::Config::from_env();
  config.owns_process = 1;
  if (!options.algorithm.empty()) {
    config.algorithm = options.algorithm;
    if (options.algorithm.find(':') == std::string::npos) {
      config.algorithm.clear();
      for (const Collective collective : options.collectives) {
        if (collective == Collective::send_recv) continue;  // send_recv has no algorithms
        config.algorithm += (config.algorithm.empty() ? "" : ",") + std::string(name(collective)) +
                            ":" + options.algorithm;
      }
    }
  }
  if (options.timeout_s > 0) config.timeout = std::chrono::seconds(options.timeout_s);
  return config;
}

namespace {

std::vector<UsedDevice> used_devices(atoll::World& world, const atoll::Device& device) {
  UsedDevice mine{std::to_string(world.local_rank()), "0000:00:00", "CPU"};
  if (device.kind() == atoll::DeviceKind::cuda) {
    const std::string_view pci = device.pci_address();
    mine = {std::to_string(device.ordinal()), std::string(pci.substr(0, pci.rfind('.'))),
            std::string(device.name())};
  }
  std::vector<UsedDevice> all;
  for (const std::string& text :
       world.exchange("busbw/device", mine.number + '\n' + mine.pci + '\n' + mine.info)) {
    const std::size_t first = text.find('\n'), second = text.find('\n', first + 1);
    all.push_back({text.substr(0, first), text.substr(first + 1, second - first - 1),
                   text.substr(second + 1)});
  }
  return all;
}

}  // namespace

Job::Job(atoll::World& in, const Options& options)
    : world(in),
      rank_device(
          atoll::choose_rank_device(world, {.wanted = options.device, .backend = options.backend})),
      devices(used_devices(world, rank_device.device)),
      topology(atoll::Topology::discover(world)),
      mesh(atoll::Mesh::plan(topology, world)),
      groups(axis_groups(mesh.axis("world").ranks, mesh.shape().shard, options.axis)),
      group_of(static_cast<std::size_t>(world.size())) {
  for (std::size_t g = 0; g < groups.size(); ++g)
    for (const int rank : groups[g]) group_of[static_cast<std::size_t>(rank)] = static_cast<int>(g);
  for (const atoll::Placement& placement : world.placements()) host_of.push_back(placement.host);
  const atoll::Axis& axis = mesh.axis(options.axis);
  axis_gbyte_s = axis.rate.gbyte_s;
  communicator = atoll::Communicator::open(axis, {.name = "busbw",
                                                  .backend = options.backend,
                                                  .device = rank_device.device,
                                                  .compute_units = options.compute_units});
  stream = communicator->device().stream({.name = "busbw"});
}

std::size_t Job::hosts_of_group() const {
  std::size_t most = 0;
  for (const std::vector<int>& group : groups) {
    std::set<int> hosts;
    for (const int rank : group) hosts.insert(host_of[static_cast<std::size_t>(rank)]);
    most = std::max(most, hosts.size());
  }
  return most;
}

atoll::Buffer Job::allocate(std::uint64_t bytes, MemoryKind kind) {
  const atoll::Device& device = communicator->device();
  return kind == MemoryKind::registered ? atoll::allocate(device, bytes, {*communicator})
                                        : device.allocate(bytes);
}

std::vector<std::vector<double>> Job::exchange(const std::vector<double>& mine) {
  const std::string_view bytes(reinterpret_cast<const char*>(mine.data()),
                               mine.size() * sizeof(double));
  std::vector<std::vector<double>> all;
  for (const std::string& text : world.exchange("busbw", bytes)) {
    auto& numbers = all.emplace_back(text.size() / sizeof(double));
    std::memcpy(numbers.data(), text.data(), numbers.size() * sizeof(double));
  }
  return all;
}

void Job::meet() {
  world.barrier();
  communicator->barrier(*stream).synchronize();
}

}  // namespace busbw
