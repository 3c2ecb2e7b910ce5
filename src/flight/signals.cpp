#include "flight/signals.hpp"

#include <cxxabi.h>
#include <dlfcn.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <mutex>
#include <string_view>
#include <thread>

#include "core/log.hpp"
#include "flight/signal_targets.hpp"

#if __has_include(<execinfo.h>)
#include <execinfo.h>
#define ATOLL_HAS_BACKTRACE 1
#else
#define ATOLL_HAS_BACKTRACE 0
#endif

namespace atoll_v1::atoll {
namespace {

using Clock = std::chrono::steady_clock;
using Handler = void (*)(int);

bool has_handler(const struct sigaction& action, Handler handler) {
  return (action.sa_flags & SA_SIGINFO) == 0 && action.sa_handler == handler;
}

// Installs the handler in place of the default action. Returns false, and logs `refusal`, if the
// program handles or ignores the signal.
bool install(int signal, Handler handler, std::string_view refusal) {
  struct sigaction current {};
  if (::sigaction(signal, nullptr, &current) != 0) return false;
  if (has_handler(current, handler)) return true;
  if (!has_handler(current, SIG_DFL)) {
    log::info("{}", refusal);
    return false;
  }
  struct sigaction action {};
  action.sa_handler = handler;
  action.sa_flags = SA_RESTART | SA_ONSTACK;
  ::sigemptyset(&action.sa_mask);
  return ::sigaction(signal, &action, nullptr) == 0;
}

// Restores the default action, unless the program has installed another handler since.
void uninstall(int signal, Handler handler) {
  struct sigaction action {};
  if (::sigaction(signal, nullptr, &action) != 0 || !has_handler(action, handler)) return;
  action = {};
  action.sa_handler = SIG_DFL;
  ::sigaction(signal, &action, nullptr);
}

// The only global that the handler of SIGUSR1 uses.
constinit SignalTargetsOf<std::atomic, 64> targets;

extern "C" void atoll_flight_signalled(int) {
  const int saved = errno;
  targets.handle([](int fd, std::uint64_t value) {
    [[maybe_unused]] const ssize_t written = ::write(fd, &value, sizeof value);
  });
  errno = saved;
}

std::mutex installing;  // guards `users`, and the handler while it is installed or removed
int users = 0;

constexpr int most_frames = 64;
constexpr std::size_t most_name = 160;  // longest function name in a stack, in bytes
// Frames that are dropped from a stack: the handler, and the frame from which the kernel called it.
constexpr int frames_of_handler = 2;

// Inlined, so that this function does not appear as a frame of the stack.
[[gnu::always_inline]] inline int record_frames([[maybe_unused]] std::span<void*> frames) noexcept {
#if ATOLL_HAS_BACKTRACE
  return ::backtrace(frames.data(), static_cast<int>(frames.size()));
#else
  return 0;
#endif
}

// The place where one thread records its frames. `thread` is the id of that thread, or one of these
// values.
constexpr int is_free = 0;
constexpr int is_taken = -1;  // the handler is recording frames in the place
constexpr int is_done = -2;
struct Place {
  std::atomic<int> thread{is_free};
  int count = 0;
  std::array<void*, most_frames + frames_of_handler> frames{};
};
// The signal handler uses only these places and this counter.
std::array<Place, max_flight_stacks> places;
std::atomic<int> unhandled{0};  // number of sent signals that have not arrived

extern "C" void atoll_record_stack(int) {
  const int saved = errno;
  // take_stacks() reads `unhandled` after this place is done, so the decrement comes first.
  --unhandled;
  const int self = static_cast<int>(::syscall(SYS_gettid));
  for (Place& place : places) {
    int expected = self;
    if (!place.thread.compare_exchange_strong(expected, is_taken)) continue;
    place.count = record_frames(place.frames);
    place.thread = is_done;
    break;
  }
  errno = saved;
}

// Returns whether the thread blocks the signal, and so would not record its stack.
bool blocks(int signal, int thread) {
  std::ifstream status(fmt::format("/proc/self/task/{}/status", thread));
  constexpr std::string_view name = "SigBlk:";
  for (std::string line; std::getline(status, line);) {
    if (!line.starts_with(name)) continue;
    const std::uint64_t set = std::strtoull(line.c_str() + name.size(), nullptr, 16);
    return (set >> (signal - 1) & 1) != 0;
  }
  return false;
}

// Sends the signal to a thread; returns the place where the thread records its frames, or null.
Place* ask(int signal, int thread) {
  const auto place =
      std::ranges::find_if(places, [](const Place& p) { return p.thread == is_free; });
  if (place == places.end()) return nullptr;
  place->thread = thread;
  ++unhandled;
  if (::syscall(SYS_tgkill, ::getpid(), thread, signal) == 0) return &*place;
  --unhandled;
  place->thread = is_free;  // the thread has ended
  return nullptr;
}

// Waits until the thread has recorded its frames, and frees the place. Returns false at the
// deadline.
bool await(Place& place, int thread, Clock::time_point deadline) {
  while (place.thread != is_done) {
    if (Clock::now() >= deadline) {
      // If the handler has begun but not ended, the place is never used again, because the handler
      // may still write to it.
      int expected = thread;
      if (place.thread.compare_exchange_strong(expected, is_free) || expected == is_taken)
        return false;
    }
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
  return true;
}

std::string demangled(const char* symbol) {
  int status = 0;
  const std::unique_ptr<char, void (*)(void*)> text(
      abi::__cxa_demangle(symbol, nullptr, nullptr, &status), std::free);
  std::string name = status == 0 ? text.get() : symbol;
  if (name.size() > most_name) name = name.substr(0, most_name) + "...";
  return name;
}

std::string frame_text(const void* address) {
  Dl_info found{};
  if (::dladdr(address, &found) == 0 || found.dli_fname == nullptr) {
    return fmt::format("{}", address);
  }
  const auto offset_from = [&](const void* base) {
    return static_cast<const char*>(address) - static_cast<const char*>(base);
  };
  std::string_view file = found.dli_fname;
  file.remove_prefix(file.rfind('/') + 1);
  if (found.dli_sname == nullptr)
    return fmt::format("{}+{:#x}", file, offset_from(found.dli_fbase));
  return fmt::format("{}+{:#x} ({})", demangled(found.dli_sname), offset_from(found.dli_saddr),
                     file);
}

}  // namespace

FlightSignal::FlightSignal(int eventfd, std::uint64_t value) {
  const std::lock_guard lock(installing);
  place_ = targets.add(eventfd, value);
  if (place_ && users++ == 0) {
    install(SIGUSR1, atoll_flight_signalled,
            "the program has its own SIGUSR1 handler: the signal will not write flight files");
  }
}

FlightSignal::~FlightSignal() {
  if (!place_) return;
  const std::lock_guard lock(installing);
  if (--users == 0) uninstall(SIGUSR1, atoll_flight_signalled);
  targets.remove(*place_, [] { std::this_thread::yield(); });
}

int this_thread() noexcept {
  thread_local const int id = static_cast<int>(::syscall(SYS_gettid));
  return id;
}

void prepare_stacks() noexcept {
  std::array<void*, 4> frames{};
  record_frames(frames);
}

std::vector<RawStack> take_stacks(int signal, std::span<const FlightThread> threads,
                                  std::chrono::milliseconds patience) {
  static std::mutex taking;
  const std::lock_guard lock(taking);
  const std::string refusal = fmt::format(
      "the program handles or ignores signal {}, so the flight file has no stacks: choose another "
      "signal (ATOLL_STACK_SIGNAL)",
      signal);
  if (!install(signal, atoll_record_stack, refusal)) return {};
  std::vector<std::pair<const FlightThread*, Place*>> asked;
  for (const FlightThread& thread : threads) {
    if (thread.id == this_thread() || blocks(signal, thread.id)) continue;
    if (Place* const place = ask(signal, thread.id)) asked.emplace_back(&thread, place);
  }
  std::vector<RawStack> stacks;
  const Clock::time_point deadline = Clock::now() + patience;
  for (const auto& [thread, place] : asked) {
    if (!await(*place, thread->id, deadline)) continue;
    const auto first = place->frames.begin() + std::min(place->count, frames_of_handler);
    stacks.push_back({*thread, std::vector<void*>(first, place->frames.begin() + place->count)});
    place->thread = is_free;
  }
  // While a signal is on its way, the handler stays: the default action would end the process.
  if (unhandled == 0) uninstall(signal, atoll_record_stack);
  return stacks;
}

FlightStack named(const RawStack& stack) {
  FlightStack result{.thread = stack.thread.id, .role = stack.thread.role, .frames = {}};
  for (const void* const address : stack.frames) {
    if (result.frames.size() < max_flight_frames) result.frames.push_back(frame_text(address));
  }
  return result;
}

}  // namespace atoll_v1::atoll
