// Saves on file systems that cannot lock folders. This file replaces flock() of the C library.
#include <doctest/doctest.h>
#include <sys/file.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <mutex>
#include <string>
#include <vector>

#include "atoll/log.hpp"
#include "unit/checkpoint/checkpoint.hpp"

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

// Collects warnings while it exists.
class Warnings {
 public:
  Warnings() {
    atoll::log::set_sink([this](atoll::log::Level level, std::string_view text) {
      const std::lock_guard lock(mutex_);
      if (level == atoll::log::Level::warn) texts_.emplace_back(text);
    });
  }
  ~Warnings() { atoll::log::set_sink(nullptr); }
  Warnings(const Warnings&) = delete;
  Warnings& operator=(const Warnings&) = delete;
  std::vector<std::string> texts() {
    const std::lock_guard lock(mutex_);
    return texts_;
  }

 private:
  std::mutex mutex_;
  std::vector<std::string> texts_;
};

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
  Warnings warnings;
  for (const int error : {ENOLCK, EOPNOTSUPP, EBADF}) {
    lock_error = error;
    save_with(first, folder, 1.0f);
    save_with(second, folder, 2.0f);
  }
  lock_error = 0;
  const auto texts = warnings.texts();
  REQUIRE(texts.size() == 1);
  CHECK(texts[0].find("checkpoint.partial: cannot lock this folder (No locks available), so atoll "
                      "cannot detect that two engines save to one folder") != std::string::npos);
  fsdp::load(folder, first.engine, first.optimizer);
  CHECK(first.has(2.0f));
}
