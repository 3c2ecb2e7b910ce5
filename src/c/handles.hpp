// The handles of the C API: each holds one object of the C++ headers.
#pragma once

#include <mutex>
#include <stop_token>
#include <string>
#include <utility>
#include <vector>

#include "atoll/communicator.hpp"
#include "c/guard.hpp"

struct atoll_config {
  atoll::Config config;
};

struct atoll_world {
  explicit atoll_world(atoll::World world_) : world(std::move(world_)) {}
  atoll::World world;
  std::mutex mutex;                                         // guards the next member
  std::vector<atoll::World::Subscription> subscriptions{};  // end before the World
};

struct atoll_device {
  atoll::Device device;
};

struct atoll_stream {
  atoll::Stream stream;
};

struct atoll_buffer {
  atoll::Buffer buffer;
};

struct atoll_stop {
  std::stop_source source;
};

struct atoll_registration {
  atoll::Registration registration;
};

struct atoll_topology {
  atoll::Topology topology;
};

struct atoll_mesh {
  explicit atoll_mesh(atoll::Mesh mesh_);
  atoll::Mesh mesh;
  std::string text;
  // Texts to which atoll_finding points and which mesh.findings() does not hold in this form.
  std::vector<std::string> lines, subjects;
};

struct atoll_communicator {
  atoll::Communicator communicator;
  std::string name = std::string(communicator.name());
  std::string backend = std::string(communicator.backend());
};

struct atoll_work {
  atoll::Work work;
};
