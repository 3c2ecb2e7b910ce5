#include "control.hpp"

#include <fcntl.h>
#include <linux/futex.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <new>
#include <system_error>

namespace atoll_bench {

namespace {

[[noreturn]] void fail_control(const char* what) {
  throw std::system_error(errno, std::generic_category(), what);
}

// Stores `value` in `text`, unless a text has been stored before. The flag is 2 while the text is
// being written, so that no reader sees an incomplete text.
void set_once(std::atomic<std::uint32_t>& flag, std::array<char, 1024>& text,
              const std::string& value) {
  std::uint32_t fresh = 0;
  if (!flag.compare_exchange_strong(fresh, 2)) return;
  const std::size_t length = std::min(value.size(), text.size() - 1);
  std::memcpy(text.data(), value.data(), length);
  text[length] = '\0';
  flag.store(1);
}

}  // namespace

void SharedControl::Unmap::operator()(Control* control) const {
  ::munmap(control, sizeof *control);
}

SharedControl::SharedControl(int fd, std::string path) : path_(std::move(path)) {
  void* memory = ::mmap(nullptr, sizeof(Control), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (memory == MAP_FAILED) fail_control("mmap of the control block");
  control_.reset(static_cast<Control*>(memory));
}

SharedControl SharedControl::make() {
  // The descriptor stays open until the driver ends, because ranks open the memory through the path
  // of the descriptor.
  const int fd = ::memfd_create("bench_control", MFD_CLOEXEC);
  if (fd < 0 || ::ftruncate(fd, sizeof(Control)) != 0) fail_control("memfd_create");
  return {fd, "/proc/" + std::to_string(::getpid()) + "/fd/" + std::to_string(fd)};
}

SharedControl SharedControl::open(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (fd < 0) fail_control(path.c_str());
  SharedControl control(fd, path);
  ::close(fd);
  return control;
}

void wait_for_change(const std::atomic<std::uint32_t>& word, std::uint32_t seen,
                     std::chrono::milliseconds time) {
  const timespec limit{time.count() / 1000, time.count() % 1000 * 1'000'000};
  ::syscall(SYS_futex, &word, FUTEX_WAIT, seen, &limit, nullptr, 0);
}

void wake_all(std::atomic<std::uint32_t>& word) {
  ::syscall(SYS_futex, &word, FUTEX_WAKE, most_ranks + 1, nullptr, nullptr, 0);
}

void fail(Control& control, const std::string& reason) {
  set_once(control.failed, control.error, reason);
  wake_all(control.answers);
  wake_all(control.released);
}

void report_wrong(Control& control, const std::string& difference) {
  set_once(control.wrong, control.difference, difference);
}

std::int64_t now_ns() {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1'000'000'000LL + now.tv_nsec;
}

std::int64_t meet(Control& control, int ranks) {
  constexpr int yields = 200;
  const std::uint32_t before = control.released.load();
  if (control.arrived.fetch_add(1) + 1 == static_cast<std::uint32_t>(ranks)) {
    control.arrived.store(0);
    control.released_ns.store(now_ns());
    control.released.fetch_add(1);
    wake_all(control.released);
  } else {
    for (int i = 0; i < yields && control.released.load() == before; ++i) ::sched_yield();
    while (control.released.load() == before) {
      check(control);
      wait_for_change(control.released, before, std::chrono::milliseconds(100));
    }
  }
  return control.released_ns.load();
}

}  // namespace atoll_bench
