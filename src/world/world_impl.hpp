// The implementation of World. world.cpp defines its functions, except those with which a process
// becomes a rank of a job, which are in join.cpp.
#pragma once

#include <unistd.h>

#include <atomic>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "atoll/world.hpp"
#include "core/errors.hpp"
#include "core/failure.hpp"
#include "core/host.hpp"
#include "core/settings.hpp"
#include "core/socket.hpp"
#include "store/client.hpp"
#include "store/server.hpp"
#include "store/store.hpp"
#include "world/introduction.hpp"
#include "world/launch.hpp"
#include "world/parent.hpp"
#include "world/process_failure.hpp"

namespace atoll_v1::atoll {

struct World::Impl {
  Impl(Config config_, std::string launcher_, int rank_, int size_)
      : config(std::move(config_)), launcher(std::move(launcher_)), rank(rank_), size(size_) {
    require_valid(config);
  }

  static World start(Config config, launch::Job job);
  // Makes the World of a process that has asked for a place in the next epoch.
  static World take_seat(const Impl& last, store::Candidacy candidacy);
  void fail(std::string_view reason) noexcept;
  // Ends the membership of this rank. `alone`: the other ranks go on, and learn that it has left.
  void leave(bool alone) noexcept;
  void check_movable() const {
    if (holds.use_count() > 1)
      throw Error(ErrorCode::invalid_argument,
                  "a World cannot be moved while a mesh or an axis of it exists: they keep its "
                  "address; move it before, or keep it in a std::unique_ptr");
  }
  // Removes the last callback and returns it; an empty function without one. A callback may
  // register another one, which runs next.
  std::function<void(bool)> take_exit_callback();
  void use_store(std::unique_ptr<store::Store> made);
  void stay_alone();
  void simulate(const SimulatedJob& job);
  void join(launch::Job job);
  // Joins over `socket`, the connection with the store: the ranks exchange where each of them runs.
  void introduce(net::Fd socket);
  launch::Endpoint serve(const launch::Job& job, net::Clock::time_point deadline);
  store::Admission enter(const store::Join& identity, net::Clock::time_point deadline) const;
  std::string local_address(const net::Fd& socket) const;
  Introduction introduction(std::vector<std::string> addresses) const;
  std::string encoded_process() const;  // encodes the Process of this rank
  void place(const std::vector<std::string>& introductions,
             const std::vector<std::string>& processes);
  std::optional<ParentProcess> parent_to_watch() const;
  void watch(std::optional<ParentProcess> launcher_process);

  Config config;
  std::string launcher;
  int rank;
  int size;
  std::uint32_t epoch = 0;
  std::vector<int> former_ranks;  // the result of World::former_ranks()
  int exceptions = std::uncaught_exceptions();
  std::vector<HostInfo> hosts;
  std::vector<Placement> placements;
  std::shared_ptr<Failure> failure = std::make_shared<Failure>();
  std::shared_ptr<Departures> departures = std::make_shared<Departures>();
  std::optional<launch::Rendezvous> rendezvous;
  std::optional<launch::Endpoint> endpoint;  // endpoint of the store; empty in a job of one process
  // Serves the store; exists only in the process of the rank 0 of the first World. The Worlds of
  // later epochs share it.
  std::shared_ptr<store::Server> server;
  std::unique_ptr<store::Store> store;
  std::optional<ProcessFailureHook> hook;  // declared after `store`, so that it is destroyed first
  std::optional<ParentWatch> parent;
  int process = static_cast<int>(::getpid());  // the process that joined the job
  ProcessMark mark{};                          // finds out whether a caller is in that process

  std::mutex mutex;  // guards all members below
  std::map<std::string, std::uint64_t, std::less<>> tickets;
  std::vector<std::function<void(bool)>> exit_callbacks;
  // Objects that other parts of the library have attached, the oldest first. `mutex` does not guard
  // them, because the function that makes such an object may call this World.
  std::vector<std::pair<std::string, std::shared_ptr<void>>> companions;
  std::mutex making;  // guards `companions`
  // Objects that need this World keep a copy, which WorldInternals::hold() returns. The number of
  // copies shows whether such objects exist. The value becomes true when the World is destroyed.
  std::shared_ptr<std::atomic<bool>> holds = std::make_shared<std::atomic<bool>>(false);
};

}  // namespace atoll_v1::atoll
