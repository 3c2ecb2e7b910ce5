// Watches the scopes of a pass for the lifetime checker (ATOLL_CHECK=lifetimes), profilers and
// traces. It changes neither order nor values of the work of a pass.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "device/backend.hpp"
#include "fsdp/storage.hpp"

namespace atoll_v1::atoll::fsdp {

// The lifetime checker
//  - knows what each buffer holds, and which scope reads and writes it (StreamBackend);
//  - finds gradients that compute has not written: they are filled with NaN before;
//  - guards on the CPU device what scopes give to their callers. Each scope of a pass maps its
//    memory a second time (GuardedMapping): the unit's unsharded parameters and, in backward, its
//    unsharded gradients. So a view of one scope never shows the data of another, and units that
//    share a page do not share its protection. The mapping is open from the point of the compute
//    stream at which the unit is unsharded to the point at which the scope ends. The library itself
//    uses the first mapping. Memory that cannot be mapped twice is given to callers as it is.
class PassObserver {
 public:
  PassObserver(EngineSetup& setup, const Storage& storage) : setup_(setup), storage_(storage) {}
  void seal();  // must be called once, after Storage::allocate()

  // Call open() when the scope at `position` begins on `compute`, and close() when the scope ends.
  // Then call complete(), which checks gradients, unless the pass is abandoned. `mode` says how
  // compute writes the gradients of the unit; it is WriteMode::none in forward.
  void open(Stream& compute, std::size_t position, WriteMode mode);
  void close(Stream& compute, std::size_t position);
  void complete(Stream& compute, std::size_t position);

  // Returns the view that the scope at `position` gives to its caller: the same memory as `view`,
  // at the address of the second mapping if there is one.
  View parameters(std::size_t position, View view) const;
  // Like parameters(), for the gradient of one parameter.
  View gradient(std::size_t position, std::size_t param, View view);

  // Declare, in the order of `stream`, what a slot (a buffer that units use in turn) contains from
  // then on.
  static void hold_parameters(Stream& stream, const Buffer& slot, const UnitState& unit);
  static void hold_gradient(Stream& stream, const Buffer& slot, const UnitState& unit);
  static void hold_nothing(Stream& stream, const Buffer& slot);

 private:
  struct Guarded {
    const void* memory = nullptr;             // address of the memory in the first mapping
    std::shared_ptr<GuardedMapping> mapping;  // null if the memory is not guarded
    View view_of(View view) const;
  };
  struct Scope {
    Guarded parameters, gradients;
    // The members below describe the scope of the last pass.
    WriteMode mode = WriteMode::none;
    Stamp begun{};            // start of the scope, for traces
    std::uint64_t range = 0;  // id of the scope's range in profilers
  };

  bool is_backward(std::size_t position) const noexcept;
  const UnitState& unit_at(std::size_t position) const noexcept;
  Guarded guard(View memory, GuardRule rule) const;
  Guarded guard_parameters(const UnitState& unit, std::size_t position) const;
  Guarded guard_gradients(const UnitState& unit) const;
  void report_uses(Stream& compute, std::size_t position) const;
  // Returns true if the checker must find the gradients that the caller leaves unwritten.
  bool checks_gradients(std::size_t position) const;
  // Calls visit(param, gradient) for each parameter of the unit that has a gradient.
  template <class Visit>
  void each_gradient(const UnitState& unit, const Visit& visit) const;
  void check_gradients(Stream& compute, const UnitState& unit) const;
  // Logs a warning, once, if the backward scope that ends here has not asked for a gradient that it
  // must overwrite.
  void warn_of_unwritten(std::size_t position);

  EngineSetup& setup_;
  const Storage& storage_;
  std::vector<Scope> scopes_;  // scope at each position in the pass
  // For each unit and parameter: true when the last backward scope has asked for the gradient.
  std::vector<std::vector<bool>> asked_;
  bool warned_of_unwritten_ = false;
};

}  // namespace atoll_v1::atoll::fsdp
