// The processes of a job: the rank of this process, where all ranks run, and a small key-value
// store that they share.
#pragma once

#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "atoll/config.hpp"
#include "atoll/error.hpp"

namespace atoll_v1::atoll {

// Describes where one rank runs. Two ranks share a host if their hosts have the same name, boot id
// and network namespace, and the same ATOLL_HOST_ID if it is set.
struct Placement {
  int rank = 0;
  int host = 0;        // index of the rank's host in World::hosts()
  int local_rank = 0;  // index among the ranks of its host, in rank order
  int pid = 0;
  std::string address;  // numeric address at which other hosts reach this rank
  std::vector<std::string>
      rail_addresses;  // one address per interface in Config::interface; the first is `address`
};

struct HostInfo {
  std::string name;
  std::string id;          // name, and a digest of boot id and network namespace
  std::vector<int> ranks;  // World ranks on the host, in ascending order
};

// A job that one process simulates (planner.hpp).
struct SimulatedJob {
  int rank = 0;
  int hosts = 1;
  int ranks_per_host = 1;
};

// All processes of a job. A World must outlive everything made from it (meshes, communicators,
// engines). After it is destroyed, calls of these objects that need it throw
// Error(invalid_argument), and their destructors only free memory. While a mesh or an axis of it
// exists, moving the World throws Error(invalid_argument), because these objects keep its address.
// Every function of a World that has been moved throws Error(invalid_argument), except fail(),
// which only logs an error.
//
// A thread of rank 0 serves the store over TCP, and every rank keeps one connection to it. If a
// process ends without leaving the job, the store notices and immediately tells every rank which
// one was lost. Config::failure_scope says what this ends: the job, or the communicators that
// contain the rank. The loss of rank 0 ends the job, unless atoll-store serves the store.
// After a loss the living ranks can form a new World (regroup()); a World itself never changes.
//
// A World changes nothing outside itself, unless Config::owns_process asks for it: it installs no
// signal handlers, sets no environment variables and no limits, and never ends the process. Its
// threads end with it; only the PMIx library of a launcher may keep threads.
//
// Any thread may call any function. All ranks must call functions marked "collective", in the same
// order.
//
// No function of atoll is safe in a signal handler, fail() included: a handler that interrupts a
// call of atoll would wait for itself. Let the handler set a flag that the program reads between
// steps:
//   volatile std::sig_atomic_t stop = 0;  // set by the handler
//   if (stop) world.fail("stopped by a signal");
//
// The threads and descriptors of a World are its own: if the program closes the descriptors, for
// example by closefrom(), the job fails.
class ATOLL_API World {
 public:
  // Joins the job that the environment describes: ATOLL_RANK, ATOLL_SIZE, ATOLL_ADDR and
  // ATOLL_TOKEN; Open MPI; PMIx, also under Slurm; PMI-1 of MPICH's Hydra and of Slurm; torchrun.
  // Without a launcher the job has one rank. Collective. Throws Error(timeout) with the ranks that
  // did not join in time and, on all ranks that have joined, the processes that rank 0 has refused.
  // Throws Error(mismatch) if rank 0 refuses this process, because its rank or size does not fit
  // the job. All ranks throw Error(mismatch) if Config::timeout or Config::check differs between
  // them, or if two ranks of a host have the same local rank.
  static World from_env(Config config = Config::from_env());

  // Joins a job whose ranks the program knows, without a launcher or environment variables. If
  // size > 1, each rank calls `broadcast` once: rank 0 with a text of up to 1 KiB, the others with
  // an empty text. On every rank `broadcast` must return the text of rank 0, which contains the
  // secret of the job. For MPI programs, atoll/mpi.hpp supplies the three arguments. Collective.
  // Throws Error(invalid_argument) unless 0 <= rank < size, or if `broadcast` returns another text
  // (the ranks that receive the right text then wait until Config::rendezvous_timeout), and the
  // errors of from_env().
  using Broadcast = std::function<std::string(const std::string& text)>;
  static World from_ranks(int rank, int size, const Broadcast& broadcast,
                          Config config = Config::from_env());

  // Joins a job whose ranks share a key-value store of the program: a store of c10d or etcd, files,
  // or what MPI offers. Rank 0 calls `put` once, the others call `get` once, which waits until the
  // key has a value; `put` never passes a key twice. The value contains the secret of the job.
  // Collective. Throws Error(invalid_argument) unless 0 <= rank < size, what `put` and `get` throw,
  // and the errors of from_env().
  using Put = std::function<void(const std::string& key, const std::string& value)>;
  using Get = std::function<std::string(const std::string& key)>;
  static World from_exchange(int rank, int size, Put put, Get get,
                             Config config = Config::from_env());

