// Saves on file systems that cannot lock folders. This file replaces flock() of the C library.
#include <doctest/doctest.h>
#include <sys/file.h>
#include <sys/syscall.h>

#include <atomic>
#include <cerrno>

#include "unit/checkpoint/checkpoint.hpp"
#include "unit/collected_log.hpp"

using namespace atoll_test::checkpoint;
using train_test::failure_of;
using train_test::TemporaryFolder;

namespace {

std::atomic<int> lock_error = 0;     // the error that flock() returns; 0: none
std::atomic<int> interruptions = 0;  // number of calls that first fail with EINTR

}  // namespace

extern "C" int flock(int file, int operation) noexcept {
  if (interruptions > 0) {
    --interruptions;
    errno = EINTR;
    return -1;
  }
  if (lock_error == 0) return static_cast<int>(::syscall(SYS_flock, file, operation));
  errno = lock_error;
  return -1;
}

namespace {

void save_with(Job& job, const fs::path& folder, float value) {
  job.fill(value);
  fsdp::save(folder, job.engine, job.optimizer);
}

}  // namespace

TEST_CASE("a second engine that saves to one folder is an error, also after an interrupted lock") {
  const TemporaryFolder temporary;
  const fs::path folder = temporary.path() / "checkpoint";
  auto world = atoll_test::single_rank();
  Job first(world, 40), second(world, 40);
  interruptions = 3;
  save_with(first, folder, 1.0f);
  CHECK(interruptions == 0);
  CHECK(failure_of([&] {
          save_with(second, folder, 2.0f);
        }).says("checkpoint: another engine saves to this folder, or has saved to it"));
  save_with(first, folder, 3.0f);
}

TEST_CASE("a file system without locks gives one warning, and saves work") {
  const TemporaryFolder temporary;
  const fs::path folder = temporary.path() / "checkpoint";
  auto world = atoll_test::single_rank();
  Job first(world, 40), second(world, 40);
  const atoll_test::CollectedLog log;
  for (const int error : {ENOLCK, EOPNOTSUPP, EBADF}) {
    lock_error = error;
    save_with(first, folder, 1.0f);
    save_with(second, folder, 2.0f);
  }
  lock_error = 0;
  CHECK(log.count("") == 1);
  CHECK(log.count("checkpoint.partial: cannot lock this folder (No locks available), so atoll "
                  "cannot detect that two engines save to one folder") == 1);
  fsdp::load(folder, first.engine, first.optimizer);
  CHECK(first.has(2.0f));
}
