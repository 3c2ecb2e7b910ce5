// Fully sharded data parallel training. Parameters, gradients and optimizer states are sharded over
// an axis of a mesh. The engine gathers (unshards) the parameters of a unit shortly before compute
// uses them, and reduces gradients as soon as they are complete. Both overlap with compute.
//
//   fsdp::Engine engine(mesh, {.strategy = fsdp::Strategy::hybrid_shard});
//   fsdp::Unit& block = engine.add_unit("layers.0", specs);  // specs: a ParamSpec per parameter
//   engine.seal({"layers.0"});                             // the order of the units in forward
//   engine.initialize(/*seed=*/1);
//   auto pass = engine.begin({}, compute);
//   { auto w = pass.forward(block);  layer(x, w["weight"]); }
//   { auto w = pass.backward(block); auto g = w.grad("weight"); ... }
//
// Gradients are summed over ranks and micro batches: divide the loss by the global number of
// samples or tokens. With GradientScale::average (Options::gradients) the sum is divided by the
// number of ranks, but not by the number of micro batches.
//
// A trainer that computes on the CPU in its own thread, not in tasks of the compute stream, must
// call compute.synchronize() after each scope opens and after wait_gradients(). Otherwise it reads
// parameters and gradients that have not arrived. Options::synchronous makes these calls.
//
// All ranks must pass the same options, units, order and seed. The constructor, seal(),
// initialize(), begin(), add_state(), Optimizer and its functions step() and set_steps() compare
// these values between ranks. If a value differs, every rank throws Error(mismatch), which names
// the first difference and two ranks. If one of these calls, or a callback of assign() or visit(),
// fails on one rank, all ranks throw that error.
//
// If the mesh has axes that the engine does not use (Options::axes), the constructor compares all
// ranks of the mesh, and the other calls compare only the ranks of one engine: units, seed and
// micro batches may differ along the other axes. Each engine clips by the norm of its
// gradients.
//
// Threads and order: one thread at a time calls the engine, its passes, scopes and optimizer; a
// call during a call of another thread throws Error(invalid_argument). Another thread may take over
// after scheduler().synchronize(). All ranks make the same calls in the same order. Compute is
// enqueued on the stream given to begin(). Calls return without waiting for devices or peers,
// except where a comment says that they block.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "atoll/schedule.hpp"