  // The conditions under which a process wants to be a rank of the next epoch of the job.
  struct Regroup {
    // The replica of the model to which this process belongs, up to 256 bytes; "": the process is a
    // replica alone. The epoch contains whole replicas only.
    std::string tag{};
    int needed = 1;     // ranks of a whole replica; equal for all processes with the tag
    int min_ranks = 1;  // with fewer ranks in whole replicas, no epoch begins
    // Equal on all ranks. Time from the first call of regroup() until the epoch begins without the
    // ranks that are alive, but have not called it.
    std::chrono::milliseconds grace{10'000};
  };
  // Rebuilds the World after a loss, or when the program wants it: the living ranks form the next
  // epoch of the job. The call ends `old` on this rank: its communicators fail with Error(aborted),
  // and it and what was made from it can only be destroyed. The other ranks learn it as a departure
  // from their World (on_departure()), so that their collectives fail as well and they call
  // regroup(). The store decides which ranks form the epoch: it closes the list of ranks when each
  // rank of the last epoch has called regroup(), has left or is lost, or `grace` is over. A rank
  // that counts as lost because its connection to the store broke can call regroup() like the
  // others until the list is closed. The ranks of the new World are dense: ranks of the last epoch
  // in their order, then new processes (enter()). Keys, tickets and callbacks do not pass to the
  // new World. An epoch that fail() has ended can be followed by another one as well.
  // Needs Config::failure_scope "communicator". Throws Error(mismatch) if this rank is not on the
  // list: the epoch began without it, or its replica is not whole. Throws Error(aborted) on all
  // ranks if fewer than `min_ranks` are left. Throws Error(timeout) if the store cannot be reached:
  // if the process that serves it was lost, the job is over.
  static World regroup(World& old, const Regroup& wish);
  static World regroup(World& old) { return regroup(old, Regroup()); }
  // Enters a running job as a new process: waits at the store of ATOLL_ADDR, with the secret in
  // ATOLL_TOKEN, until ranks of the job regroup. Waits without a time limit once it has reached the
  // store. The process can be started long before it is needed. Throws the errors of regroup(), and
  // Error(mismatch) if Config::timeout or Config::check differs from that of the ranks. If the
  // ranks set ATOLL_LOCAL_RANK, this process must set it to a number that no rank of its host has,
  // and if they do not, it must not either; otherwise it gets Error(mismatch). The ranks go on
  // without a process that is refused. At most four new processes for each rank with which the job
  // began may wait at a time.
  static World enter(const Regroup& wish, Config config = Config::from_env());
  static World enter() { return enter(Regroup()); }

  // Makes a job of one process, without network connections or threads.
  static World single(Config config = {});

  // Makes one rank of a job that does not exist, for simulated devices. The rank assumes that all
  // other ranks pass the same values to exchange() and to other collective functions. Neighbouring
  // ranks share a host. Throws Error(invalid_argument) for a number of hosts or ranks below 1, and
  // for a rank that is not in the job.
  static World simulated(const SimulatedJob& job, Config config = {});

  World(World&& other);
  World& operator=(World&& other);
  // Leaves the job. Rank 0 serves the store until every other rank has left or is lost, for at most
  // 10 s. If an exception destroys the World, the job fails. A destructor cannot see the exception,
  // so the other ranks get the text of this thread's newest atoll::Error, if there is one. They get
  // the text of the exception itself if it leaves run(), or if no function catches it.
  // Under PMIx (Open MPI, srun --mpi=pmix) the process must then end by exit() or a return from
  // main(). Otherwise the launcher reports a crash: after _exit(), after exec(), or if the process
  // has closed the descriptors of PMIx.
  ~World();

  int rank() const;
  int size() const;
  int local_rank() const;  // ATOLL_LOCAL_RANK, or index of this rank among the ranks of its host
  int local_size() const;
  // Returns how the job was started: "explicit" (ATOLL_RANK and ATOLL_SIZE), "openmpi", "pmix",
  // "pmi", "torchrun", "slurm", "program" (from_ranks() and from_exchange()), "simulated"
  // (simulated()), or "single" without a launcher.
  std::string_view launcher() const;
  const Config& config() const;
  const std::vector<HostInfo>& hosts() const;        // hosts of the job, by lowest rank
  const std::vector<Placement>& placements() const;  // placement of each rank
  int epoch() const;  // 0 for the World that the launcher starts; each epoch that begins adds 1
  // For each rank: its rank in the World of the last epoch, or -1 for a new process. Empty in epoch
  // 0.
  const std::vector<int>& former_ranks() const;

