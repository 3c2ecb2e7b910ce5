// The results folder of a run: one run at a time writes there, and none over the results of
// another.
#pragma once

#include <filesystem>

#include "atoll/world.hpp"
#include "loop/options.hpp"

namespace train {

// Holds the lock of a results folder, on rank 0 only. The kernel frees it when the process ends.
class RunFolder {
 public:
  RunFolder() = default;
  // Creates the folder and locks it by the file run.lock. File systems without locks are used
  // without one. Collective. Throws Error(invalid_argument) on every rank if another run holds the
  // folder, or if the run would mix its checkpoints with those of an earlier run, which it does not
  // resume. Throws Error(io) if the folder cannot be made.
  RunFolder(atoll::World& world, const RunOptions& options, const std::filesystem::path& out);
  RunFolder(RunFolder&& other) noexcept;
  RunFolder& operator=(RunFolder&& other) noexcept;
  RunFolder(const RunFolder&) = delete;
  RunFolder& operator=(const RunFolder&) = delete;
  // Removes run.lock, and the folder if this run has made it and has written nothing.
  ~RunFolder();

  // Throws Error(io) if the folder has been moved, deleted or replaced, so that the lock no longer
  // protects it. Does nothing on the ranks that do not hold the lock.
  void check() const;

 private:
  void lock();

  std::filesystem::path out_;
  int fd_ = -1;
  bool made_ = false;
};

// Whether the run resumes a checkpoint that is not in its results folder.
bool resumes_other_folder(const RunOptions& options, const std::filesystem::path& out);

// Moves the results of an earlier run without checkpoints to OUT/earlier-N. Returns this folder, or
// an empty path if there are none. Throws Error(io).
std::filesystem::path set_earlier_results_aside(const std::filesystem::path& out);

}  // namespace train
