// Who am I, who else is there, and a small key-value store that all ranks share.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "atoll/config.hpp"
#include "atoll/error.hpp"

namespace atoll_v1::atoll {

// Where one rank runs. Two ranks share a host when name, boot id and network namespace are equal.
struct Placement {
  int rank = 0;
  int host = 0;        // index into World::hosts()
  int local_rank = 0;  // index among the ranks of its host, in rank order
  int pid = 0;
  std::string address;  // an address at which other hosts reach this rank
  std::vector<std::string>
      rail_addresses;  // one per rail (Config::interface); the first is `address`
};

struct HostInfo {
  std::string name;
  std::string id;          // name, boot id, network namespace
  std::vector<int> ranks;  // ascending
};

// All processes of a job. A World outlives everything made from it (meshes, communicators,
// engines), and stays where it is as long as they live: they keep its address. Every rank keeps one
// connection to the store, which a thread of rank 0 serves over TCP; a process that ends without a
// farewell is noticed there, and every rank is told its name at once.
//
// All functions may be called from any thread. Functions marked collective must be called by all
// ranks, in the same order.
class World {
 public:
  // Finds the launcher from the environment (explicit ATOLL_RANK, ATOLL_SIZE, ATOLL_ADDR and
  // ATOLL_TOKEN; Open MPI; PMIx, also under Slurm; MPICH's Hydra and Slurm's PMI-1; torchrun), or
  // is a world of one. Collective. Throws Error(timeout) that names the ranks that did not come.
  static World from_env(Config config = Config::from_env());

  // A job of one process: no store, no threads.
  static World single(Config config = {});

  World(World&&) noexcept;
  World& operator=(World&&) noexcept;
  // Says farewell; rank 0 serves the store until every rank has said farewell or is lost, for at
  // most 10 s.
  ~World();

  int rank() const noexcept;
  int size() const noexcept;
  int local_rank() const noexcept;  // among the ranks of this host
  int local_size() const noexcept;
  std::string_view launcher() const noexcept;  // "explicit", "openmpi", "pmix", "pmi", "torchrun",
                                               // "slurm", "single"
  const Config& config() const noexcept;
  const std::vector<HostInfo>& hosts() const noexcept;        // in order of their lowest rank
  const std::vector<Placement>& placements() const noexcept;  // by rank

  // Keys are at most 256 bytes, values at most 16 MiB; larger ones are Error(invalid_argument).
  // A later put() overwrites.
  void put(std::string_view key, std::string_view value);
  // Waits until somebody has put `key`. Error(timeout) names key and rank; once the job has failed,
  // this and every other call that needs the store throws failure().
  std::string get(std::string_view key, std::chrono::milliseconds timeout);
  // Collective. Each rank's `mine`, by rank. `key` must not be in use for anything else.
  std::vector<std::string> exchange(std::string_view key, std::string_view mine);
  // Collective. Returns when all ranks have called it; Error(timeout) names the absent ones.
  void barrier();

  // Numbers the calls with equal `key` on this rank: 0, 1, 2, ... Ranks that make the same calls
  // get the same numbers, which makes store keys unique without asking anybody.
  std::uint64_t ticket(std::string_view key);

  // Runs in ~World, before the farewell, last registered first. Ranks that have registered any meet
  // first; `failed` says that the job has failed, or that they did not all come.
  void at_exit(std::function<void(bool failed)> callback);

  // Declares the job failed: the reason reaches every rank through the store, their communicators
  // abort, and what they wait for throws Error(aborted) with the reason. The first reason stays.
  void fail(std::string_view reason) noexcept;
  // Why the job failed, once it has.
  std::optional<Error> failure() const;
  // Throws failure(), if there is one.
  void check() const;

  // Registers `on_failure`, called once, from a thread of World (or at once if the job has failed
  // already), when the job fails. Deregisters at destruction, after a call under way has returned.
  class Subscription {
   public:
    Subscription() noexcept;
    Subscription(Subscription&&) noexcept;
    Subscription& operator=(Subscription&&) noexcept;
    ~Subscription();

   private:
    friend class World;
    struct Impl;
    std::unique_ptr<Impl> impl_;
  };
  [[nodiscard]] Subscription on_failure(std::function<void(const Error&)> callback);

 private:
  friend struct WorldInternals;  // src/core/world_internals.hpp, for the rooms above core
  struct Impl;
  explicit World(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace atoll_v1::atoll
