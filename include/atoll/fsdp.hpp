// Fully sharded data parallel training: parameters, gradients and optimizer states are spread over
// the shard axis of a mesh; a unit's parameters are gathered just before they are used, and its
// gradients reduced as soon as they are complete, beside compute.
//
//   fsdp::Engine engine(mesh, {.strategy = Strategy::hybrid_shard});
//   Unit& block = engine.add_unit("layers.0", specs);
//   engine.freeze({"embed", "layers.0", "head"});
//   auto pass = engine.begin({}, compute);
//   { auto w = pass.forward(block);  layer(x, w["weight"]); }
//   { auto w = pass.backward(block); auto g = w.grad("weight"); ... }
//
// Called by one thread; all ranks make the same calls in the same order. Compute is enqueued on the
// stream given to begin(); nothing here blocks the host, except where a comment says so.
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

// Bytes of P parameters on a rank of n, r of them replicas and s shards (n = r x s), with bf16
// compute, f32 masters and gradients and AdamW's two f32 moments; a unit or two come on top where
// parameters or gradients are passing.
enum class Strategy {
  no_shard,           // everything whole, gradients all-reduced (DDP): 18 P
  shard_optimizer,    // masters and moments over all ranks (ZeRO-1): 6 P + 12 P / n
  shard_grad,         // gradients as well (ZeRO-2): 2 P + 16 P / n
  full_shard,         // parameters as well (ZeRO-3): 16 P / n
  hybrid_shard,       // full_shard over the mesh's shard axis, replicated over the other: 16 P / s
  hybrid_shard_grad,  // shard_grad over the mesh's shard axis: 2 P + 16 P / s
};
std::string_view name(Strategy strategy) noexcept;
Strategy strategy_from_name(std::string_view name);  // Error(invalid_argument) lists the names
std::vector<Strategy> every_strategy();              // in the order above

// What becomes of the gradients of a micro batch that is not the step's last.
enum class Accumulation {
  automatic,  // local for no_shard and shard_optimizer, shard for the others
  shard,      // reduced inside the shard axis at once, across replicas with the last micro batch
  local,      // kept whole in f32 (4 P more), and nothing is sent before the last micro batch
};
std::string_view name(Accumulation accumulation) noexcept;  // "auto", "shard", "local"
Accumulation accumulation_from_name(std::string_view name);

struct Precision {
  DType param = DType::f32;  // what compute reads and gathers carry: f32 or bf16
  // What gradients travel as: f32, or bf16, where each level of sums is f32 and rounds once.
  // Compute writes them, and optimizers read them, in f32.
  DType reduce = DType::f32;
};

struct Options {
  Strategy strategy = Strategy::hybrid_shard;
  Accumulation accumulation = Accumulation::automatic;
  Precision precision{};
  // Partial resharding: what forward has gathered stays sharded over groups of so many neighbouring
  // ranks of the shard axis (1: whole), and backward gathers inside them what is not in a slot at
  // the turn. 0: not kept. It must divide the shard axis; without effect where parameters stay
  // whole.
  int inner_shards = 0;
  int prefetch = 1;        // units gathered ahead of compute; 0: none
  int reduce_buffers = 2;  // whole gradients that are written or reduced at the same time
  // Bytes of the device that the plan of freeze() may take, before optimizer and activations; 0:
  // any.
  std::uint64_t memory_bytes = 0;
  Device device = Device::host();
  std::string backend{};  // "": config().backend, else the best common one
};

