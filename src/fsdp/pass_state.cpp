#include "fsdp/pass_state.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <exception>

#include "atoll/rank_set.hpp"
#include "core/assert.hpp"
#include "core/errors.hpp"
#include "core/log.hpp"
#include "device/ops.hpp"

namespace atoll_v1::atoll::fsdp {

std::size_t PassState::length() const noexcept {
  return is_training() ? plan_.sequence.size() : plan_.forward_length;
}

Stream& PassState::compute() const {
  require(
      *compute_ != nullptr,
      "the compute stream of this pass has been destroyed: destroy every Pass before the Stream "
      "that was passed to Engine::begin()");
  return **compute_;
}

// Throws Error(invalid_argument) that names the pass in progress, if there is one.
void PassState::check_closed() const {
  if (!active_) return;
  const std::string open =
      is_training() ? fmt::format("the pass of micro batch {} of {}", options_.micro, options_.of)
                    : std::string("an evaluation pass");
  throw invalid(
      "Engine::begin: {} is still open, after {} of {} uses of units: an engine runs one pass at a "
      "time, so end that Pass first; to run forwards ahead, as pipelines do, use evaluation "
      "passes, and repeat forward in the training pass",
      open, position_, length());
}

// Throws Error(invalid_argument) unless micro batches come in order. A repeated micro batch would
// be added to the gradients twice, and a skipped micro batch would be missing.
void PassState::check_micro(const PassOptions& next) const {
  if (next.kind != PassOptions::Kind::train || next.micro == 0) return;
  if (next.micro == next_micro_ && next.of == step_micros_) return;
  const std::string expected =
      next_micro_ == 0
          ? std::string("a new step begins with micro batch 0")
          : fmt::format("the step continues with micro batch {} of {}, or begins again with 0",
                        next_micro_, step_micros_);
  throw invalid("Engine::begin: micro batch {} of {} is out of turn: {}", next.micro, next.of,
                expected);
}

void PassState::seal() {
  observer_.seal();
  // The first pass waits for this event too, so that a stream that cannot wait for events of the
  // device is found before it is used.
  ended_ = scheduler_.stream(Lane::gather).record();
}

// Throws those errors of begin() that a rank finds without communication.
void PassState::check_begin(const PassOptions& options, const Stream& compute) const {
  setup_.check_failures();
  setup_.check_sealed("begin");
  check_closed();
  setup_.check_values("Engine::begin");
  require(options.kind == PassOptions::Kind::train || options.kind == PassOptions::Kind::eval,
          "Engine::begin: PassOptions::kind = {} is not a Kind", static_cast<int>(options.kind));
  require(options.micro >= 0 && options.micro < options.of,
          "Engine::begin: there is no micro batch {} of {}", options.micro, options.of);
  require(
      kind_of(compute) == setup_.options.device.kind(),
      "Engine::begin: the stream \"{}\" is not a stream of the engine's device {}: take compute "
      "streams from Engine::device()",
      compute.name(), setup_.options.device.name());
  check_micro(options);
}

// Compares the kind of the first pass between ranks: a rank that trains would wait for reductions
// that a rank that evaluates never starts. An unsharded evaluation has no collectives, so one rank
// may evaluate alone.
void PassState::compare_kind(const PassOptions& options) const {
  if (number_ > 0 || !setup_.sharded()) return;
  agree(setup_.ranks, "begin", [&]() -> std::vector<Declaration> {
    return {{"PassOptions::kind", options.kind == PassOptions::Kind::train ? "train" : "eval"}};
  });
}

void PassState::begin(const PassOptions& options, Stream& compute) {
  check_begin(options, compute);
  compare_kind(options);
  if (options.kind == PassOptions::Kind::train && options.micro == 0) {
    micro_count_.begin_step(options.of);
    if (gradients_read_ && !warned_) {
      warned_ = true;
      log::warn(
          "a step begins after wait_gradients(), but without parameters_changed(): if an optimizer "
          "has written Segment::values, compute reads old parameters");
    }
    gradients_read_ = false;
  }
  options_ = options;
  if (is_training()) {
    next_micro_ = 0;  // the next micro batch is 0 unless the pass that begins here completes
    gradients_complete_ = gradients_waited_ = gradients_used_ = false;
    step_micros_ = options.of;
  }
  compute_ = compute.link();
  compute.wait(ended_);  // waits for the last pass, which may have used another stream
  position_ = ended_uses_ = 0;
  open_scopes_.assign(plan_.unshards.size(), 0);
  live_scopes_ = 0;
  reducing_.begin_pass(options);
  gathering_.begin_pass(options);
  ++number_;
  abandoned_ = false;
  end_failure_.reset();
  finding_.reset();
  active_ = true;
}

void PassState::wait_gradients(Stream& compute, std::string_view call) {
  setup_.check_sealed(call);
  setup_.check_failures();
  // The wait comes first, so that a failed reduction stops the stream before parameters change, and
  // the error of the reduction is thrown instead of the error about micro batches.
  reducing_.wait(compute);
  if (setup_.options.synchronous) compute.synchronize();
  if (finding_) throw Error(*finding_);
  require(gradients_complete_,
          "{}: called before all micro batches of the step are complete, so gradients are not sums "
          "over all ranks",
          call);
  gradients_waited_ = true;
}

void PassState::change_parameters() {
  // An optimizer may run before the Pass is destroyed, once all scopes of the Pass have ended.
  require(!active_ || (position_ == length() && live_scopes_ == 0),
          "parameters_changed: a pass is in progress and uses the parameters: end it first");
  gradients_read_ = false;
}

void PassState::check_waited() const {
  require(!gradients_complete_ || gradients_waited_,
          "parameters_changed: called without wait_gradients() after the last micro batch, so an "
          "optimizer could read gradients that are not sums over all ranks yet: call "
          "wait_gradients() before the work that reads Segment::gradient, or refresh() if no work "
          "has read it");
}

void PassState::check_unused() const {
  require(!gradients_used_,
          "Optimizer::step: a step has already used these gradients: begin a pass first");
}

void PassState::use_gradients() noexcept {
  gradients_used_ = true;
  gradients_read_ = false;
}

void PassState::check_usable(const Unit& unit, std::string_view scope) const {
  // This check comes first, because the memory of a unit of another engine may be gone.
  require(setup_.has_unit(unit),
          "{}: the unit is not one of this engine, or its engine has been destroyed: use "
          "Engine::unit() of the engine of this pass",
          scope);
  // The scope whose end failed still occupies its buffers, so every later scope fails.
  if (end_failure_) {
    setup_.check_failures();
    throw Error(*end_failure_);
  }
  require(!abandoned_,
          "{}({}): this pass is abandoned, because an exception has left one of its scopes", scope,
          unit.name());
}

void PassState::check_order(const Unit& unit, std::size_t lowest, std::size_t end,
                            std::string_view scope) const {
  require(position_ >= lowest && position_ < end,
          "{}({}): out of order: {} of the {} uses of units in this pass have begun", scope,
          unit.name(), position_, length());
  const Unit& expected = *setup_.units[plan_.sequence[position_]];
  require(
      &expected == &unit,
      "{}({}): the declared order has unit {} here (use {} of {}); every pass uses the units in "
      "the order given to seal(): to skip a unit, open and close its scopes, and write zeros "
      "to its gradients",
      scope, unit.name(), expected.name(), position_ + 1, length());
}

std::size_t PassState::enter_forward(Unit& unit) {
  check_usable(unit, "forward");
  check_order(unit, 0, plan_.forward_length, "forward");
  return begin_scope(unit, "forward");
}

std::size_t PassState::enter_backward(Unit& unit) {
  check_usable(unit, "backward");
  if (!is_training()) throw invalid("backward({}): this pass is for evaluation", unit.name());
  check_order(unit, plan_.forward_length, plan_.sequence.size(), "backward");
  reducing_.check_slot(state_of(unit), position_);
  return begin_scope(unit, "backward");
}

std::size_t PassState::begin_scope(Unit& unit, std::string_view scope) {
  ATOLL_ASSERT(active_, "a scope was opened, but no pass has begun");
  const UnitState& state = state_of(unit);
  const std::size_t position = position_;
  Stream& compute = this->compute();
  gathering_.unshard(compute, position, scope);
  ++position_;
  const bool backward = position >= plan_.forward_length;
  if (backward) reducing_.open(compute, state, position);
  observer_.open(compute, position,
                 backward ? reducing_.write_mode(state, position) : WriteMode::none);
  ++open_scopes_[plan_.unshard_of[position]];
  ++live_scopes_;
  if (setup_.options.synchronous) synchronize_scope();
  return position;
}

// Blocks until the caller may use the scope on the CPU. After a failure the caller gets no scope,
// so the pass cannot complete.
void PassState::synchronize_scope() {
  try {
    compute().synchronize();
  } catch (...) {
    abandon();
    throw;
  }
}

void PassState::leave(const Unit& unit, std::size_t position) noexcept {
  --live_scopes_;
  const auto fail = [&](const Error& error) {
    end_failure_ = error;
    setup_.ranks.link().fail(
        fmt::format("at the end of a scope of unit {}: {}", unit.name(), error.what()));
  };
  try {
    Stream& compute = this->compute();
    observer_.close(compute, position);
    if (abandoned_) return;  // an abandoned pass does not reduce gradients, which may be incomplete
    observer_.complete(compute, position);
    const UnitState& state = state_of(unit);
    const bool backward = position >= plan_.forward_length;
    // The gather of the next unit is enqueued before the reduction of this one. Both wait for the
    // same compute, but a backend may launch the collectives of a GPU in the order of the calls,
    // and compute needs the gather first.
    const auto written = backward ? reducing_.close(compute, state, position_) : std::nullopt;
    end_use(position);
    if (written) reducing_.reduce(state, *written);
  } catch (const Error& error) {
    // The lifetime checker (ATOLL_CHECK=lifetimes) reports a finding as an internal error. The job
    // does not fail here, because the next call reports the complete finding.
    if (error.code() == ErrorCode::internal) {
      finding_ = error;
      log::debug("at the end of a scope of unit {}: {}", unit.name(), error.what());
    } else {
      fail(error);
    }
  } catch (const std::exception& error) {
    fail(Error(ErrorCode::internal, text_of(error)));
  }
}

// Reshards the unit when its last open scope ends.
void PassState::end_use(std::size_t position) {
  const std::size_t index = plan_.unshard_of[position];
  const bool last_entered = position_ > std::min(plan_.unshards[index].last, length() - 1);
  if (--open_scopes_[index] > 0 || !last_entered) return;
  ++ended_uses_;
  if (is_training()) {
    gradients_complete_ = options_.micro + 1 == options_.of && position_ == length() &&
                          ended_uses_ == plan_.unshards.size();
  }
  gathering_.reshard(compute(), position);
}

void PassState::end() noexcept {
  active_ = false;
  const auto open = std::ranges::find_if(open_scopes_, [](int scopes) { return scopes > 0; });
  if (live_scopes_ > 0 && open != open_scopes_.end() && !abandoned_) {
    // A scope that outlives its pass cannot mark the end of its work, so the pass is abandoned.
    abandoned_ = true;
    const Unshard& unshard = plan_.unshards[static_cast<std::size_t>(open - open_scopes_.begin())];
    log::warn("a Pass ended before its scope of unit {}: destroy every scope before its Pass",
              setup_.state(unshard.unit).name);
  }
  try {
    // The destructor of a stream waits for its work, so if the compute stream is gone, a lane can
    // record the end of the pass.
    Stream& last = *compute_ ? **compute_ : scheduler_.stream(Lane::gather);
    ended_ = last.record();  // needed even after a failure, because compute may still read buffers
    setup_.check_failures();
    if (position_ == length() && !abandoned_) {
      if (is_training()) next_micro_ = (options_.micro + 1) % options_.of;
      return;
    }
    // Does not warn of an unused pass: a program may open a pass early and then stop training.
    if (position_ > 0 || abandoned_) {
      log::warn("a pass {} after {} of {} uses of units", abandoned_ ? "was abandoned" : "ended",
                position_, length());
    }
    reducing_.cancel(last);
    ended_ = gathering_.cancel(last);
  } catch (const Error&) {
    // The job has failed, so the order of streams no longer matters.
  } catch (const std::exception& error) {
    setup_.ranks.link().fail(text_of(error));
  }
}

View PassState::parameter(const UnitState& unit, std::string_view param,
                          std::size_t position) const {
  const auto& [bucket, slot] = unit.locations[unit.find(param)];
  return observer_.parameters(position, storage_.unsharded(unit.buckets[bucket], position))
      .part(slot.offset, slot.count);
}

Gradient PassState::gradient(const UnitState& unit, std::string_view param, std::size_t position) {
  const std::size_t number = unit.find(param);
  const auto& [index, slot] = unit.locations[number];
  const UnitBucket& bucket = unit.buckets[index];
  if (!bucket.trainable) return {{nullptr, 0, DType::f32}, WriteMode::none};
  return {observer_.gradient(position, number, storage_.unsharded_gradient(unit, bucket))
              .part(slot.offset, slot.count),
          reducing_.write_mode(unit, position)};
}

void PassState::check_idle() const {
  require(!active_,
          "Engine: a pass is in progress, so parameters cannot be written or loaded: end the Pass "
          "first");
}

void PassState::check_readable(std::string_view call) const {
  require(!active_, "{}: a pass is in progress, and may change parameters: end the Pass first",
          call);
  setup_.check_values(call);
}

void PassState::wait_idle(Stream& stream) const {
  check_idle();
  gathering_.wait_updated(stream);
  gathering_.wait_written(stream);
  stream.wait(ended_);
}

void PassState::synchronize() const noexcept {
  settle(scheduler_);
  gathering_.synchronize_updates();
  settle(ended_);
}

Pass Engine::begin(const PassOptions& options, Stream& compute) {
  const OneThread one(EngineAccess::setup(*this).calling, "Engine::begin");
  EngineAccess::pass(*this).begin(options, compute);
  return Pass(*this);
}

void Engine::wait_gradients(Stream& compute) {
  const OneThread one(EngineAccess::setup(*this).calling, "wait_gradients");
  EngineAccess::pass(*this).wait_gradients(compute);
  EngineAccess::pass(*this).read_gradients();
}

void Engine::parameters_changed(Stream& compute) {
  EngineSetup& setup = EngineAccess::setup(*this);
  const OneThread one(setup.calling, "parameters_changed");
  setup.check_sealed("parameters_changed");
  EngineAccess::pass(*this).check_waited();
  EngineAccess::parameters_changed(*this, compute);
  EngineAccess::gathering(*this).add_writer(compute);
  setup.has_values = true;
}

void EngineAccess::parameters_changed(Engine& engine, Stream& compute) {
  pass(engine).change_parameters();
  gathering(engine).wait_updated(compute);  // an optimizer's step may update on another stream
  for (const auto& unit : engine.units()) {
    for (const UnitBucket& bucket : state_of(*unit).buckets) {
      if (bucket.compute_copy.count == 0) continue;
      setup(engine).ops().cast(compute, bucket.compute_copy, bucket.master);
    }
  }
  const Event updated = compute.record();
  for (std::size_t unit = 0; unit < engine.units().size(); ++unit) {
    gathering(engine).masters_updated(unit, updated, Stale::all);
  }
}

Pass::Pass(Engine& engine) : engine_(EngineAccess::link(engine)) {}
Pass::Pass(Pass&&) noexcept = default;
Pass::~Pass() {
  if (engine_ && *engine_) EngineAccess::pass(**engine_).end();
}

namespace {

Engine& engine_of(const EngineLink& link, std::string_view scope) {
  if (!link) {
    throw invalid("{}: this Pass has been moved: use the Pass that it was moved to", scope);
  }
  require(*link != nullptr,
          "{}: the engine of this Pass has been destroyed: destroy every Pass before its Engine",
          scope);
  return **link;
}

}  // namespace

ForwardScope Pass::forward(Unit& unit) {
  Engine& engine = engine_of(engine_, "forward");
  const OneThread one(EngineAccess::setup(engine).calling, "forward");
  return {engine, unit, EngineAccess::pass(engine).enter_forward(unit)};
}

BackwardScope Pass::backward(Unit& unit) {
  Engine& engine = engine_of(engine_, "backward");
  const OneThread one(EngineAccess::setup(engine).calling, "backward");
  return {engine, unit, EngineAccess::pass(engine).enter_backward(unit)};
}

ForwardScope::ForwardScope(Engine& engine, Unit& unit, std::size_t position)
    : engine_(EngineAccess::link(engine)),
      unit_(&unit),
      position_(position),
      pass_(EngineAccess::pass(engine).number()),
      exceptions_(std::uncaught_exceptions()) {}

ForwardScope::ForwardScope(ForwardScope&&) noexcept = default;

ForwardScope::~ForwardScope() {
  if (!engine_ || !*engine_) return;
  PassState& pass = EngineAccess::pass(**engine_);
  if (pass.number() != pass_) return;  // the pass has ended before this scope
  if (std::uncaught_exceptions() > exceptions_) pass.abandon();
  pass.leave(*unit_, position_);
}

void ForwardScope::check_usable(std::string_view param) const {
  // The unit ends with its engine, so its name is read only while the engine exists.
  require(engine_ != nullptr,
          "parameter {} is used through a scope that has been moved: use the scope that it was "
          "moved to",
          param);
  require(
      *engine_ != nullptr,
      "parameter {} is used after its engine has been destroyed: destroy every scope before its "
      "Engine",
      param);
  require(EngineAccess::pass(**engine_).number() == pass_,
          "parameter {} of unit {} is used after the end of its pass: destroy every scope before "
          "its Pass",
          param, unit_->name());
}

View ForwardScope::operator[](std::string_view param) const {
  check_usable(param);
  return EngineAccess::pass(**engine_).parameter(state_of(*unit_), param, position_);
}

Gradient BackwardScope::grad(std::string_view param) const {
  check_usable(param);
  return EngineAccess::pass(**engine_).gradient(state_of(*unit_), param, position_);
}

}  // namespace atoll_v1::atoll::fsdp
