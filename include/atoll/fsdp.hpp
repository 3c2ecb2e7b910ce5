// Fully sharded data parallel training. Parameters, gradients and optimizer states are sharded over
// an axis of the mesh. The engine gathers (unshards) the parameters of a unit shortly before
// compute uses them, and reduces gradients as soon as they are complete. Both overlap with compute.
//
//   fsdp::Engine engine(mesh, {.strategy = Strategy::hybrid_shard});
//   Unit& block = engine.add_unit("layers.0", specs);
//   engine.freeze({"embed", "layers.0", "head"});
//   auto pass = engine.begin({}, compute);
//   { auto w = pass.forward(block);  layer(x, w["weight"]); }
//   { auto w = pass.backward(block); auto g = w.grad("weight"); ... }
//
// Gradients are summed over ranks and micro batches, never averaged: divide the loss by the global
// number of samples or tokens.
//
// Threads and order: one thread calls the engine, and all ranks make the same calls in the same
// order. Compute is enqueued on the stream given to begin(). Calls return without waiting for
// devices or peers, except where a comment says that they block.
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

// The bytes are those of one rank for P parameters on n ranks (n = r replicas x s shards), with
// bf16 compute, f32 masters and gradients, and AdamW's two f32 moments. Buffers for one or two
// unsharded units are extra where parameters or gradients are sharded.
enum class Strategy {
  no_shard,           // replicates everything and all-reduces gradients (DDP): 18 P
  shard_optimizer,    // shards masters and moments over all ranks (ZeRO-1): 6 P + 12 P / n
  shard_grad,         // shards gradients as well (ZeRO-2): 2 P + 16 P / n
  full_shard,         // shards parameters as well (ZeRO-3): 16 P / n
  hybrid_shard,       // full_shard over the shard axis, replicated over the other: 16 P / s
  hybrid_shard_grad,  // shard_grad over the shard axis, replicated over the other: 2 P + 16 P / s
};
std::string_view name(Strategy strategy) noexcept;
Strategy strategy_from_name(std::string_view name);  // Error(invalid_argument) lists the names
std::vector<Strategy> every_strategy();              // in the order of the enumerators

// How gradients accumulate over the micro batches of a step.
enum class Accumulation {
  automatic,  // local for no_shard and shard_optimizer, shard for the other strategies
  shard,      // reduce every micro batch over the shard axis, and the last one across replicas
  local,  // keep unsharded f32 gradients (4 P more bytes) and send only with the last micro batch
};
std::string_view name(Accumulation accumulation) noexcept;  // "auto", "shard", "local"
Accumulation accumulation_from_name(std::string_view name);

struct Precision {
  DType param = DType::f32;  // f32 or bf16: the type that compute reads and that gathers send
  // f32 or bf16: the type in which gradients are sent. With bf16 each level of a sum adds in f32
  // and rounds once. Compute writes gradients in f32, and optimizers read them in f32.
  DType reduce = DType::f32;
};

struct Options {
  Strategy strategy = Strategy::hybrid_shard;
  Accumulation accumulation = Accumulation::automatic;
  Precision precision{};
  // Partial resharding (FSDP2: reshard_after_forward = N). After forward the unit stays sharded
  // over groups of this many neighbouring ranks of the shard axis, and backward gathers inside the
  // group. 1 keeps whole parameters on every rank; 0 turns it off. The number must divide the shard
  // axis. It has no effect when parameters are resident.
  int inner_shards = 0;
  int prefetch = 1;        // units to gather ahead of compute
  int reduce_buffers = 2;  // unsharded gradients that may be written or reduced at the same time
  // Device bytes that the plan of freeze() may use, without optimizer and activations; 0: no limit.
  std::uint64_t memory_bytes = 0;
  Device device = Device::host();
  std::string backend{};  // "": config().backend, or else the best backend common to all ranks
};

