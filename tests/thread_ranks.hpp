// Runs a function on several ranks, each of which is a thread with its own World, so that the
// thread sanitizer sees all ranks. A test that kills a rank needs processes instead; run_ranks
// starts them.
#pragma once

#include <cstdlib>
#include <exception>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "atoll/world.hpp"
#include "reserved_port.hpp"

namespace atoll_test {

// Lets a developer run these tests on the checked device. ATOLL_CHECK is the only environment
// variable that these tests use.
inline void check_as_asked(atoll::Config& config) {
  if (const char* check = std::getenv("ATOLL_CHECK")) config.set("check", check);
}

inline atoll::World single_rank() {
  atoll::Config config;
  check_as_asked(config);
  return atoll::World::single(config);
}

// `configure` may change the Config of every rank. If a rank throws, its World fails, so that the
// other ranks end as well. When all threads have ended, the function rethrows the exception of the
// lowest rank that threw.
inline void run_thread_ranks(int ranks, const std::function<void(atoll::World&)>& body,
                             const std::function<void(atoll::Config&)>& configure = {}) {
  const ReservedPort port;
  std::vector<std::exception_ptr> errors(static_cast<std::size_t>(ranks));
  std::vector<std::jthread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        atoll::Config config;
        config.rank = rank;
        config.size = ranks;
        config.addr = port.address();
        config.token = "threads of one test";
        config.timeout = std::chrono::seconds(60);
        check_as_asked(config);
        if (configure) configure(config);
        auto world = atoll::World::from_env(config);
        try {
          body(world);
        } catch (const std::exception& error) {
          world.fail(error.what());
          throw;
        }
      } catch (...) {
        errors[static_cast<std::size_t>(rank)] = std::current_exception();
      }
    });
  }
  threads.clear();
  for (const auto& error : errors) {
    if (error) std::rethrow_exception(error);
  }
}

}  // namespace atoll_test
