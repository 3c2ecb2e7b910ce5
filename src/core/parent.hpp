// Ends a rank whose launcher has ended. Launchers end their ranks when they end in good order; a
// launcher that is killed cannot, and its ranks would otherwise run on.
#pragma once

#include <functional>
#include <memory>
#include <string_view>

#include "atoll/namespace.hpp"

namespace atoll_v1::atoll {

// Which process a rank watches if none of its ancestors has the name of a launcher.
enum class WithoutLauncher {
  watch_nothing,
  watch_parent,
};

class ParentWatch {
 public:
  // Called with the reason when the watched process has ended, on a thread of the watch.
  using Report = std::function<void(std::string_view reason)>;

  // Finds the nearest ancestor with the name of a launcher (mpirun, orted, slurmstepd, ...).
  // Returns null if there is nothing to watch, for example because the ancestors are in another PID
  // namespace.
  static std::unique_ptr<ParentWatch> find(WithoutLauncher otherwise);
  virtual ~ParentWatch() = default;
  // Begins to watch; may be called once. When the watched process has ended, even before this call,
  // the watch calls `report`. If the destructor does not run within 5 s after that, it ends this
  // process with status 1.
  virtual void start(Report report) = 0;

 protected:
  ParentWatch() = default;
  ParentWatch(const ParentWatch&) = delete;
  ParentWatch& operator=(const ParentWatch&) = delete;
};

}  // namespace atoll_v1::atoll