// Initial values are normal(mean, deviation) numbers computed from (seed, unit name, parameter
// name, element), so that they do not depend on the mesh or on the number of ranks.
struct Init {
  float mean = 0;
  float deviation = 0.02f;
};

struct ParamSpec {
  std::string name{};                 // unique in its unit
  std::vector<std::int64_t> shape{};  // row-major
  Init init{};
  // false: the parameter is frozen. It has no gradient, no moments and no f32 master.
  bool trainable = true;
  std::optional<DType> dtype{};  // f32 or bf16, as compute reads it; unset: Precision::param
  std::uint64_t count() const noexcept;
};

enum class WriteMode {
  overwrite,   // the view holds garbage: write every element
  accumulate,  // the view holds earlier contributions: add to them
  none,        // the parameter is frozen and has no gradient
};

struct Gradient {
  View view;  // f32, the whole parameter
  WriteMode mode;
};

struct UnitState;
struct EngineAccess;

// The parameters of one block, which are gathered and reduced together.
class Unit {
 public:
  Unit(const Unit&) = delete;
  Unit& operator=(const Unit&) = delete;
  ~Unit();

  const std::string& name() const noexcept;
  const std::vector<ParamSpec>& params() const noexcept;
  std::uint64_t count() const noexcept;  // elements of all parameters, without padding

 private:
  friend struct EngineAccess;
  explicit Unit(std::unique_ptr<UnitState> state);
  std::unique_ptr<UnitState> state_;
};

// Device bytes of this rank by category. Fixed by freeze(), except `optimizer`, which making an
// optimizer sets, and `activations`.
struct MemoryPlan {
  std::uint64_t parameters = 0;       // master shards
  std::uint64_t resident = 0;         // parameters that stay unsharded, with masters among them
  std::uint64_t optimizer = 0;        // moments
  std::uint64_t gradients = 0;        // f32 shards
  std::uint64_t gathered = 0;         // slots for units that are unsharded only while in use
  std::uint64_t inner_shards = 0;     // parameters kept by partial resharding
  std::uint64_t whole_gradients = 0;  // unsharded gradients, as compute writes them
  // Reduced shards before they are added to those of earlier micro batches, cast gradients, norms,
  // and scratch of fallback reductions.
  std::uint64_t staging = 0;
  std::uint64_t activations = 0;  // set by the caller

  std::uint64_t total() const noexcept;
  std::string to_string() const;  // a table for people
};

// The part of a parameter that this rank owns: elements [first, first + values.count).
struct Segment {
  const Unit* unit;
  const ParamSpec* param;
  std::uint64_t first;
  View values;  // the f32 master; for a frozen parameter the values that compute reads
};

class Engine;

// The unsharded parameters of one unit during its forward. A scope must end before its Pass. Its
// destructor marks the end of the use on the compute stream, after which the unit may be resharded.
// If an exception leaves the scope, the pass is abandoned: nothing more is reduced, and further
// scopes throw Error(invalid_argument).
class ForwardScope {
 public:
  ForwardScope(ForwardScope&&) noexcept;
  ForwardScope& operator=(ForwardScope&&) = delete;
  ~ForwardScope();
  // The whole parameter in the compute dtype, valid until the scope ends. Error(not_found) names
  // unit and parameter.
  View operator[](std::string_view param) const;

 protected:
  friend class Pass;
  ForwardScope(Engine& engine, Unit& unit, std::size_t position);
  Engine* engine_;
  Unit* unit_;
  std::size_t position_;
  int exceptions_;  // exceptions in flight when the scope began
};

// The unsharded parameters and gradients of one unit during its backward. If this was the unit's
// last use in the pass, the destructor starts the reduction of its gradients.
class BackwardScope : public ForwardScope {
 public:
  using ForwardScope::ForwardScope;
  BackwardScope(BackwardScope&&) noexcept = default;
  // Every gradient must be written as its mode says before the scope ends. Valid until then.
  Gradient grad(std::string_view param) const;
};