  // Stores a value for all ranks and overwrites an earlier one. Keys have 1 to 256 bytes and values
  // at most 16 MiB; other sizes throw Error(invalid_argument).
  void put(std::string_view key, std::string_view value);
  // Waits until a rank has put `key`. Throws Error(timeout) with the key and this rank. Once the
  // job has failed, this and every other call that needs the store throws failure().
  std::string get(std::string_view key, std::chrono::milliseconds timeout);
  // Collective. Returns the values that all ranks passed as `mine`, indexed by rank. No other
  // exchange in progress may use the same key.
  std::vector<std::string> exchange(std::string_view key, std::string_view mine);
  // Collective. Returns when all ranks have called it; Error(timeout) names the absent ranks.
  void barrier();

  // Returns the number of earlier calls with this `key` on this rank: 0, 1, 2, ... Ranks that make
  // the same calls get the same numbers, so the number makes a store key unique without
  // communication.
  std::uint64_t ticket(std::string_view key);

  // Registers a function that ~World calls before this rank leaves the job, in reverse order of
  // registration. Ranks with registered functions first meet in a barrier, unless a rank has left
  // before; `failed` is true if there was no barrier, or it timed out, or the job has failed. A
  // function that one of them registers runs next.
  void at_exit(std::function<void(bool failed)> callback);

  // Declares that the job has failed. The store sends the reason to every rank; on each of them
  // communicators abort and waiting calls throw Error(aborted) with the reason, as one line. Only
  // the first reason counts. Blocks for a few seconds at most; not for signal handlers (see above).
  void fail(std::string_view reason) noexcept;
  // Calls body() and returns its result. If an exception leaves `body`, calls fail() with what() of
  // the exception, and throws the exception on. For the part of a program that uses the World:
  //   world.run([&] { train(world); });
  template <class Body>
  decltype(auto) run(Body&& body) {
    try {
      return std::forward<Body>(body)();
    } catch (const std::exception& error) {
      fail_by(&error);
      throw;
    } catch (...) {
      fail_by(nullptr);
      throw;
    }
  }
  // Leaves the job while the other ranks go on, which learn that this rank has left, and not that
  // it was lost. Meshes, communicators and engines must be destroyed before. Afterwards the World
  // can only be destroyed. Throws Error(invalid_argument) on the rank that serves the store.
  void leave();
  // The ranks that have left by leave(), or that were lost or have called regroup() while
  // Config::failure_scope is "communicator".
  std::vector<int> departed() const;

  // The reason why the job failed; empty if it has not.
  std::optional<Error> failure() const;
  // Throws failure() if the job has failed.
  void check() const;

  // Keeps a callback registered. Destroying it removes the callback and waits for a call in
  // progress.
  class Subscription {
   public:
    Subscription() noexcept = default;
    Subscription(Subscription&&) noexcept = default;
    Subscription& operator=(Subscription&&) noexcept = default;

   private:
    friend class World;
    std::shared_ptr<void> registration_;  // destroying this pointer removes the callback
  };
  // Calls `callback` once when the job fails, from a thread of World; if the job has already
  // failed, calls it at once on this thread. It must not destroy the World.
  [[nodiscard]] Subscription on_failure(std::function<void(const Error&)> callback);
  // Calls `callback` once for each rank of departed(), now and later, from a thread of World; for
  // the ranks that are gone, at once on this thread. It must not destroy the World, nor call the
  // store, collectives or open(): the thread that calls it reads the connection to the store.
  [[nodiscard]] Subscription on_departure(std::function<void(int rank, const Error& why)> callback);

 private:
  friend struct WorldInternals;  // this class is defined in src/world/world_internals.hpp
  struct ATOLL_LOCAL Impl;
  ATOLL_LOCAL explicit World(std::unique_ptr<Impl> impl);
  ATOLL_LOCAL Impl& impl() const;    // throws if this World has been moved
  ATOLL_LOCAL Impl& joined() const;  // like impl(), and also throws in a forked child
  // Fails the job with the text of `error`; null stands for an exception that is not a
  // std::exception.
  void fail_by(const std::exception* error) noexcept;
  std::unique_ptr<Impl> impl_;
};

}  // namespace atoll_v1::atoll