namespace atoll_v1::atoll::fsdp {

// How parameters, gradients and optimizer states are sharded. Each enumerator states the bytes per
// rank for P parameters on n ranks (n = r replicas x s shards), with bf16 compute, f32 masters and
// gradients, and AdamW's two f32 moments. If parameters or gradients are sharded, buffers for one
// or two unsharded units are needed in addition.
enum class Strategy {
  no_shard,         // replicates everything and all-reduces gradients (DDP): 18 P bytes
  shard_optimizer,  // shards masters and moments over all ranks (ZeRO-1): 6 P + 12 P / n bytes
  shard_grad,       // shards masters, moments and gradients (ZeRO-2): 2 P + 16 P / n bytes
  full_shard,       // shards parameters too (ZeRO-3): 16 P / n bytes
  hybrid_shard,     // full_shard inside the shard axis, replicated across it: 16 P / s bytes
  // shard_grad inside the shard axis, replicated across it: 2 P + 16 P / s bytes
  hybrid_shard_grad,
};
ATOLL_API std::string_view name(Strategy strategy) noexcept;
// Returns the strategy with this name; throws Error(invalid_argument) for an unknown name.
ATOLL_API Strategy strategy_from_name(std::string_view name);
// Returns all strategies, in the order of the enumerators.
ATOLL_API std::vector<Strategy> every_strategy();

// How gradients accumulate over the micro batches of a step.
enum class Accumulation {
  automatic,  // uses `local` for no_shard and shard_optimizer, and `shard` for other strategies
  shard,      // reduces each micro batch over the shard axis, then their sum across replicas
  local,      // keeps unsharded f32 gradients (4 P bytes); reduces only in the last micro batch
};
// Returns "auto", "shard" or "local".
ATOLL_API std::string_view name(Accumulation accumulation) noexcept;
// Returns the value with this name; throws Error(invalid_argument) for an unknown name.
ATOLL_API Accumulation accumulation_from_name(std::string_view name);

// How the gradients of all ranks and micro batches form the gradient that an optimizer reads.
enum class GradientScale {
  sum,  // the sum over all ranks and micro batches
  // This sum divided by the number of ranks (replicas x shards). For a mean over micro batches as
  // well, divide the loss by the number of micro batches.
  average,
};

struct Precision {
  // Type that gathers send and compute reads: f32, bf16 or f16. Gradients that are computed through
  // f16 need a loss scale, because small values round to 0.
  DType param = DType::f32;
  // The type in which gradients are sent: f32 or bf16. With bf16 each level of a sum adds in f32
  // and rounds once. Compute writes gradients in f32, and optimizers read gradients in f32.
  DType reduce = DType::f32;
};

// The names of the mesh axes that an engine uses.
struct EngineAxes {
  std::string replicate = "replicate";  // replica axis; a mesh without this axis has one replica
  std::string shard = "shard";
};

struct Options {
  Strategy strategy = Strategy::hybrid_shard;
  Accumulation accumulation = Accumulation::automatic;
  // `average` multiplies each final gradient shard by 1 / ranks, rounded to f32, in one pass over
  // the shard. If the sums of two strategies are equal bit by bit, so are their averages.
  GradientScale gradients = GradientScale::sum;
  Precision precision{};
  // Partial resharding (FSDP2: reshard_after_forward = N). After forward a unit stays sharded over
  // groups of this many neighbouring ranks of the shard axis, and backward gathers inside the
  // group. 1 keeps whole parameters on every rank; 0 turns partial resharding off. The number must
  // divide the size of the shard axis. It has no effect when parameters stay unsharded between
  // passes.
  int secondary_shards = 0;
  int prefetch = 1;        // number of units to gather ahead of compute
  int reduce_buffers = 2;  // number of buffers for the unsharded gradients of units
  // Device bytes that the memory plan of seal() may use, excluding optimizer and activations; 0
  // means no limit.
  std::uint64_t memory_bytes = 0;
  // The engine is made for Engine::memory() alone: seal(), an Optimizer and add_state() plan their
  // memory and allocate none. Calls that need it throw Error(invalid_argument).
  bool plan_only = false;
  // The engine uses these two axes of the mesh and leaves the others, such as an axis for tensor
  // parallelism, to the caller: each coordinate on the other axes has a separate engine, whose
  // ranks are Mesh::sub({axes.replicate, axes.shard}).
  EngineAxes axes{};
  Device device = Device::cpu();
  // Name of the backend; empty means Config::backend, or else the best common backend.
  std::string backend{};
  // How many compute units of a GPU gathers may take from compute. With `none`, copy engines run
  // them where the hardware can. They also run the exchanges of reductions whose sums the library
  // computes (Precision::reduce of 16 bits, deterministic mode). Whether `few` is faster depends on
  // the machine, so measure it.
  ComputeUnits gather_units = ComputeUnits::none;
  // For trainers that compute on the CPU in their own thread. When true, Pass::forward(),
  // Pass::backward() and Engine::wait_gradients() block until the compute stream has reached them,
  // so the caller may read parameters and write gradients directly until the scope ends. Gathers
  // and reductions of other units still run beside the caller's compute. On devices other than
  // CPUs, the constructor throws Error(invalid_argument).
  bool synchronous = false;
};

// Distribution of a parameter's initial values: normal(mean, deviation). Each value is computed
// from (seed, unit name, parameter name, element), so it does not depend on the mesh or on the
// number of ranks.
struct Init {
  float mean = 0;           // mean of the normal distribution; must be finite
  float deviation = 0.02f;  // standard deviation; must be finite and at least 0
};

struct ATOLL_API ParamSpec {
  std::string name{};  // unique in the unit; UTF-8 without control characters
  // Extents of the tensor's dimensions, in row-major order. No extent means one element; an extent
  // of 0 means no elements.
  std::vector<std::int64_t> shape{};
  Init init{};
  // When false, the parameter is frozen: it has no gradient, no moments and no f32 master.
  bool trainable = true;
  // Type of the copy that compute reads: f32, bf16 or f16. If it is not set, Precision::param.
  std::optional<DType> dtype{};
  // When true, the engine keeps and gathers the values in 8 bits, and compute reads them in
  // `dtype`. The parameter must be frozen, and the strategy must be full_shard or hybrid_shard. 64
  // consecutive values share one f32 factor, the largest magnitude of the 64 divided by 127, so
  // that they take 68 bytes, and each is off by at most half of this factor.
  bool quantized = false;
  std::uint64_t count() const noexcept;
};

enum class WriteMode {
  overwrite,   // the gradient is uninitialized: write every element
  accumulate,  // the gradient holds earlier contributions: add to them
  none,        // the parameter is frozen and has no gradient
};

struct Gradient {
  View view;  // gradient of the whole parameter in f32
  WriteMode mode;
};

struct UnitState;
struct EngineAccess;

// The parameters of one block, which are gathered and reduced together.
class ATOLL_API Unit {
 public:
  Unit(const Unit&) = delete;
  Unit& operator=(const Unit&) = delete;
  ~Unit();

