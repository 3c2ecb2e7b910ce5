// Flat buckets and the lanes that move them beside compute. The FSDP engine is built on this; a
// trainer of its own can use it alone.
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

// Throws Error(invalid_argument) for zero shards, and for more elements than 2^60.
BucketLayout plan_bucket(std::span<const std::uint64_t> counts, std::uint64_t shards);

// Tensors of one dtype in several buckets, in the order given: neighbours share one.
struct BucketPlan {
  struct Place {
    std::size_t bucket = 0;
    BucketSlot slot;  // in that bucket
  };
  std::vector<BucketLayout> buckets;
  std::vector<Place> places;  // by tensor
};

// Takes tensors into a bucket as long as it has at most `max_bytes`, padding included; a tensor
// that needs more has a bucket to itself, since none is split. List tensors in the order in which
// their gradients become complete, so that buckets do, too. Errors are those of plan_bucket.
BucketPlan plan_buckets(std::span<const std::uint64_t> counts, DType dtype, std::uint64_t max_bytes,
                        std::uint64_t shards = 1);

// Bytes of a bucket whose collective over `axis` spends at most `latency_share` of its time on
// latency: (1 - share) / share * latency * bandwidth, in whole MiB, between the bounds below.
// Smaller buckets waste bandwidth, larger ones start late: the last bucket of a backward hides
// behind nothing. The same on all ranks. An axis without a rate, or of one rank, gets the default.
std::uint64_t bucket_bytes(const Axis& axis, double latency_share = 0.05);
inline constexpr std::uint64_t least_bucket_bytes = std::uint64_t{1} << 20;
inline constexpr std::uint64_t most_bucket_bytes = std::uint64_t{128} << 20;
inline constexpr std::uint64_t default_bucket_bytes = std::uint64_t{32} << 20;

// The three kinds of traffic of sharded training. Each has a stream and a communicator of its own,
// so that a late reduction never holds up a gather. Where a device has priorities, `gather` and
// `reduce` go before compute and `outer` beside it: compute waits for the next gather, and the next
// whole gradient for the memory of a reduction, while nothing but the optimizer waits for `outer`.
enum class Lane {
  gather,
  reduce,
  outer
};

// A point in the work of a lane, and which collectives lie before it.
class LaneEvent : public Event {
 public:
  LaneEvent() = default;
  // Of no lane: who waits for it is not said to wait for a collective.
  LaneEvent(Event event) : Event(std::move(event)) {}  // NOLINT(google-explicit-constructor)
  LaneEvent(Event event, Lane lane, std::uint64_t through)
      : Event(std::move(event)), lane_(lane), through_(through) {}
  Lane lane() const noexcept { return lane_; }
  std::uint64_t through() const noexcept { return through_; }  // collectives of all lanes so far

 private:
  Lane lane_ = Lane::gather;
  std::uint64_t through_ = 0;
};

// What the scheduler writes down, besides collectives and waits, which it always does.
enum class Recording {
  collectives,
  work  // local work on the lanes and what begin_work() and end_work() mark, too
};

struct LaneBytes {
  std::uint64_t gather = 0, reduce = 0, outer = 0;
};

struct SchedulerOptions {
  Device device = Device::host();
  // A group inside the shard axis to gather in as well, on the lane `gather`; empty: none.
  Axis inner{};
  std::string backend{};  // "": config().backend, else the best common one
  // The ranks of all groups of both axes, which make a scheduler now: on GPUs the communicators of
  // the lanes are made out of one of these. Empty: each has a bootstrap of its own.
  Axis root{};
  // How many bytes of a lane's operations may be in flight: from the start of an operation until
  // the event given to release(), by the larger of src and dst. An operation that would exceed them
  // starts behind the oldest releases that make room, by an event edge; the host goes on. One that
  // is larger than the limit runs alone. 0: no limit, and nothing to release.
  LaneBytes max_in_flight{};
};

