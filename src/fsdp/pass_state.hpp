// The state machine of a pass. It checks which unit may be used next, and starts gathers and
// reductions when scopes begin and end.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "fsdp/gathering.hpp"
#include "fsdp/pass_observer.hpp"
#include "fsdp/reducing.hpp"
#include "fsdp/step_comparison.hpp"

namespace atoll_v1::atoll::fsdp {

// At most one pass is in progress. A pass visits the positions of PassPlan::sequence in order; its
// scopes may be nested. A pass is abandoned if it ends before all units were used, if it ends while
// one of its scopes still exists, or if an exception leaves one of its scopes. Then no further
// gradients are reduced, and the step must begin again with micro batch 0.
class PassState {
 public:
  PassState(EngineSetup& setup, const Storage& storage, Gathering& gathering, Reducing& reducing)
      : setup_(setup), storage_(storage), gathering_(gathering), reducing_(reducing) {}

  void seal();  // must be called once, after Storage::allocate()

  // Implements Engine::begin() and throws its errors.
  void begin(const PassOptions& options, Stream& compute);
  // enter_forward() and enter_backward() begin a scope, which is one use of a unit, and return the
  // position of the scope in the pass.
  std::size_t enter_forward(Unit& unit);
  std::size_t enter_backward(Unit& unit);
  void abandon() noexcept { abandoned_ = true; }
  // Number of the pass in progress, from 1; 0 between passes.
  std::uint64_t number() const noexcept { return active_ ? number_ : 0; }
  // Ends a scope of the pass in progress. A failure fails the job, because peers would wait for
  // collectives that this rank has not enqueued.
  void leave(const Unit& unit, std::size_t position) noexcept;
  void end() noexcept;

  View parameter(const UnitState& unit, std::string_view param, std::size_t position) const;
  Gradient gradient(const UnitState& unit, std::string_view param, std::size_t position);
  // Makes `compute` wait until the gradients are final. Throws Error(invalid_argument), which names
  // `call`, if uses of units or micro batches of the step are missing, so that gradients are not
  // summed over all ranks.
  void wait_gradients(Stream& compute, std::string_view call = "wait_gradients");
  // read_gradients() declares that an optimizer of the caller may read the gradients.
  // change_parameters() declares that this optimizer, or another writer of master parameters, has
  // finished; it throws Error(invalid_argument) during a pass, until all scopes of the pass have
  // ended.
  void read_gradients() noexcept { gradients_read_ = true; }
  void change_parameters();
  // Throws Error(invalid_argument) if the gradients are complete, but no caller has waited for
  // them.
  void check_waited() const;
  // Throws Error(invalid_argument) if an earlier step of Optimizer has used the gradients.
  void check_unused() const;
  // Declares that a step of Optimizer uses the gradients.
  void use_gradients() noexcept;

  void check_idle() const;  // throws Error(invalid_argument) during a pass
  // For a call that reads parameters. Throws during a pass, because an update in backward may be
  // changing them, and while they have no values.
  void check_readable(std::string_view call) const;
  // Makes later work on `stream` wait until master parameters and states may be overwritten. Throws
  // Error(invalid_argument) during a pass.
  void wait_idle(Stream& stream) const;
  // Blocks until no stream uses the memory of the engine.
  void synchronize() const noexcept;

 private:
  bool is_training() const noexcept { return options_.kind == PassOptions::Kind::train; }
  std::size_t length() const noexcept;  // number of uses of units in this pass
  // Returns the stream that was passed to begin(). Throws Error(invalid_argument) if it has been
  // destroyed.
  Stream& compute() const;
  void check_closed() const;
  void check_begin(const PassOptions& options, const Stream& compute) const;
  void compare_kind(const PassOptions& options) const;
  void check_micro(const PassOptions& next) const;
  void check_usable(const Unit& unit, std::string_view scope) const;
  void check_order(const Unit& unit, std::size_t lowest, std::size_t end,
                   std::string_view scope) const;
  std::size_t begin_scope(Unit& unit, std::string_view scope);
  void synchronize_scope();
  void end_use(std::size_t position);

  EngineSetup& setup_;
  Scheduler& scheduler_ = setup_.scheduler;
  const PassPlan& plan_ = setup_.plan;
  const Storage& storage_;
  Gathering& gathering_;
  Reducing& reducing_;
  PassObserver observer_{setup_, storage_};
  MicroCount micro_count_{setup_.ranks};

  std::uint64_t number_ = 0;  // number of passes that have begun
  bool active_ = false;
  bool abandoned_ = false;
  std::optional<Error> finding_;      // error that the lifetime checker found at the end of a scope
  std::optional<Error> end_failure_;  // set if the end of a scope failed; then the pass is over
  PassOptions options_;
  StreamLink compute_;            // the stream that was passed to begin()
  std::size_t position_ = 0;      // position in the pass of the next scope
  std::size_t ended_uses_ = 0;    // number of unsharded periods (unshards) that have ended
  std::vector<int> open_scopes_;  // number of scopes for each unshard that are not complete
  int live_scopes_ = 0;           // number of scopes of the pass that have not been destroyed
  Event ended_;                   // event that happens when compute has finished the last pass
  int next_micro_ = 0;            // index of the next micro batch; 0 begins a new step
  int step_micros_ = 1;           // number of micro batches in the step
  bool gradients_complete_ = false;
  bool gradients_waited_ = false;  // true when wait_gradients() has succeeded for these gradients
  bool gradients_used_ = false;    // true when a step has used the complete gradients
  // True after a caller has waited for the gradients, until parameters change.
  bool gradients_read_ = false;
  bool warned_ = false;  // true when the warning about unchanged parameters has been logged
};

}  // namespace atoll_v1::atoll::fsdp
