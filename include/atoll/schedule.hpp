// Flat buckets of tensors, and a scheduler that runs their collectives beside compute. The FSDP
// engine is built on both, and a trainer can use them without the engine.
#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "atoll/communicator.hpp"
#include "atoll/trace.hpp"

namespace atoll_v1::atoll {

// The part of a bucket that holds one tensor, in elements.
struct BucketSlot {
  std::uint64_t offset = 0;
  std::uint64_t count = 0;
};

// Several tensors in one flat allocation. Each tensor has an aligned offset that does not depend on
// the number of shards. The end is padded so that all shards have the same number of elements,
// which is a multiple of bucket_granularity.
struct ATOLL_API BucketLayout {
  std::vector<BucketSlot> slots;  // one slot per tensor, in the order given to plan_bucket()
  std::uint64_t elements = 0;     // number of elements of the bucket, including padding
  std::uint64_t shards = 1;

  std::uint64_t shard_elements() const noexcept { return elements / shards; }
  std::vector<BucketSlot> gaps() const;  // padding: parts without a tensor, ordered by offset
};

// Alignment of tensors, in elements; 256 bytes in f32.
inline constexpr std::uint64_t bucket_alignment = 64;
// Each shard has a multiple of this number of elements, because the gradient norm adds squares in
// blocks of this size.
inline constexpr std::uint64_t bucket_granularity = 4096;

// Lays out tensors with the given element counts in one bucket. Throws Error(invalid_argument) for
// zero shards and for more than 2^60 elements.
ATOLL_API BucketLayout plan_bucket(std::span<const std::uint64_t> counts, std::uint64_t shards);

// Tensors of one dtype in several buckets. Consecutive tensors share a bucket.
struct BucketPlan {
  struct Location {
    std::size_t bucket = 0;
    BucketSlot slot;  // position of the tensor in the bucket
  };
  std::vector<BucketLayout> buckets;
  std::vector<Location> locations;  // the bucket and slot of each tensor, by tensor
};

// Fills buckets in the order of `counts`. A bucket has at most `max_bytes`, padding included,
// unless it holds a single larger tensor: tensors are never split. List tensors in the order in
// which their gradients become complete, so that buckets become complete in order as well. Throws
// the same errors as plan_bucket().
ATOLL_API BucketPlan plan_buckets(std::span<const std::uint64_t> counts, DType dtype,
                                  std::uint64_t max_bytes, std::uint64_t shards = 1);

// Returns the bucket size at which a collective over `axis` spends at most `latency_share` of its
// time on latency: (1 - latency_share) / latency_share * latency * bandwidth, rounded up to a
// multiple of 1 MiB and clamped to [least_bucket_bytes, most_bucket_bytes]. Smaller buckets waste
// bandwidth. Larger buckets start later, and nothing overlaps with the last bucket of a backward.
// Returns default_bucket_bytes for an axis of one rank or with unknown rate. The result is the same
// on all ranks.
ATOLL_API std::uint64_t bucket_bytes(const Axis& axis, double latency_share = 0.05);
inline constexpr std::uint64_t least_bucket_bytes = std::uint64_t{1} << 20;
inline constexpr std::uint64_t most_bucket_bytes = std::uint64_t{128} << 20;
inline constexpr std::uint64_t default_bucket_bytes = std::uint64_t{32} << 20;

// The three kinds of traffic in sharded training. Each lane has its own stream and communicator, so
// that a late reduction never delays a gather. On devices with stream priorities, `gather` and
// `reduce` have a higher priority than compute, since compute waits for the next gather and for the
// memory that reductions free; `replicate` has the priority of compute, since only the optimizer
// waits for this lane.
enum class Lane {
  gather,    // all-gathers over the shard axis or over groups inside it
  reduce,    // reduce-scatters over the shard axis
  replicate  // all-reduces over the replicate axis
};

// An event on a lane. It also records how many collectives the scheduler had issued on all lanes
// before it, which tells for which collectives of the lane a wait was.
class LaneEvent : public Event {
 public:
  LaneEvent() = default;
  // Wraps an event that is not on a lane. A wait for it is not recorded as a wait for a collective.
  LaneEvent(Event event) : Event(std::move(event)) {}  // NOLINT(google-explicit-constructor)
  LaneEvent(Event event, Lane lane, std::uint64_t through)
      : Event(std::move(event)), lane_(lane), through_(through) {}
  Lane lane() const noexcept { return lane_; }
  // Returns the number of collectives that the scheduler had issued on all lanes before the event.
  std::uint64_t through() const noexcept { return through_; }

