#include "device/checked/fault_handler.hpp"

#include <signal.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>

namespace atoll_v1::atoll::checked {
namespace {

// A call of the handler that has passed its fault to another handler and waits for it. All calls
// for one fault have the same context: the address of the registers that the kernel saved.
struct Waiting {
  std::atomic<const void*> context{nullptr};  // null for a free entry
  std::atomic<std::uintptr_t> frame{0};       // address of the stack frame of the call
};

// A signal handler can find its data only through global variables, and must not lock a mutex.
std::atomic<ReportFault> report_fault{nullptr};
// The handlers that were replaced, the last one at the end.
std::array<struct sigaction, 8> replaced;
std::atomic<std::size_t> replaced_count{0};
std::array<Waiting, 32> waiting;

// Returns the number of calls of the handler that wait for the same fault. If a handler of the
// program has left by longjmp(), an older entry may have the same context. It does not count and is
// removed: its frame is not above `frame`, as the frame of a call that waits must be.
std::size_t calls_that_wait(const void* context, std::uintptr_t frame) {
  std::size_t calls = 0;
  for (Waiting& entry : waiting) {
    if (entry.context != context) continue;
    if (entry.frame > frame) {
      ++calls;
    } else {
      entry.context = nullptr;
    }
  }
  return calls;
}

Waiting* take_entry(const void* context, std::uintptr_t frame) {
  for (Waiting& entry : waiting) {
    const void* free = nullptr;
    if (!entry.context.compare_exchange_strong(free, context)) continue;
    entry.frame = frame;
    return &entry;
  }
  return nullptr;
}

void on_signal(int number, siginfo_t* info, void* context) {
  if (report_fault.load()(reinterpret_cast<std::uintptr_t>(info->si_addr))) {
    // The signal is blocked during this handler, so it ends the process when the handler returns.
    ::signal(number, SIG_DFL);
    ::raise(number);
    return;
  }
  const auto frame = reinterpret_cast<std::uintptr_t>(__builtin_frame_address(0));
  const std::size_t calls = calls_that_wait(context, frame), count = replaced_count;
  Waiting* const entry = calls < count ? take_entry(context, frame) : nullptr;
  if (entry != nullptr) {
    const struct sigaction& next = replaced[count - 1 - calls];
    const bool is_function = (next.sa_flags & SA_SIGINFO) != 0 ||
                             (next.sa_handler != SIG_DFL && next.sa_handler != SIG_IGN);
    if (is_function) {
      if ((next.sa_flags & SA_SIGINFO) != 0) {
        next.sa_sigaction(number, info, context);
      } else {
        next.sa_handler(number);
      }
      entry->context = nullptr;
      return;
    }
    entry->context = nullptr;
  }
  ::signal(number, SIG_DFL);  // the instruction runs again and ends the process
}

bool is_equal(const struct sigaction& a, const struct sigaction& b) {
  if ((a.sa_flags & SA_SIGINFO) != (b.sa_flags & SA_SIGINFO)) return false;
  return (a.sa_flags & SA_SIGINFO) != 0 ? a.sa_sigaction == b.sa_sigaction
                                        : a.sa_handler == b.sa_handler;
}

}  // namespace

void install_fault_handler(ReportFault report) {
  struct sigaction mine {};
  mine.sa_sigaction = on_signal;
  mine.sa_flags = SA_SIGINFO;
  struct sigaction current {};
  ::sigaction(SIGSEGV, nullptr, &current);
  if (is_equal(current, mine)) return;
  report_fault = report;
  const std::size_t count = replaced_count;
  if (count == 0 || !is_equal(current, replaced[count - 1])) {
    const std::size_t at = std::min(count, replaced.size() - 1);
    replaced[at] = current;
    replaced_count = at + 1;
  }
  mine.sa_flags |= current.sa_flags & SA_ONSTACK;
  ::sigaction(SIGSEGV, &mine, nullptr);
}

}  // namespace atoll_v1::atoll::checked