  const std::string& name() const noexcept;
  const std::vector<ParamSpec>& params() const noexcept;
  std::uint64_t count() const noexcept;  // number of elements of all parameters, without padding

 private:
  friend struct EngineAccess;
  ATOLL_LOCAL explicit Unit(std::unique_ptr<UnitState> state);
  std::unique_ptr<UnitState> state_;
};

// The device bytes that this rank uses for each purpose. Engine::seal() sets all members except
// `activations`, which the caller sets, and `optimizer`. The constructor of Optimizer adds to
// `optimizer` and `staging`, and Engine::add_state() adds to `optimizer`.
struct ATOLL_API MemoryPlan {
  std::uint64_t parameters = 0;  // bytes of the f32 master shards
  std::uint64_t resident = 0;    // bytes of parameters that stay unsharded, with their masters
  std::uint64_t optimizer = 0;   // bytes of the optimizer's moments and of Engine::add_state()
  std::uint64_t gradients = 0;   // bytes of the f32 gradient shards
  std::uint64_t gathered = 0;    // bytes of buffers for units that are unsharded only while in use
  // Parts of parameters that partial resharding keeps after forward.
  std::uint64_t secondary_shards = 0;
  std::uint64_t whole_gradients = 0;  // bytes of unsharded gradients, as compute writes them
  // Gradient shards of one micro batch before they are added to the sum of earlier micro batches,
  // gradients cast to the type in which they are sent, partial norms, scratch of fallback
  // reductions, and the gathered bytes of the largest quantized parameters of a unit.
  std::uint64_t staging = 0;
  std::uint64_t activations = 0;  // bytes of activations; the caller sets this number

  std::uint64_t total() const noexcept;
  std::string to_string() const;  // returns the plan as a table to print
};

// The part of a parameter that this rank owns: the elements [first, first + count).
struct Segment {
  const Unit* unit;
  const ParamSpec* param;
  std::uint64_t first;
  std::uint64_t count;
  // The f32 master; for a frozen parameter, the values that compute reads; empty for a quantized
  // parameter.
  View values;
  // The gradient of these elements in f32; empty for a frozen parameter. Work may read it on a
  // stream after Engine::wait_gradients() for that stream, until the next pass writes gradients.
  View gradient;
  // The bytes of a quantized parameter: blocks of one f32 factor and 64 signed 8-bit integers.
  // `first` is a multiple of 64. Empty for other parameters.
  View blocks;
};

class Engine;
// The engine that passes, scopes and optimizers refer to. The pointer in it is null after the
// engine has been destroyed.
using EngineLink = std::shared_ptr<Engine*>;

// The unsharded parameters of one unit during its forward. A scope must be destroyed before its
// Pass. The destructor of the scope marks the point on the compute stream after which the unit may
// be resharded. If an exception leaves the scope, or if the pass ends first, the pass is abandoned:
// no further gradients are reduced, and new scopes throw Error(invalid_argument).
//
// Views may be used by work that is enqueued on the compute stream while the scope is open, and by
// code on the CPU after a later synchronize() of that stream. With ATOLL_CHECK=lifetimes on the CPU
// device, any other use of a view ends the process by SIGSEGV, with a message that names unit,
// parameter and remedy; the other ranks get the message as well. The checker does not find a use
// before synchronize() if the stream happens to have reached the scope, nor a use after the scope
// if the stream has not left it yet: such uses read the right data. The checker cannot guard memory
// that a backend allocates where it cannot be mapped a second time; it logs a warning, which names
// the backend, instead.
class ATOLL_API ForwardScope {
 public:
  ForwardScope(ForwardScope&&) noexcept;
  ForwardScope& operator=(ForwardScope&&) = delete;
  ~ForwardScope();
  // Returns the whole parameter in the compute dtype, valid until the scope ends. Throws
  // Error(not_found), which names unit and parameter, when the unit has no such parameter, and
  // Error(invalid_argument) after the end of the pass, or when the scope has been moved.
  View operator[](std::string_view param) const;

