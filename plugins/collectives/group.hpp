// Group: a communicator as the collectives see it, that is, its ranks, the connections between
// them, and the memory that the ranks of a host share.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <vector>

#include "atoll/plugin.h"
#include "collectives/exchange.hpp"
#include "collectives/layout.hpp"
#include "collectives/shared_memory/local_sync.hpp"
#include "collectives/shared_memory/windows.hpp"
#include "collectives/tuning.hpp"
#include "device/cpu/reduce.hpp"

namespace atoll_collectives {

namespace kernels = atoll_v1::atoll::cpu;
using kernels::Stores;

// Copies `bytes` from `src` to `dst`; does nothing if `dst` equals `src`.
inline void copy(std::byte* dst, const std::byte* src, std::size_t bytes,
                 Stores stores = Stores::cached) {
  if (bytes == 0 || dst == src) return;
  if (stores == Stores::streaming) return kernels::copy_streaming(dst, src, bytes);
  std::memcpy(dst, src, bytes);
}

// Reduces arrays of the operation's dtype with `op`: the op of the operation, or partial_op().
inline void reduce_arrays(const atoll_operation& operation, std::int32_t op,
                          kernels::Reduction arrays) {
  if (arrays.count == 0) return;
  arrays.dtype = static_cast<atoll_v1::atoll::DType>(operation.dtype);
  arrays.op = static_cast<atoll_v1::atoll::ReduceOp>(op);
  kernels::reduce_into(arrays);
}

// Data of up to this size goes through the staging buffers even if it is in a registered window: an
// extra copy costs less than a second synchronization.
constexpr std::size_t small_bytes = 2 * 1024;

// A range of a rank's src or dst that other ranks of its host copy into their own dst.
struct Offer {
  enum class From {
    src,
    dst
  } from;
  std::size_t offset;  // offset of the range in the src or dst of the providing rank
  std::size_t to;      // offset in the dst of the receiving rank
  std::size_t bytes;
  int receiver;  // local rank that copies the range; `everybody` means all ranks of the host
};
constexpr int everybody = -1;

// A range of src that is reduced over the ranks of a host.
struct Slice {
  std::size_t offset;  // offset of the slice in src
  std::size_t bytes;
  int reducer;  // local rank that reduces; `everybody` means that each rank reduces for itself
  std::byte* dst;
};

// A backend owns three objects for each open communicator: the Team, the shared memory transport
// (null if this rank is alone on its host), and the Group, which it passes to the functions of
// collectives.hpp.
struct Group {
  Group(const atoll_group& group, Team& team_, ShmTransport* shm)
      : team(team_),
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

  // Returns scratch memory of `bytes` bytes, aligned to a cache line. The memory is valid until the
  // next call of scratch().
  std::span<std::byte> scratch(std::size_t bytes) { return scratch_.get(bytes); }

  // Returns which stores an operation should use. `bytes` is the total that the ranks of this host
  // read and write. If this working set exceeds the caches, a cached store would first read the
  // line that it overwrites. In-place operations should always use cached stores, because the lines
  // that they write are already in the cache.
  Stores stores_for(std::size_t bytes) const;

  // Adds an offer, which is a range that the rank `local` lets other ranks of its host copy, to the
  // arguments of the next move().
  void offer(int local, const Offer& one) {
    offers[static_cast<std::size_t>(local)].push_back(one);
  }

  Team& team;
  Layout layout;
  Tuning tuning;
  LocalSync sync;
  Windows windows;

  // Arguments and temporary arrays of move() and sum(). They are members, so that small operations
  // need not allocate.
  std::vector<std::vector<Offer>> offers;  // ranges that each local rank offers; move() clears them
  std::vector<Slice> slices;               // slices that sum() reduces; sum() clears them
  std::vector<const void*> parts;
  std::vector<double> factors;
  std::vector<void*> dsts;

 private:
  // Memory that grows when more is needed, and that is registered with the transports of the team.
  class Scratch {
   public:
    explicit Scratch(const Team& team) : team_(team) {}
    Scratch(const Scratch&) = delete;
    Scratch& operator=(const Scratch&) = delete;
    ~Scratch();
    std::span<std::byte> get(std::size_t bytes);

   private:
    struct Free {
      void operator()(std::byte* memory) const noexcept;
    };
    void drop();

    const Team& team_;
    std::unique_ptr<std::byte, Free> memory_;
    std::size_t bytes_ = 0;
  };
  Scratch scratch_{team};
};

// Sizes of this rank's src and dst in bytes.
struct Extents {
  std::size_t src;
  std::size_t dst;
};

// Collective over the ranks of this host. Every rank copies the ranges in group.offers that name it
// as receiver into its dst. On return this rank's dst is complete, and no other rank still reads
// this rank's buffers. Data in registered windows is copied once, other data twice. While this rank
// waits, it makes progress on `exchange`, unless that is null.
void move(Group& group, const atoll_operation& operation, Extents extents,
          Exchange* exchange = nullptr);

// Returns the op for partial results. It differs from the operation's op only for an average:
// partial results are sums, and only the last step divides.
inline std::int32_t partial_op(const atoll_operation& operation) {
  return operation.op == ATOLL_AVG ? ATOLL_SUM : operation.op;
}

// How sum() reduces the slices, and where it writes the results.
struct Sum {
  std::int32_t op;
  // Selects the ranks that receive the result of each slice in their dst.
  enum class Push {
    no,
    all,
    root,
  } push = Push::no;
  int root = 0;  // local rank that receives the results if push is `root`
  // Location of Slice::dst, the memory to which the reducer of a slice writes. With `in_dst` it is
  // the start of the reducer's dst, so that other ranks can find it. With `elsewhere` it may be any
  // memory of the reducer.
  enum class Owners {
    elsewhere,
    in_dst,
  } owners_write = Owners::elsewhere;
};

// Collective over the ranks of this host. The reducer of each slice reduces that range of every
// rank's src, in rank order, and writes the result to the same offset of the dst of each rank that
// how.push selects, or else to Slice::dst. For `all`, every slice must have one reducer; if other
// ranks cannot access some dst, the results go through the staging buffers. For `root`, the root
// reduces every slice if other ranks cannot access its dst.
void sum(Group& group, const atoll_operation& operation, Extents extents, const Sum& how,
         Exchange* exchange = nullptr);

// When ranks outnumber cores, running ranks also do the work of waiting ranks. The work is cut into
// jobs; returns the size of a job for work on `bytes` bytes.
std::size_t piece_of_work(std::size_t bytes) noexcept;

}  // namespace atoll_collectives
