#include "flight/flight.hpp"

#include <fmt/format.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <utility>

#include "core/errors.hpp"
#include "core/host.hpp"
#include "core/limits.hpp"
#include "core/log.hpp"
#include "core/size_signal_block.hpp"
#include "flight/inquiry.hpp"
#include "flight/observation.hpp"
#include "store/protocol.hpp"
#include "world/world_internals.hpp"

namespace atoll_v1::atoll {
namespace {

// Values that are added to the eventfd. Signals count in the lower 32 bits of its value and other
// changes in the upper 32 bits, so that one read returns both.
constexpr std::uint64_t signalled = 1;
constexpr std::uint64_t changed = std::uint64_t{1} << 32;

constexpr std::chrono::seconds write_patience{1};
// A lost rank ends all its communicators within this time. The file keeps the error of the first.
constexpr std::chrono::seconds same_failure{1};
constexpr std::chrono::milliseconds stack_patience{200};
// Period in which the thread checks whether it must end. It cannot rely on the eventfd, because the
// program may have closed the descriptor.
constexpr std::chrono::seconds look_period{1};

void replace_file(const std::string& path, std::string_view text) {
  const SizeSignalBlock block;
  const std::string fresh = fmt::format("{}.{}.tmp", path, ::getpid());
  std::ofstream out(fresh, std::ios::binary | std::ios::trunc);
  out.write(text.data(), static_cast<std::streamsize>(text.size()));
  out.close();
  std::error_code problem;
  if (out) std::filesystem::rename(fresh, path, problem);
  if (out && !problem) return;
  std::error_code ignored;
  std::filesystem::remove(fresh, ignored);
  throw make_error(ErrorCode::io, "cannot write {}{}{}", path, problem ? ": " : "",
                   problem ? problem.message() : "");
}

}  // namespace

std::shared_ptr<Flight> Flight::of(World& world) {
  auto companion =
      WorldInternals::companion(world, "flight", [&] { return std::make_shared<Flight>(world); });
  return std::static_pointer_cast<Flight>(std::move(companion));
}

Flight::Flight(World& world)
    : rank_(world.rank()),
      size_(world.size()),
      host_(net::host_name()),
      path_(world.config().flight.empty()
                ? ""
                : fmt::format("{}.{}.json", world.config().flight, world.rank())),
      stack_signal_(
          path_.empty() || world.config().owns_process == 0 ? 0 : world.config().stack_signal) {
  if (stack_signal_ != 0) prepare_stacks();
  if (!path_.empty()) {
    event_ = net::Fd(::eventfd(0, EFD_CLOEXEC));
    if (!event_) throw Error(ErrorCode::io, "eventfd: no file descriptor for the flight recorder");
    if (world.config().owns_process != 0)
      signal_ = std::make_unique<FlightSignal>(event_.get(), signalled);
  }
  subscription_ = world.on_failure([this](const Error& error) { fail(error, true); });
  questions_.add(std::string(store::observer_question), [this](std::string_view) {
    return encode_observation(log("observer"), recorder_.bytes());
  });
  questions_.add(std::string(inquiry_question), [this](std::string_view detail) {
    return answer_inquiry(log("question"), detail);
  });
  // These two statements come last: if the constructor threw after them, nobody would end the
  // thread, and the store would call a destroyed object.
  if (!path_.empty()) thread_ = start_thread([this] { serve(); });
  WorldInternals::store(world).answer_with([this](std::string_view name, std::string_view detail) {
    return questions_.answer(name, detail);
  });
}

Flight::~Flight() {
  subscription_ = {};
  signal_.reset();
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  wake(changed);
}

// Only passes the failure to the thread that writes the flight file, because a slow disk must not
// delay the abort of waiting operations. Takes the stacks before it returns, because the abort then
// ends the calls in which the threads wait.
void Flight::fail(const Error& error, bool of_job) {
  {
    const std::lock_guard lock(mutex_);
    const auto now = std::chrono::steady_clock::now();
    if (!of_job && now - failed_at_ < same_failure) return;
    failed_at_ = now;
    failure_ = std::string(error.what()).substr(0, max_flight_text);
    failure_written_ = false;
  }
  std::vector<RawStack> stacks = take_stacks();
  {
    const std::lock_guard lock(mutex_);
    stacks_ = std::move(stacks);
  }
  wake(changed);
}

// The stack of the main thread is included even if this thread has not called any operation.
std::vector<RawStack> Flight::take_stacks() const {
  if (stack_signal_ == 0) return {};
  std::vector<FlightThread> threads = recorder_.threads();
  const int main = static_cast<int>(::getpid());
  if (std::ranges::find(threads, main, &FlightThread::id) == threads.end()) {
    threads.push_back({main, "main"});
  }
  return atoll::take_stacks(stack_signal_, threads, stack_patience);
}

void Flight::wake(std::uint64_t value) const noexcept {
  if (!event_) return;
  [[maybe_unused]] const ssize_t written = ::write(event_.get(), &value, sizeof value);
}

FlightLog Flight::log(std::string_view reason) const {
  FlightLog log = recorder_.snapshot();
  log.rank = rank_;
  log.size = size_;
  log.host = host_;
  log.pid = static_cast<int>(::getpid());
  log.reason = reason;
  const std::lock_guard lock(mutex_);
  log.failure = failure_;
  for (const RawStack& stack : stacks_) log.stacks.push_back(named(stack));
  return log;
}

void Flight::write(std::string_view reason) {
  require(!path_.empty(),
          "write_flight: set Config::flight (ATOLL_FLIGHT) to the beginning of a file name, such "
          "as /tmp/run");
  const std::lock_guard lock(writing_);
  replace_file(path_, to_json(log(reason)));
}

void Flight::await_written() {
  if (path_.empty()) return;
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, write_patience, [&] { return failure_written_ && !is_writing_; });
}

void Flight::serve() {
  const auto try_write = [this](std::string_view reason) {
    try {
      write(reason);
      log::info("wrote {} ({})", path_, reason);
    } catch (const std::exception& problem) {
      log::error("{}", problem.what());
    }
  };
  for (;;) {
    std::uint64_t value = 0;
    bool is_closed = false;
    if (net::wait_for(event_.get(), POLLIN, net::Clock::now() + look_period)) {
      const ssize_t count = ::read(event_.get(), &value, sizeof value);
      is_closed = count != static_cast<ssize_t>(sizeof value) && (count >= 0 || errno != EINTR);
      if (is_closed) value = 0;
    }
    if (value % changed != 0) try_write("signal");
    std::unique_lock lock(mutex_);
    if (!failure_.empty() && !failure_written_) {
      failure_written_ = true;  // a failure during the write clears it, and the file is replaced
      is_writing_ = true;
      lock.unlock();
      try_write("failure");
      lock.lock();
      is_writing_ = false;
      changed_.notify_all();
    }
    if (ending_ || is_closed) return;
  }
}

FlightLog flight_log(World& world) { return Flight::of(world)->log("call"); }

void mark_step(World& world, std::int64_t step) { Flight::of(world)->recorder().mark_step(step); }

void write_flight(World& world) { Flight::of(world)->write("call"); }

}  // namespace atoll_v1::atoll