 protected:
  friend class Pass;
  ForwardScope(Engine& engine, Unit& unit, std::size_t position);
  void check_usable(std::string_view param) const;
  EngineLink engine_;  // null after a move
  Unit* unit_;
  std::size_t position_;
  std::uint64_t pass_;  // number of the pass that the scope belongs to
  int exceptions_;      // number of exceptions in flight when the scope began
};

// The unsharded parameters and gradients of one unit during its backward. If the unit is not used
// again in the pass, the destructor of the scope starts the reduction of the unit's gradients.
class ATOLL_API BackwardScope : public ForwardScope {
 public:
  using ForwardScope::ForwardScope;
  BackwardScope(BackwardScope&&) noexcept = default;
  // Returns the gradient to write. Compute must write every gradient of the unit before the scope
  // ends, as Gradient::mode prescribes. If a scope ends without grad() for a gradient that must be
  // overwritten, the engine logs one warning. The view is valid until the scope ends.
  Gradient grad(std::string_view param) const;
};

struct PassOptions {
  enum class Kind {
    train,
    eval
  } kind = Kind::train;
  // Index of this micro batch, and the number of micro batches in a step. Micro batches must come
  // in order: Engine::begin() throws Error(invalid_argument) when the index is neither the next one
  // nor 0. In the last micro batch the accumulated gradients are reduced across replicas. The
  // number may change from step to step, on all ranks in the same step; Engine::begin() compares
  // it.
  int micro = 0;
  int of = 1;
};

// One forward through the declared order of units, and for training one backward in reverse order.
// Using a unit out of order throws Error(invalid_argument), which names the expected and the actual
// unit.
//
// The order is the same in every pass, because the buffers that units share are planned from it at
// seal(). A pass that skips a unit opens and closes the scopes of this unit and writes zeros to
// its gradients.
//
// An engine runs one pass at a time, because its buffers hold the units of one pass. So several
// forwards cannot be in flight. A pipeline can run the early forwards as evaluation passes
// (PassOptions::Kind::eval), keep only their outputs, and repeat each forward in its training pass,
// as with activation checkpointing.
//
// Destroy the pass before its engine and before the stream that compute is enqueued on. If one of
// them is destroyed first, calls of the pass throw Error(invalid_argument). The job fails if the
// engine is destroyed first, or if the stream is destroyed before a scope of the pass. The stream
// may be moved.
class ATOLL_API Pass {
 public:
  Pass(Pass&&) noexcept;
  Pass& operator=(Pass&&) = delete;
  ~Pass();
  [[nodiscard]] ForwardScope forward(Unit& unit);
  [[nodiscard]] BackwardScope backward(Unit& unit);