// Runs collectives beside compute: `gather` and `reduce` over the shard axis, `outer` over the
// replicate axis. Every call is made by one thread, in one order on all ranks, and returns at once.
// `after` is what must have happened before the operation may start; dtypes, shapes, aliasing and
// errors are those of Communicator. A Work may be dropped: the lane's next event covers it. An axis
// of one rank costs nothing: its collectives are copies, or nothing where src and dst are the same.
// `label` says what an operation is for, such as the name of a unit, in what take_records() tells.
class Scheduler {
 public:
  // Opens the communicators; collective over all ranks of the mesh. An axis without ranks is that
  // of this rank alone: a DDP trainer passes {} and mesh.axis("world"), whatever mesh was planned,
  // and all_reduce sums over all ranks.
  Scheduler(const Axis& shard, const Axis& replicate, SchedulerOptions options = {});
  Scheduler(Scheduler&&) noexcept;
  Scheduler& operator=(Scheduler&&) noexcept;
  ~Scheduler();

  // Over the shard axis, on the lane `gather`.
  Work all_gather(ConstView src, View dst, const Event& after, std::string_view label = {});
  // Over the inner group, on the lane `gather`.
  Work all_gather_inner(ConstView src, View dst, const Event& after, std::string_view label = {});
  // Sum over the shard axis, on the lane `reduce`.
  Work reduce_scatter(ConstView src, View dst, const Event& after, std::string_view label = {});
  // Sum over the replicate axis, in place, on the lane `outer`.
  Work all_reduce(View data, const Event& after, std::string_view label = {});
  // Local work (casts, sums) in the order of a lane; the event is its completion.
  LaneEvent run(Lane lane, const Event& after, const std::function<void(Stream&)>& enqueue,
                std::string_view label = {});
  // A point behind everything that was put on the lane so far.
  LaneEvent record(Lane lane);
  // Makes a stream of compute wait for a lane: exposed communication, which is written down, with
  // the name of the lane before the label. Work::wait orders as well, and is not written down.
  void wait(Stream& compute, const LaneEvent& event, std::string_view label = {});

  // Marks work on a stream as a span, from one call to the other; nothing without Recording::work.
  // The label is `what` and `subject` with a space between.
  Stamp begin_work(Stream& stream);
  void end_work(Stream& stream, const Stamp& begin, std::string_view what,
                std::string_view subject = {});
  void set_recording(Recording recording) noexcept;
  // What has been written down since the last call and is complete. After synchronize() of every
  // stream that waits, that is all of it, and waited_ns are final. The newest 262,144 records are
  // kept until somebody asks; before the first call 16,384.
  TraceLog take_records();

  // The memory of the lane's oldest operation that was not released yet is free after `after`: what
  // it gathered has been used, what it reduced has been read. `after` may only depend on what was
  // enqueued before this call, so that lanes never wait for each other in a circle. On a lane with
  // a limit each operation is released, before the first one that needs its room is called: that
  // one throws Error(invalid_argument) otherwise, and so does a release without an operation.
  void release(Lane lane, const Event& after);

  // Memory that the backends of these lanes handle without copies: collective over all ranks of the
  // mesh, in one order and with one size on all of them.
  Buffer allocate(std::size_t bytes, std::initializer_list<Lane> lanes);

  // Device memory that sums of `count` elements on a lane take beside their buffers, where the
  // library builds them: Communicator::scratch_bytes, of dst for the lane `reduce`, of data for
  // `outer`, 0 for `gather`.
  std::uint64_t scratch_bytes(Lane lane, std::uint64_t count, DType dtype) const;
  void reserve_scratch(Lane lane, std::uint64_t bytes);  // before the first operation

  Stream& stream(Lane lane) noexcept;
  // What all streams and memory that meet the lanes come from: the device of the options, or, where
  // ATOLL_CHECK=lifetimes asks for it, the same under a checker.
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

// A few buffers that take turns: written by one stream, read by a lane, written again. With K of
// them K - 1 may still be read while one is written, and nobody allocates.
class Rotation {
 public:
  // Error(invalid_argument) without buffers.
  explicit Rotation(std::vector<Buffer> buffers);
  // The next in turn, once its last use is over: `writer` waits, the host does not. Its contents
  // are those of that use. Error(invalid_argument) where it was not released since its last turn.
  const Buffer& next(Stream& writer);
  // The earliest buffer handed out and not released yet is free after `after`.
  // Error(invalid_argument) where there is none.
  void release(const Event& after);

 private:
  struct Turn {
    Buffer buffer;
    Event free{};
  };
  std::vector<Turn> turns_;
  std::uint64_t taken_ = 0, released_ = 0;
};

}  // namespace atoll_v1::atoll
