// The state that the parts of an engine share: options, mesh axes, lanes, units and the plan of a
// pass.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "atoll/optimizer.hpp"
#include "atoll/rank_set.hpp"
#include "core/errors.hpp"
#include "core/socket.hpp"
#include "fsdp/plan.hpp"
#include "fsdp/strategy.hpp"
#include "world/process_failure.hpp"
#include "world/world_internals.hpp"

namespace atoll_v1::atoll::fsdp {

// A save in progress (checkpoint/), which reads parameters and moments while training goes on.
class LiveReader {
 public:
  virtual ~LiveReader() = default;
  // Called before work that changes the unit is enqueued on `stream`.
  virtual void before_update(std::size_t unit, Stream& stream) = 0;
  // Blocks until nothing more is read. Throws the error of the reader.
  virtual void wait() = 0;
};

// The parameters of a unit that one collective moves. All have the same dtype, all are trainable or
// all are frozen, and all are quantized or none is. Storage::allocate() sets the views.
struct UnitBucket {
  DType dtype = DType::f32;  // type of the parameters as compute reads them
  bool trainable = true;
  bool quantized = false;  // true if ranks keep and send blocks of 8-bit integers (int8_blocks.hpp)
  BucketLayout layout;
  // Position of the bucket in the unit's parameter slot, in bytes.
  std::uint64_t gathered_offset = 0;
  // Position of the bucket in the unit's gradient slot, in f32 elements.
  std::uint64_t gradient_offset = 0;

  // This rank's part of the parameters: f32; `dtype` if the bucket is frozen; the bytes of the
  // blocks, as u8, if it is quantized.
  View master;
  View compute_copy;        // copy of the master parameters in `dtype`; empty if not needed
  View unsharded;           // parameters that stay unsharded; empty if units share buffers in turn
  View gradient;            // sharded gradient in f32
  View unsharded_gradient;  // gradient sum over micro batches; empty if units share buffers

  std::string label() const;  // name that is unique in the unit, such as "frozen f32"
  // Elements of `gradient`, also if the engine only plans memory.
  std::uint64_t gradient_elements() const { return trainable ? layout.shard_elements() : 0; }
};

struct UnitState {
  // The bucket that contains a parameter, and the position of the parameter in the bucket.
  struct Location {
    std::size_t bucket = 0;
    BucketSlot slot;
  };

  // Parameters without ParamSpec::dtype get `param_dtype`. Throws Error(invalid_argument) or
  // Error(unsupported), which name the unit and the invalid parameter.
  UnitState(std::string_view name, std::size_t index, std::vector<ParamSpec> params,
            DType param_dtype, std::uint64_t shards);
  // Returns the index in `params` of the parameter with this name; throws Error(not_found).
  std::size_t find(std::string_view param) const;

  std::string name;
  std::size_t index;  // index of the unit in Engine::units()
  std::vector<ParamSpec> params;
  std::vector<UnitBucket> buckets;
  std::vector<Location> locations;  // bucket and position of each parameter
  UnitSize size;
  View secondary_shard;  // bytes of this rank's secondary shard; empty without partial resharding
};

struct EngineSetup;
class Gathering;
class Reducing;
class PassState;

// The first and second moments of a bucket or of a part of a bucket; empty for an optimizer without
// moments.
struct Moments {
  View first, second;
};

// Gives src/fsdp access to private members of the public classes. References are valid as long as
// the engine exists.
struct EngineAccess {
  static std::unique_ptr<Unit> make_unit(std::unique_ptr<UnitState> state) {
    return std::unique_ptr<Unit>(new Unit(std::move(state)));
  }
  static UnitState& state(const Unit& unit) noexcept { return *unit.state_; }
  static EngineSetup& setup(const Engine& engine) noexcept;
  static Gathering& gathering(Engine& engine) noexcept;
  static Reducing& reducing(Engine& engine) noexcept;
  static PassState& pass(Engine& engine) noexcept;
  static const EngineLink& link(const Engine& engine) noexcept;
  // Do what the Engine functions of the same names do, but do not set EngineSetup::has_values.
  static void parameters_changed(Engine& engine, Stream& compute);
  static void refresh(Engine& engine);
  // Does the work of Engine::assign() on this rank alone, with refresh() above. `fill` returns
  // false to leave the segment as it is.
  static void assign(Engine& engine,
                     const std::function<bool(const Segment&, std::span<float>)>& fill);
  // Does the work of Optimizer::set_steps() on this rank alone.
  static void set_steps(Optimizer& optimizer, std::int64_t steps);
  static Moments moments(const Optimizer& optimizer, const Unit& unit, std::size_t bucket);
  static bool is_optimizer_of(const Engine& engine, const Optimizer& optimizer) noexcept;
};

inline UnitState& state_of(const Unit& unit) noexcept { return EngineAccess::state(unit); }

// State of OneThread: the World of an engine, and the thread that is inside a call of the engine.
struct EngineCalls {
  WorldLink world;
  // The thread that is inside a call of the engine; the default id if there is none.
  std::atomic<std::thread::id> thread{};
};

// Held during a call that uses the engine's streams. Throws Error(invalid_argument) if another
// thread is inside a call of the same engine: the order of their collectives could differ between
// ranks. Calls inside a call of the same thread, as from a callback, are allowed. Also throws it if
// the World of the engine has been destroyed.
class OneThread {
 public:
  OneThread(EngineCalls& calls, std::string_view call) {
    require(
        !calls.world.is_over(),
        "{}: the World of this engine has been destroyed: destroy engines and optimizers before "
        "their World",
        call);
    const std::thread::id self = std::this_thread::get_id();
    if (calls.thread.load(std::memory_order_relaxed) == self) return;
    std::thread::id nobody{};
    require(calls.thread.compare_exchange_strong(nobody, self, std::memory_order_acquire),
            "{}: another thread is inside a call of this engine, so ranks could see their calls in "
            "different orders: call the engine from one thread at a time",
            call);
    calls_ = &calls;
  }
  ~OneThread() {
    if (calls_) calls_->thread.store({}, std::memory_order_release);
  }
  OneThread(const OneThread&) = delete;
  OneThread& operator=(const OneThread&) = delete;