// What choose_strategy() goes by.
struct StrategyQuestion {
  MeshShape mesh{};
  MeshRates rates{};  // of the mesh's axes; where one is unknown, all links count as 1 GB/s
  // Precision, accumulation, inner shards, prefetch and buffers; the strategy in it is not read.
  Options options{};
  std::uint64_t parameters = 0;
  std::uint64_t frozen = 0;        // of these: no gradients, no moments
  std::uint64_t largest_unit = 0;  // parameters of it; 0: unknown, and passing units not counted
  int units = 1;
  int micro_batches = 1;           // of a step
  std::uint64_t moment_bytes = 8;  // of a parameter: 8 for AdamW, 4 with bf16 moments, 0 for SGD
  std::uint64_t activation_bytes = 0;
  std::uint64_t memory_bytes = 0;  // of the device, for one rank; 0: unknown, everything fits
  double reserve = 0.1;            // of the memory, for what no plan has
};
struct StrategyEstimate {
  Strategy strategy{};
  std::uint64_t bytes = 0;  // of a rank: state, passing units, activations; not what sums take that
                            // the library builds
  // Communication of a step, as if nothing overlapped: each collective in two levels, the bytes of
  // a ring on each at the rate of its axis, and a latency for each unit. Resident parameters are
  // gathered once a step, passing ones twice a micro batch, as if no slot held them in between.
  double seconds = 0;
  bool fits = true;
};
struct StrategyChoice {
  Strategy strategy{};
  std::string why;                          // a sentence with the figures
  std::vector<StrategyEstimate> estimates;  // of all strategies that an engine has with the options
};
// The strategy that communicates least of those that fit; of those within 1 % of it the one with
// the least memory. Where none fits the one with the least memory, and the sentence says so. A pure
// function: equal questions on all ranks give equal answers. Error(invalid_argument): sizes or
// counts below 1, options that no engine takes, a reserve outside of [0, 1).
StrategyChoice choose_strategy(const StrategyQuestion& question);
// Of a mesh's axes.
MeshRates rates_of(const Mesh& mesh);

// How a parameter starts: normal(mean, deviation) from (seed, unit name, parameter name, element),
// so that the values do not depend on mesh or ranks.
struct Init {
  float mean = 0;
  float deviation = 0.02f;
};

struct ParamSpec {
  std::string name{};                 // unique in its unit
  std::vector<std::int64_t> shape{};  // row-major
  Init init{};
  bool trainable = true;  // false: frozen, without gradient and moments, and no master but what
                          // compute reads
  std::optional<DType> dtype{};  // what compute reads, f32 or bf16; unset: Precision::param
  std::uint64_t count() const noexcept;
};

enum class WriteMode {
  overwrite,   // the view holds garbage: write every element
  accumulate,  // the view holds earlier contributions: add to them
  none,        // a frozen parameter: there is no view
};

struct Gradient {
  View view;  // f32, the whole parameter
  WriteMode mode;
};

// One block's parameters, gathered and reduced together.
class Unit {
 public:
  const std::string& name() const noexcept;
  const std::vector<ParamSpec>& params() const noexcept;
  std::uint64_t count() const noexcept;  // elements of all parameters, without padding

  struct State;
  explicit Unit(std::unique_ptr<State> state);
  Unit(const Unit&) = delete;
  Unit& operator=(const Unit&) = delete;
  ~Unit();
  State& state() const noexcept { return *state_; }

 private:
  std::unique_ptr<State> state_;
};

// Bytes of this rank by category; fixed by freeze() (optimizer: when an optimizer is made).
struct MemoryPlan {
  std::uint64_t parameters = 0;       // master shards
  std::uint64_t resident = 0;         // whole parameters that stay, masters among them included
  std::uint64_t optimizer = 0;        // moments
  std::uint64_t gradients = 0;        // f32 shards
  std::uint64_t gathered = 0;         // whole units in passing, as compute reads them
  std::uint64_t kept = 0;             // inner shards between forward and backward
  std::uint64_t whole_gradients = 0;  // as compute writes them
  std::uint64_t staging = 0;      // partial sums of further micro batches, casts, norms, and what
                                  // sums take that the library builds
  std::uint64_t activations = 0;  // as the consumer says, who adds them

  std::uint64_t total() const noexcept;
  std::string to_string() const;  // a table for people
};

// A part of a parameter that this rank owns: elements [first, first + values.count) of it.
struct Segment {
  const Unit* unit;
  const ParamSpec* param;
  std::uint64_t first;
  View values;  // master: f32, of a frozen parameter what compute reads
};

class Engine;

// The parameters of one unit during its forward; lives no longer than its Pass. The destructor ends
// the use on the compute stream. An exception that leaves the scope gives the pass up: nothing more
// is reduced, and further scopes are Error(invalid_argument).
class ForwardScope {
 public:
  ForwardScope(ForwardScope&&) noexcept;
  ForwardScope& operator=(ForwardScope&&) = delete;
  ~ForwardScope();
  // The whole parameter in the compute dtype. Error(not_found) names unit and parameter.
  View operator[](std::string_view param) const;

