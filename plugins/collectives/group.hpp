// A communicator as the collectives see it: its ranks, how they are connected, and the memory that
// they share.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "atoll/plugin.h"
#include "collectives/exchange.hpp"
#include "collectives/layout.hpp"
#include "collectives/shared_memory/local_sync.hpp"
#include "collectives/shared_memory/windows.hpp"
#include "collectives/tuning.hpp"

namespace atoll_collectives {

// Data of up to this size goes through the staging buffers even if it is in a registered window: an
// extra copy costs less than a second synchronization.
constexpr std::size_t small_bytes = 2 * 1024;

// Bytes that one rank provides to other ranks of its host, in src or dst.
struct Offer {
  enum class From {
    src,
    dst
  } from;
  std::size_t offset;  // in that buffer of the providing rank
  std::size_t to;      // in the dst of the receiving rank
  std::size_t bytes;
  int receiver;  // local rank, or everybody
};
constexpr int everybody = -1;

// A range of src that is reduced over the ranks of a host.
struct Slice {
  std::size_t offset;  // in src
  std::size_t bytes;
  int reducer;  // local rank that reduces the slice; everybody: each rank reduces it for itself
  std::byte* dst;
};

// A backend owns the Team, the shared memory transport (null if this rank is alone on its host) and
// the Group of each open communicator, and passes the Group to collectives.hpp.
struct Group {
  Group(const atoll_host& host_, const atoll_group& group, Team& team_, ShmTransport* shm)
      : host(host_),
        team(team_),
        layout(layout_of(group)),
        tuning(group, layout),
        sync(team_, shm),
        windows(team_, shm) {
    offers.resize(static_cast<std::size_t>(sync.size()));
    parts.resize(static_cast<std::size_t>(team_.size()));
  }
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  int rank() const noexcept { return team.rank; }
  int size() const noexcept { return team.size(); }
  bool one_host() const noexcept { return layout.hosts() == 1; }

  // Copies with core's kernel, unless dst is src.
  void copy(std::byte* dst, const std::byte* src, std::size_t bytes, int streaming) const {
    if (bytes > 0 && dst != src) host.copy(host.ctx, dst, src, bytes, streaming);
  }
  // Reduces with core's kernel.
  void reduce(const atoll_reduction& reduction) const;
  // Reduces one part per rank, in rank order, with the op and dtype of `operation`. dst may be one
  // of the parts. Null `factors` means that every factor is 1.
  void reduce_parts(std::byte* dst, std::span<const void* const> all, const double* all_factors,
                    std::uint64_t count, const atoll_operation& operation) const;
  // Scratch memory of at least `bytes`, aligned to a cache line, valid until the next call.
  std::span<std::byte> scratch(std::size_t bytes);

  const atoll_host& host;
  Team& team;
  Layout layout;
  Tuning tuning;
  LocalSync sync;
  Windows windows;

  // Arguments of move() and sum(). They are members so that small operations allocate nothing.
  std::vector<std::vector<Offer>> offers;  // indexed by local rank; move() clears them
  std::vector<Slice> slices;               // sum() clears them
  std::vector<const void*> parts;
  std::vector<double> factors;
  std::vector<void*> dsts;

 private:
  struct Free {
    void operator()(std::byte* memory) const noexcept;
  };
  std::unique_ptr<std::byte, Free> scratch_;
  std::size_t scratch_bytes_ = 0;
};

// Returns 1 if an operation of `ranks` ranks of this host that reads and writes `bytes` in all
// should use non-temporal stores, because the working set exceeds the caches: a cached store would
// first read the line that it overwrites. In-place operations should not ask: their lines are
// already in the cache.
int streaming(std::size_t bytes, int ranks);

// Sizes of this rank's src and dst in bytes.
struct Extents {
  std::size_t src;
  std::size_t dst;
};

// Collective over the ranks of this host: every rank copies what group.offers has for it into its
// dst. On return the data is complete, and no other rank reads this rank's buffers. Data in
// registered windows is copied once, other data twice. While this rank waits, it drives `exchange`.
void move(Group& group, const atoll_operation& operation, Extents extents,
          Exchange* exchange = nullptr);

// The op of partial sums: only the last step of an average divides.
inline std::int32_t partial_op(const atoll_operation& operation) {
  return operation.op == ATOLL_AVG ? ATOLL_SUM : operation.op;
}

struct Sum {
  std::int32_t op;
  std::int32_t divisor = 0;  // divisor of AVG; 0: the number of parts
  // Which ranks get the result of each slice, if their dst is in a registered window.
  enum class Push {
    no,
    all,
    root,
  } push = Push::no;
  int root = 0;  // local rank
  // Whether Slice::dst is the start of the reducer's dst, or any memory of the reducer.
  enum class Owners {
    elsewhere,
    in_dst,
  } owners_write = Owners::elsewhere;
};

// Collective over the ranks of this host: every reducer combines its slices of all src in rank
// order. With `push` the result goes to the slice's offset in the dst of all ranks or of the root,
// if those are in registered windows, and sum() returns true. Otherwise the result goes to the
// slice's own dst, and sum() returns false.
bool sum(Group& group, const atoll_operation& operation, Extents extents, const Sum& how,
         Exchange* exchange = nullptr);

// Size of the pieces into which `bytes` are cut when idle ranks share the work of others.
std::size_t piece_of_work(std::size_t bytes) noexcept;

}  // namespace atoll_collectives