struct PassOptions {
  enum class Kind {
    train,
    eval
  } kind = Kind::train;
  // Micro batch `micro` of the `of` micro batches in a step. They must come in order:
  // Error(invalid_argument) for any other than the next one or 0. Gradients are reduced across
  // replicas with the last.
  int micro = 0;
  int of = 1;
};

// One forward through the declared order of units, and for training one backward in reverse order.
// A departure from the order is Error(invalid_argument), which names the expected and the actual
// unit.
class Pass {
 public:
  Pass(Pass&&) noexcept;
  Pass& operator=(Pass&&) = delete;
  ~Pass();
  [[nodiscard]] ForwardScope forward(Unit& unit);
  [[nodiscard]] BackwardScope backward(Unit& unit);

 private:
  friend class Engine;
  explicit Pass(Engine& engine);
  Engine* engine_;
};

class Engine {
 public:
  // Collective: opens the communicators. Blocks.
  Engine(const Mesh& mesh, Options options = {});
  ~Engine();  // blocks until no stream uses the engine's memory
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // Declares names and shapes; nothing is allocated. The reference is valid as long as the engine.
  // Error(invalid_argument): after freeze(), for a name in use, for an impossible shape.
  Unit& add_unit(std::string_view name, std::vector<ParamSpec> params);
  // Collective, once. Declares the order of use, plans every buffer and allocates it. Units may
  // repeat; backward uses the reverse order. Error(not_found, invalid_argument) names a unit that
  // is missing on either side. Error(invalid_argument) shows a plan that exceeds
  // Options::memory_bytes, before anything is allocated.
  void freeze(const std::vector<std::string>& order);

  // Functions that write parameters (initialize, assign, refresh, and load() of checkpoint.hpp)
  // throw Error(invalid_argument) while a pass is in progress.

  // Fills this rank's shards with initial values; never needs a whole parameter. Blocks.
  void initialize(std::uint64_t seed);
  // Calls `fill` with each segment and an f32 host buffer that it must fill. Blocks.
  void assign(const std::function<void(const Segment&, std::span<float>)>& fill);
  // Collective. Calls `visit` with each parameter, whole and in f32, one unit at a time, in the
  // order in which units were added. Blocks.
  void visit(
      const std::function<void(const Unit&, const ParamSpec&, std::span<const float>)>& visit);
  // Updates the copies that compute reads after the caller has written master shards. Blocks.
  void refresh();
  std::vector<Segment> segments() const;  // in the order of units and parameters

  // Error(invalid_argument) before freeze() and while another pass is in progress. The stream must
  // belong to device(). Stream and engine must outlive the pass.
  [[nodiscard]] Pass begin(const PassOptions& options, Stream& compute);
  // Makes `compute` wait until every gradient shard is final.
  void wait_gradients(Stream& compute);
  // For callers with an optimizer of their own, after the last micro batch: states that the work
  // enqueued on `compute` so far updates the master shards. Enqueues the copies in the compute
  // dtype on `compute`; the next gathers wait for them.
  void parameters_changed(Stream& compute);

  Unit& unit(std::string_view name);  // Error(not_found)
  const std::vector<std::unique_ptr<Unit>>& units() const noexcept;
  const Options& options() const noexcept;
  // Options::device, or with ATOLL_CHECK=lifetimes a checker around it.
  const Device& device() const noexcept;
  MeshShape sharding() const noexcept;  // replicas x shards of this strategy
  std::string_view backend() const noexcept;
  MemoryPlan& memory() noexcept;
  Scheduler& scheduler() noexcept;
  // Bytes of parameters and gradients that this rank's passes have handed to collectives.
  struct Traffic {
    std::uint64_t shard_bytes = 0;
    std::uint64_t inner_bytes = 0;  // gathers inside groups of Options::inner_shards ranks
    std::uint64_t replicate_bytes = 0;
  };
  Traffic traffic() const noexcept;

 private:
  friend struct EngineAccess;
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace atoll_v1::atoll::fsdp