 private:
  Lane lane_ = Lane::gather;
  std::uint64_t through_ = 0;
};

// How much the scheduler records for traces.
enum class Recording {
  collectives,  // records collectives, and the waits of compute for collectives
  work          // also records local work on lanes and spans between begin_work() and end_work()
};

struct SchedulerOptions {
  Device device = Device::cpu();
  // The group of ranks inside the shard axis that all_gather_secondary() uses; empty when there is
  // no secondary group.
  Axis secondary{};
  // Name of the backend; empty means Config::backend, or else the best common backend.
  std::string backend{};
  // An axis of all ranks that construct a scheduler together. If it is set, the communicators of
  // the lanes on GPUs are split from one communicator of these ranks. If it is empty, each
  // communicator bootstraps separately.
  Axis root{};
  // How many compute units of a GPU gathers may take from compute, and how many the lanes reduce
  // and replicate. Sums that the backend computes need some. Sums that the library builds, because
  // the backend lacks them, begin with an exchange, which copy engines can do: `none` suits them.
  ComputeUnits gather_units = ComputeUnits::none;
  ComputeUnits reduce_units = ComputeUnits::few;
};

// Runs collectives beside compute on three lanes.
//
// One thread makes all calls, in the same order on all ranks, and calls return at once. An
// operation starts after its `after` event and after earlier operations on its lane. Results may be
// used after a wait for the returned Work, or for an event from record() on the lane, which covers
// all operations before it; a caller that waits for such an event assigns the Work to std::ignore.
//
// Dtypes, shapes, aliasing rules and errors are those of Communicator, and every call of a
// Scheduler that was moved from throws Error(invalid_argument). Reductions sum; they never average.
// On an axis of one rank a collective is a copy, or nothing if src and dst are the same. `label`
// names an operation in take_records(), such as a unit; ranks on CPU memory compare it.
class ATOLL_API Scheduler {
 public:
  // Collective over all ranks of the mesh: opens the communicators. An axis without ranks means
  // this rank alone. If ranks pass axes that do not belong together, all ranks throw the
  // Error(mismatch) of Communicator::open(). A DDP trainer passes {} and mesh.axis("world"), so
  // that all_reduce() sums over all ranks whatever mesh was planned.
  Scheduler(const Axis& shard, const Axis& replicate, SchedulerOptions options = {});
  Scheduler(Scheduler&&) noexcept;
  Scheduler& operator=(Scheduler&&) noexcept;
  ~Scheduler();

  // Gathers over the shard axis, on the lane `gather`.
  [[nodiscard]] Work all_gather(ConstView src, View dst, const Event& after,
                                std::string_view label = {});
  // Gathers over SchedulerOptions::secondary, on the lane `gather`. Throws Error(invalid_argument)
  // if the scheduler has no secondary group.
  [[nodiscard]] Work all_gather_secondary(ConstView src, View dst, const Event& after,
                                          std::string_view label = {});
  // Sums over the shard axis, on the lane `reduce`.
  [[nodiscard]] Work reduce_scatter(ConstView src, View dst, const Event& after,
                                    std::string_view label = {});
  // Sums over the replicate axis in place, on the lane `replicate`.
  [[nodiscard]] Work all_reduce(View data, const Event& after, std::string_view label = {});
  // Enqueues local work, such as a cast, in order on a lane. The returned event happens when the
  // work is complete.
  LaneEvent run(Lane lane, const Event& after, const std::function<void(Stream&)>& enqueue,
                std::string_view label = {});
  // Returns an event that happens when all work enqueued on the lane so far is done.
  LaneEvent record(Lane lane);
  // Makes a compute stream wait for a lane, and records the wait as exposed communication, labelled
  // with the lane and `label`. Work::wait() also makes a stream wait, but records nothing.
  void wait(Stream& compute, const LaneEvent& event, std::string_view label = {});

  // begin_work() and end_work() record the work that is enqueued on a stream between the two calls,
  // as a span labelled with the arguments `what` and `subject`. Both do nothing unless the
  // scheduler records with Recording::work.
  Stamp begin_work(Stream& stream);
  void end_work(Stream& stream, const Stamp& begin, std::string_view what,
                std::string_view subject = {});
  void set_recording(Recording recording);
  // Returns the records that became complete since the last call. If every stream that waits for a
  // lane has been synchronized before, no record is missing and every wait time is final. The
  // scheduler keeps the newest 262,144 records between calls, and 16,384 before the first call.
  TraceLog take_records();

  // Allocates memory that the backends of the given lanes access without copies. Collective over
  // all ranks of the mesh, in the same order and with the same size.
  Buffer allocate(std::size_t bytes, std::initializer_list<Lane> lanes);

  // Returns the bytes of device memory that a sum on a lane needs besides its buffers when the
  // library builds the sum from other collectives; 0 on the lane `gather`. `count` is the number of
  // elements of dst on the lane `reduce`, and of data on the lane `replicate`.
  std::uint64_t scratch_bytes(Lane lane, std::uint64_t count, DType dtype) const;
  // Allocates `bytes` of scratch memory for a lane in advance, as Communicator::reserve_scratch()
  // does; does nothing if its axis has one rank.
  void reserve_scratch(Lane lane, std::uint64_t bytes);

  Stream& stream(Lane lane);
  // Returns SchedulerOptions::device; with ATOLL_CHECK=lifetimes, a checker that wraps the device.
  // Streams and memory given to the scheduler must come from this device.
  const Device& device() const;
  int shard_count() const;
  int replicate_count() const;
  int shard_index() const;
  int replicate_index() const;
  // Returns the backend of the lane `gather`; if its axis has one rank, that of the lane
  // `replicate`; "none" if both axes have one rank.
  std::string_view backend() const;
  void synchronize();  // blocks until all lanes are idle; throws the first failure
  // Throws the error with which a communicator of the scheduler has ended. Does not block.
  void check() const;

 private:
  struct ATOLL_LOCAL Impl;
  Implementation<std::unique_ptr<Impl>> impl_;
};

}  // namespace atoll_v1::atoll
