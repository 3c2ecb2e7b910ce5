// Drives a backend through its C table, without libatoll. Threads act as ranks, which may be laid
// out over any number of hosts. The store is in memory.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "atoll/plugin.h"

namespace plugin_ranks {

using Bytes = std::vector<std::byte>;

// Divisor for large counts under sanitizers, which take up to twenty times as long per element.
// Fewer elements synchronize just as often.
#if defined(ATOLL_SANITIZE_THREAD) || defined(ATOLL_SANITIZE_ADDRESS)
inline constexpr std::uint64_t fewer = 8;
#else
inline constexpr std::uint64_t fewer = 1;
#endif

// Loads the shared object of a backend, which stays loaded, and returns its table. Throws
// std::runtime_error.
const atoll_backend& load(const std::string& path);

// Implements the functions of atoll_core, which libatoll normally offers to a backend.
class FakeCore {
 public:
  FakeCore();
  const atoll_core& services() const { return core_; }
  atoll_core& services() { return core_; }  // for tests that replace functions
  // Waits for a key and returns its value, as get() of atoll_core does.
  std::string get(const std::string& key);

 private:
  static atoll_status put(void* ctx, const char* key, const void* value, std::size_t n);
  static atoll_status get(void* ctx, const char* key, void* value, std::size_t* n,
                          std::int64_t timeout_ns);
  static atoll_status get_all(void* ctx, const char* const* keys, std::int32_t n,
                              void* const* values, std::size_t* sizes, std::int64_t timeout_ns);

  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, std::string> store_;
  atoll_core core_;
};

// The host number of each rank, by rank.
using Layout = std::vector<int>;

// Returns all layouts, or the first half of them under sanitizers.
inline std::vector<Layout> some_of(std::vector<Layout> layouts) {
  if (fewer > 1) layouts.resize((layouts.size() + 1) / 2);
  return layouts;
}

std::string text(const Layout& layout);

struct GroupOptions {
  std::string id = "group";
  std::string token = "secret";
  std::string tuning{};
  int deterministic = 0;
  std::int64_t timeout_ns = 20'000'000'000;
  // Value of rail_addresses for each rank; if empty, every rank has one rail.
  std::vector<std::string> rails{};
  int host_ranks = 0;  // value of atoll_group::host_ranks; 0 means unknown
  std::int32_t checksum = ATOLL_CHECKSUM_NONE;
  std::int64_t cut_ns = 0;
  std::int32_t compute_units = ATOLL_COMPUTE_UNITS_ANY;
  // Kind of memory; if it is CUDA memory, rank r uses device r.
  std::int32_t memory = ATOLL_MEMORY_CPU;
};
// Builds the atoll_group of one rank. World ranks are 2 * rank + 1, so that tests detect texts that
// confuse the two numbers.
class Group {
 public:
  Group(const Layout& layout, int rank, const GroupOptions& options = {});
  const atoll_group& get() const { return group_; }

 private:
  GroupOptions options_;
  std::vector<atoll_placement> placements_;
  std::vector<const atoll_placement*> pointers_;
  atoll_group group_;
};

struct Result {
  atoll_status status = ATOLL_OK;
  std::string text;
};

// An open communicator on one rank, which the destructor closes. The sequence number of an
// operation is the number of earlier submits.
class Rank {
 public:
  Rank(const atoll_backend& backend, atoll_comm* comm, const Layout& layout, int rank,
       std::int32_t memory = ATOLL_MEMORY_CPU);
  Rank(Rank&& other) noexcept;
  ~Rank();
  int rank() const { return rank_; }
  int size() const { return size_; }
  void close();
  void abort() { backend_.abort(comm_); }
  std::int64_t timeout_ns = 20'000'000'000;

  atoll_operation operation(std::int32_t kind, std::int32_t dtype, const void* src, void* dst,
                            std::uint64_t count) const;
  Result submit(std::vector<atoll_operation> operations);
  Result submit(const atoll_operation& operation);
  Result async_error();
  Result register_memory(void* memory, std::size_t bytes);
  Result deregister_memory(void* memory);
  // Sets `slow` to the reason why the memory is slow; "" if it is fast.
  Result register_caller_memory(void* memory, std::size_t bytes, std::string& slow);
  Result deregister_caller_memory(void* memory);

 private:
  Result told(atoll_status status) const;

  const atoll_backend& backend_;
  atoll_comm* comm_;
  int rank_;
  int size_;
  std::int32_t memory_;
  std::uint64_t sequence_ = 0;
};

// Opens a group and runs `body` on every rank, each in a thread. Rethrows the exception of the
// first rank that failed.
void run_ranks(const atoll_backend& backend, const Layout& layout,
               const std::function<void(Rank&)>& body, const GroupOptions& options = {});
// Opens a group and returns the result of each rank. Ranks with a negative host number in `absent`
// do not open the group.
std::vector<Rank> open_ranks(const atoll_backend& backend, FakeCore& core, const Layout& layout,
                             const GroupOptions& options = {});
// Runs body(rank) for each rank, each in a separate thread.
void on_ranks(std::vector<Rank>& ranks, const std::function<void(Rank&)>& body);
// Connects all pairs of ranks, by a barrier. The connections between hosts are made on demand.
void connect_ranks(std::vector<Rank>& ranks);
// Closes all ranks at the same time, as the processes of a job do, because closing may wait for the
// other ranks.
void close_ranks(std::vector<Rank>& ranks);
// Runs body(i) for each i in [0, n), each in a separate thread.
void in_threads(int n, const std::function<void(int)>& body);

// Runs body(rank) on all ranks and returns their results. As in libatoll, a rank that fails aborts
// all other ranks. It does not abort the rank `gone`, which may have closed its communicator.
std::vector<Result> until_one_fails(std::vector<Rank>& ranks,
                                    const std::function<Result(Rank&)>& body, int gone = -1);

// Returns small whole numbers that are exact in every dtype, even if eight of them are added.
Bytes input(std::int32_t dtype, int rank, std::uint64_t count, int salt = 0);
// Returns f32 fractions for which the sum depends on the order of additions.
Bytes noisy_input(int rank, std::uint64_t count);
std::size_t size_of(std::int32_t dtype);
// The reduction that plugin.h specifies, without factors, element by element.
Bytes reference_reduce(const std::vector<Bytes>& parts, std::int32_t dtype, std::int32_t op);

}  // namespace plugin_ranks
