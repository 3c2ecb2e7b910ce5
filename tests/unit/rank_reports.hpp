// Runs the ranks of a job as threads of this process and collects their results or errors.
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "atoll/world.hpp"
#include "reserved_port.hpp"

namespace atoll_test {

inline atoll::Config thread_rank_config(int rank, int size, const ReservedPort& port) {
  using namespace std::chrono_literals;
  atoll::Config config;
  config.rank = rank;
  config.size = size;
  config.addr = port.address();
  config.token = "secret";
  config.rendezvous_timeout = 20s;
  config.timeout = 20s;
  config.log = "error";
  return config;
}

// Runs `body` on every rank except `absent` and returns, for each rank, the result or the error as
// text ("mismatch: ...").
inline std::vector<std::string> on_threads(
    int size, const std::function<std::string(atoll::World&)>& body, int absent = -1,
    std::chrono::seconds rendezvous = std::chrono::seconds(20)) {
  const ReservedPort port;
  std::vector<std::string> results(static_cast<std::size_t>(size));
  std::vector<std::jthread> threads;
  for (int rank = 0; rank < size; ++rank) {
    if (rank == absent) continue;
    threads.emplace_back([&, rank] {
      std::string& result = results[static_cast<std::size_t>(rank)];
      try {
        atoll::Config config = thread_rank_config(rank, size, port);
        config.rendezvous_timeout = rendezvous;
        atoll::World world = atoll::World::from_env(config);
        result = body(world);
      } catch (const atoll::Error& error) {
        result = std::string(atoll::name(error.code())) + ": " + error.what();
      }
    });
  }
  threads.clear();
  return results;
}

}  // namespace atoll_test