 private:
  friend class Engine;
  ATOLL_LOCAL explicit Pass(Engine& engine);
  EngineLink engine_;  // null after a move
};

class ATOLL_API Engine {
 public:
  // Opens the engine's communicators. Collective over all ranks of the mesh. Blocks. Throws
  // Error(invalid_argument) for a mesh without the axis Options::axes.shard.
  Engine(const Mesh& mesh, Options options = {});
  ~Engine();  // blocks until no stream uses the engine's memory
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // Declares a unit with the names and shapes of its parameters, and allocates nothing. The
  // reference is valid as long as the engine. Throws Error(invalid_argument) after seal(), for a
  // name that is in use, not UTF-8 or has control characters, for an impossible shape, for initial
  // values that Init does not allow.
  Unit& add_unit(std::string_view name, std::vector<ParamSpec> params);
  // Completes the setup. Declares the order in which forward uses the units; backward uses the
  // reverse order. Plans and allocates every buffer. A unit may occur several times. Collective;
  // may be called once. Throws Error(not_found) for a name that no unit has, and
  // Error(invalid_argument) for a unit that `order` omits. If the plan exceeds
  // Options::memory_bytes, throws Error(invalid_argument) that shows the plan, before anything is
  // allocated.
  void seal(const std::vector<std::string>& order);

  // Functions that write parameters (initialize, assign, refresh, and load() of checkpoint.hpp)
  // throw Error(invalid_argument) while a pass is in progress. So do functions that read all
  // parameters (visit, and save() and export_weights() of checkpoint.hpp), because the pass may
  // update some of them. These functions and begin() throw Error(invalid_argument) as well while
  // the parameters have no values: call initialize(), assign() or refresh(), or load() or
  // import_weights() of checkpoint.hpp, first. If assign(), load() or import_weights() has failed,
  // the error names the parameter that it could not fill.

  // Collective. Fills this rank's shards with the initial values of ParamSpec::init, without
  // allocating whole parameters. Blocks.
  void initialize(std::uint64_t seed);
  // Calls `fill` with each segment and an f32 buffer in CPU memory, which `fill` must fill.
  // Collective. Blocks. If `fill` throws on a rank, that rank throws its exception at the end, and
  // the other ranks throw Error with its text. Parameters may then have old and new values.
  void assign(const std::function<void(const Segment&, std::span<float>)>& fill);
  // Calls `visit` with each whole parameter in f32. Gathers one unit at a time, in the order in
  // which units were added. Collective. Blocks. If `visit` throws on a rank, that rank does not
  // call it again, and at the end all ranks throw as in assign().
  void visit(
      const std::function<void(const Unit&, const ParamSpec&, std::span<const float>)>& visit);
  // Updates the copies of the parameters that compute reads, and waits until that is done. Call it
  // after writing master shards. initialize(), assign(), load() and import_weights() call it.
  void refresh();
  // Returns this rank's parts of the parameters, in the order of units and their parameters. The
  // views are valid as long as the engine, so a caller may keep them.
  std::vector<Segment> segments() const;