 protected:
  friend class Pass;
  ForwardScope(Engine& engine, Unit& unit, std::size_t position);
  Engine* engine_;
  Unit* unit_;
  std::size_t position_;
  int exceptions_;  // under way when the scope began
};

// The same during its backward, with gradients; the destructor starts their reduction, once this
// was the unit's last use in the pass.
class BackwardScope : public ForwardScope {
 public:
  using ForwardScope::ForwardScope;
  BackwardScope(BackwardScope&&) noexcept = default;
  // Each gradient must be written, as its mode says, before the scope ends.
  Gradient grad(std::string_view param) const;
};

struct PassOptions {
  enum class Kind {
    train,
    eval
  } kind = Kind::train;
  // This micro batch of so many in the step; gradients are reduced across replicas with the last.
  // They come in turn: Error(invalid_argument) for one that does not follow the last complete one.
  int micro = 0;
  int of = 1;
};

// One forward, and for training one backward, through the declared order. A departure from it is
// Error(invalid_argument) that names the expected and the actual unit.
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
  // Collective: opens the communicators.
  Engine(const Mesh& mesh, Options options = {});
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // Names and shapes only; nothing is allocated. The reference lives as long as the engine.
  // Error(invalid_argument): after freeze(), a name in use, an impossible shape.
  Unit& add_unit(std::string_view name, std::vector<ParamSpec> params);
  // Declares the order of use (units may repeat; backward is its reverse), plans every buffer and
  // allocates it; once. Error(not_found, invalid_argument) names a unit that is missing on either
  // side; Error(invalid_argument) shows a plan that is larger than Options::memory_bytes, before
  // anything is allocated.
  void freeze(const std::vector<std::string>& order);

  // While a pass is under way, writing parameters (initialize, assign, refresh, load) is
  // Error(invalid_argument).
  // Fills this rank's shards; never a whole parameter.
  void initialize(std::uint64_t seed);
  // Calls `fill` for each segment with an f32 host buffer to be filled; for loading weights.
  void assign(const std::function<void(const Segment&, std::span<float>)>& fill);
  // Collective. Hands each parameter to `visit`, whole and in f32, one unit at a time, in the order
  // in which units were added; blocks.
  void visit(
      const std::function<void(const Unit&, const ParamSpec&, std::span<const float>)>& visit);
  // The master shards were written from outside: brings resident copies up to date; blocks.
  void refresh();
  std::vector<Segment> segments() const;  // in the order of units and parameters

  // Error(invalid_argument) before freeze() and while another pass is under way. The stream, one of
  // device(), and the engine outlive the pass.
  [[nodiscard]] Pass begin(const PassOptions& options, Stream& compute);
  // `compute` waits until every gradient shard is final.
  void wait_gradients(Stream& compute);
  // After the last micro batch: `compute` is to have updated the master shards up to here. Copies
  // in the compute dtype are made from them on `compute`; the next gathers wait for it.
  void parameters_changed(Stream& compute);

  Unit& unit(std::string_view name);  // Error(not_found)
  const std::vector<std::unique_ptr<Unit>>& units() const noexcept;
  const Options& options() const noexcept;
  // That of the options, or, where ATOLL_CHECK=lifetimes asks for it, the same under a checker.
  const Device& device() const noexcept;
  MeshShape sharding() const noexcept;  // replicas x shards of this strategy
  std::string_view backend() const noexcept;
  MemoryPlan& memory() noexcept;
  Scheduler& scheduler() noexcept;
  // Bytes of parameters and gradients that this rank has handed to the collectives of passes so
  // far.
  struct Traffic {
    std::uint64_t shard_bytes = 0;
    std::uint64_t inner_bytes = 0;  // of gathers inside inner groups
    std::uint64_t replicate_bytes = 0;
  };
  Traffic traffic() const noexcept;

  struct Impl;  // src/fsdp/engine_impl.hpp
  Impl& impl() noexcept { return *impl_; }

 private:
  std::unique_ptr<Impl> impl_;
};

}  // namespace atoll_v1::atoll::fsdp
