// With ATOLL_CHECK=lifetimes on the CPU device, callers get parameters and gradients through
// mappings that are protected while the content is not valid (GuardedMapping in
// device/backend.hpp).
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "device/backend.hpp"
#include "fsdp/storage.hpp"

namespace atoll_v1::atoll::fsdp {

// Each scope of a pass maps its memory separately: it has one mapping of the unit's unsharded
// parameters and, in backward, one of its unsharded gradients. So a view of one scope never shows
// the data of another, and units that share a page do not share its protection. On other devices,
// without a checker, and for memory that cannot be mapped twice, callers get the memory itself.
//
// The mapping is open from the point of the compute stream at which the unit is unsharded to the
// point at which the scope ends. The library itself uses the first mapping.
class Guards {
 public:
  Guards(EngineSetup& setup, const Storage& storage) : setup_(setup), storage_(storage) {}
  void seal();  // must be called once, after Storage::allocate()

  void open(Stream& compute, std::size_t position);
  void close(Stream& compute, std::size_t position);
  // Return the view that the scope at `position` gives to its caller: the same memory as `view`, at
  // the address of the second mapping if there is one.
  View parameters(std::size_t position, View view) const;
  View gradients(std::size_t position, View view) const;

 private:
  struct Guarded {
    const void* memory = nullptr;             // address in the first mapping
    std::shared_ptr<GuardedMapping> mapping;  // null if the memory is not guarded
    View view_of(View view) const;
  };
  struct Scope {
    Guarded parameters, gradients;
  };

  Guarded guard(View memory, GuardRule rule) const;
  Guarded guard_parameters(const UnitState& unit, std::size_t position) const;
  Guarded guard_gradients(const UnitState& unit) const;

  EngineSetup& setup_;
  const Storage& storage_;
  std::vector<Scope> scopes_;  // by position in the pass
};

}  // namespace atoll_v1::atoll::fsdp