 private:
  EngineCalls* calls_ = nullptr;  // null if an outer call of this thread is in progress
};

// Memory with one element for each element of this rank's gradient shards, divided by unit and
// bucket. The part of a frozen bucket is empty.
using BucketParts = std::vector<std::vector<View>>;

// A state that Engine::add_state() has added.
struct OwnState {
  Buffer memory;
  BucketParts parts{};  // f32 values; empty if the state is not elementwise
  // For a state that is not elementwise: the number of its elements and, on ranks with a segment of
  // the parameter, the elements, by unit and parameter. Otherwise empty.
  std::vector<std::vector<std::uint64_t>> counts{};
  std::vector<std::vector<View>> wholes{};
};

// The constructor of Engine, add_unit(), seal(), add_state(), the constructor of Optimizer and
// use_groups() write this state. Afterwards the parts of the engine only read it, except
// `has_values`, `unfilled` and `calling`, and enqueue work on the scheduler.
struct EngineSetup {
  EngineSetup(const Mesh& mesh, Options options);

  bool sharded() const noexcept { return scheduler.shard_count() > 1; }
  bool replicated() const noexcept { return scheduler.replicate_count() > 1; }
  // Returns true if gradients are cast to another type before they are sent.
  bool casts_gradients() const noexcept { return options.precision.reduce != DType::f32; }
  // Looks at the address only, because the engine of `unit` may have been destroyed.
  bool has_unit(const Unit& unit) const noexcept {
    return std::ranges::any_of(units, [&](const auto& own) { return own.get() == &unit; });
  }
  UnitState& state(std::size_t unit) const noexcept { return state_of(*units[unit]); }
  World& world() const { return ranks.world(); }  // throws if the World has been destroyed
  // Throws the failure of the World or of a communicator of the engine. The engine calls this
  // before each pass and update, because a stream runs new work once a call has thrown its error.
  void check_failures() const {
    world().check();
    scheduler.check();
  }
  DeviceOps& ops() const noexcept { return options.device.ops(); }
  // Throw Error(invalid_argument) that names `call`, unless Engine::seal() has been called.
  // check_sealed() also throws it if the engine has no memory (Options::plan_only).
  void check_planned(std::string_view call) const;
  void check_sealed(std::string_view call) const;
  void begin_fill(const Segment& segment);  // stores the name of the parameter in `unfilled`
  // Throws Error(invalid_argument) that names `call`, while parameters have no values.
  void check_values(std::string_view call) const;
  // Throws Error(invalid_argument) that names `call`, while a PendingSave exists.
  void check_no_live_save(std::string_view call) const;
  // Call this before anything but a step of the Optimizer changes parameters or states. Blocks
  // until a save that runs beside training has read them.
  void end_live_save();
  // Ends the state in which a PendingSave exists. Stops the thread if it is still writing.
  void end_saving();
  // Fills the buffer with zeros. Blocks.
  void set_zero(const Buffer& buffer);

  // options.device is the scheduler's device, which may be a checker around the caller's device
  Options options;
  RankSet ranks;  // the ranks of the engine
  Sharding sharding;
  Scheduler scheduler;
  std::vector<std::unique_ptr<Unit>> units;
  bool sealed = false;
  bool has_values = false;  // true when parameters have been initialized, assigned or loaded
  // The parameter that assign(), import_weights() or load() is filling or failed to fill.
  std::string unfilled;
  EngineCalls calling{ranks.link()};
  PassPlan plan;
  std::map<std::string, OwnState, std::less<>> states;  // states of Engine::add_state(), by name
  // Settings of the optimizer for each parameter, in the order of units and their parameters. Empty
  // if the optimizer has not declared them.
  std::vector<ParamSettings> settings;
  // The save that runs beside training; null without one, and on ranks that write no file.
  std::shared_ptr<LiveReader> live_save;
  bool is_saving = false;  // true while a PendingSave exists
  // The folder of the last checkpoint, locked against other engines (SaveFolder). Lowest rank only.
  net::Fd saved_folder;
};

// Number of elements of this rank's gradient shards.
std::uint64_t gradient_elements(const EngineSetup& setup);
// Divides a buffer of gradient_elements() elements of type `dtype` into views by unit and bucket.
BucketParts cut_by_bucket(const EngineSetup& setup, const Buffer& memory, DType dtype);

// List the values that must be equal on all ranks of an engine, for agree().
std::vector<Declaration> declarations_of(const Mesh& mesh, const Options& options);
std::vector<Declaration> declarations_of(const std::vector<std::unique_ptr<Unit>>& units,
                                         const std::vector<std::string>& order);
std::vector<Declaration> declarations_of(const OptimizerOptions& options);

// Writes values into this rank's parts of parameters and states, in the type in which the engine
// keeps them. Blocks until the device has them.
class SegmentWriter {
 public:
  explicit SegmentWriter(Stream& stream) : stream_(stream) {}
  // Writes the elements of a segment from element `at` of the segment on. `at` must be a multiple
  // of 64 if the parameter is quantized.
  void write(const Segment& segment, std::uint64_t at, std::span<const float> values);
  void write(View into, std::span<const float> values);

 private:
  Stream& stream_;
  std::vector<std::byte> stored_;
};

}  // namespace atoll_v1::atoll::fsdp