  // Begins a pass. Throws Error(invalid_argument) before seal(), while the parameters have no
  // values, and while another pass is open, which the message names. Stream and engine must outlive
  // the pass.
  //
  // The stream must belong to device(). A stream of another kind of device throws
  // Error(invalid_argument). ATOLL_CHECK=lifetimes also reports streams of another Device of the
  // same kind.
  //
  // All ranks must pass the same number of micro batches, PassOptions::of, to the training passes
  // of a step. In the first step, and in a step that changes the number, the call blocks until all
  // ranks have compared it. If the numbers differ, every rank throws Error(mismatch). A rank whose
  // number did not change does not wait. If some ranks change the number and others do not, the job
  // fails within about a second: one rank throws Error(mismatch), and the other ranks
  // Error(aborted) with the same text, from the call that waits or that comes next. If a rank does
  // not begin the step, the others throw an error that names it after Config::timeout.
  //
  // If parameters are sharded, the ranks also compare PassOptions::kind in the first pass of an
  // engine. If ranks pass different kinds later, the first gather of that pass fails; over NCCL and
  // MPI it fails at Config::timeout. Without shards an evaluation pass communicates nothing, so
  // some ranks may evaluate alone.
  [[nodiscard]] Pass begin(const PassOptions& options, Stream& compute);
  // Makes the stream `compute` wait until every gradient shard is final. With Options::synchronous,
  // blocks until then. May be called several times for the same gradients, also for several
  // streams. Throws Error(invalid_argument) before seal(), and unless all scopes of all micro
  // batches of a step have ended.
  void wait_gradients(Stream& compute);
  // For callers that write their optimizer themselves. After the last micro batch, a step calls
  // wait_gradients(), enqueues on `compute` the work that reads Segment::gradient and writes
  // Segment::values, and then calls this function. It enqueues on `compute` the copies from masters
  // to the compute dtype; the next gathers wait for these copies. Without this call, compute reads
  // old parameters; the engine logs a warning once, if a step begins after wait_gradients() but
  // without parameters_changed(). Several optimizers may do this for the same gradients, if each
  // updates other parameters. Throws Error(invalid_argument) before seal(), during a pass until
  // its last scope has ended, and after the last micro batch of a step without wait_gradients():
  // the work would read sums that are not complete. Work that reads gradients without either call
  // is not noticed.
  void parameters_changed(Stream& compute);
  // Adds a state, such as "momentum", for an optimizer of the caller: memory of the engine with one
  // f32 for each element of every Segment::gradient, zero at first. save() and load() of
  // checkpoint.hpp include it, on any number of shards. `name` may contain letters, digits, '_',
  // '-' and '.'. Collective. Blocks. Throws Error(invalid_argument) before seal(), and for a name
  // that is not allowed or already in use; Error(out_of_memory) on all ranks if one lacks memory.
  void add_state(std::string_view name);
  // Adds a state that is not elementwise, such as the means of rows and columns of Adafactor: f32
  // memory with elements(unit, param) elements for each trainable parameter, zero at first. Each
  // rank with a segment of the parameter holds the whole state, and the optimizer must write the
  // same values to it on these ranks: save() takes the state of the rank with the first element of
  // the parameter, and load() fills it on all of them. `elements` must return the same number on
  // all ranks, and in the job that loads: at most 2^44, the f32 of 64 TiB.
  void add_state(std::string_view name,
                 const std::function<std::uint64_t(const Unit&, const ParamSpec&)>& elements);
  // Returns the elements of a state that belong to a segment of this engine, in f32; empty for a
  // frozen parameter. For a state that is not elementwise, returns all elements of the parameter's
  // state. The view is valid as long as the engine. Throws Error(not_found) for a name
  // that add_state() has not added, and Error(invalid_argument) for a segment that does not come
  // from segments() of this engine.
  View state(const Segment& segment, std::string_view name) const;

  Unit& unit(std::string_view name);  // throws Error(not_found) for an unknown unit
  const std::vector<std::unique_ptr<Unit>>& units() const noexcept;
  const Options& options() const noexcept;
  // Returns Options::device; with ATOLL_CHECK=lifetimes, a checker that wraps the device.
  const Device& device() const noexcept;
  MeshShape sharding() const noexcept;  // number of replicas and of shards under the strategy
  // Returns the axis whose ranks hold the shards of one replica, in the order of the shards. Its
  // size is that of sharding(): 1 for no_shard. Optimizers of the caller open communicators on it,
  // such as for a norm over all shards.
  const Axis& shard_axis() const noexcept;
  std::string_view backend() const noexcept;
  // Returns the memory plan of this rank, which is complete after seal(). The caller may set
  // MemoryPlan::activations.
  MemoryPlan& memory() noexcept;
  Scheduler& scheduler() noexcept;
  // Bytes of the tensors that this rank's passes gathered and reduced, by axis, not what a rank
  // sends: whole tensors on the shard axis, this rank's shards on the replicate axis.
  struct Traffic {
    std::uint64_t shard_bytes = 0;
    std::uint64_t secondary_bytes = 0;  // bytes of gathers among Options::secondary_shards ranks
    std::uint64_t replicate_bytes = 0;
  };
  Traffic traffic() const noexcept;

 private:
  friend struct EngineAccess;
  struct ATOLL_LOCAL Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace atoll_v1::atoll::fsdp
