// Flat buckets and the lanes that move them beside compute. The FSDP engine is built on this; a
// trainer of its own can use it alone.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "atoll/communicator.hpp"

namespace atoll_v1::atoll {

// Where one tensor lies in a bucket, in elements.
struct BucketSlot {
  std::uint64_t offset = 0;
  std::uint64_t count = 0;
};

// Several tensors in one flat allocation: each at an aligned offset that does not depend on the
// number of shards, the whole padded so that it divides evenly into shards of whole norm blocks.
struct BucketLayout {
  std::vector<BucketSlot> slots;  // in the order given
  std::uint64_t elements = 0;     // padded
  std::uint64_t shards = 1;

  std::uint64_t shard_elements() const noexcept { return elements / shards; }
  // The parts that belong to no tensor, ascending.
  std::vector<BucketSlot> gaps() const;
};

inline constexpr std::uint64_t bucket_alignment = 64;  // elements; 256 bytes of f32
inline constexpr std::uint64_t bucket_granularity =
    4096;  // elements; shard boundaries are multiples

// Throws Error(invalid_argument) for zero shards.
BucketLayout plan_bucket(std::span<const std::uint64_t> counts, std::uint64_t shards);

// The three kinds of traffic of sharded training. Each has a stream and a communicator of its own,
// so that a late reduction never holds up a gather.
enum class Lane {
  gather,
  reduce,
  outer
};

struct SchedulerOptions {
  Device device = Device::host();
  std::string backend{};  // "": config().backend, else the best common one
};

// Runs collectives beside compute: `gather` and `reduce` over the shard axis, `outer` over the
// replicate axis. Every call is made by one thread, in one order on all ranks, and returns at once.
// `after` is what must have happened before the operation may start; dtypes, shapes, aliasing and
// errors are those of Communicator. A Work may be dropped: the lane's next event covers it. An axis
// of one rank costs nothing: its collectives are copies, or nothing where src and dst are the same.
class Scheduler {
 public:
  // Opens the communicators; collective over all ranks of the mesh.
  Scheduler(const Axis& shard, const Axis& replicate, SchedulerOptions options = {});
  Scheduler(Scheduler&&) noexcept;
  Scheduler& operator=(Scheduler&&) noexcept;
  ~Scheduler();

  // Over the shard axis, on the lane `gather`.
  Work all_gather(ConstView src, View dst, const Event& after);
  // Sum over the shard axis, on the lane `reduce`.
  Work reduce_scatter(ConstView src, View dst, const Event& after);
  // Sum over the replicate axis, in place, on the lane `outer`.
  Work all_reduce(View data, const Event& after);
  // Local work (casts, sums) in the order of a lane; the event is its completion.
  Event run(Lane lane, const Event& after, const std::function<void(Stream&)>& enqueue);

  Stream& stream(Lane lane) noexcept;
  const Device& device() const noexcept;
  int shard_count() const noexcept;
  int replicate_count() const noexcept;
  int shard_index() const noexcept;
  int replicate_index() const noexcept;
  std::string_view backend() const noexcept;  // of the first communicator that is open; "none"
  void synchronize();                         // all lanes; throws the first failure

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace atoll_v1::atoll
