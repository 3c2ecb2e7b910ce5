#include "report/phase.hpp"

#include <fmt/format.h>

#include <utility>

#include "report/log.hpp"

namespace train {
namespace {

PhaseDisplay* current = nullptr;

}  // namespace

PhaseDisplay::Intervals PhaseDisplay::usual(Surface surface) {
  using std::chrono::seconds;
  if (surface == Surface::terminal) return {seconds(1), seconds(1)};
  return {seconds(10), seconds(60)};
}

PhaseDisplay::PhaseDisplay(std::FILE* stream, Surface surface, Intervals intervals)
    : stream_(stream), surface_(surface), intervals_(intervals) {
  if (surface == Surface::silent) return;
  if (surface == Surface::terminal) {
    // Erases the line, which may be longer than the message. write() adds the rank again.
    atoll::log::set_sink([this](atoll::log::Level level, std::string_view text) {
      {
        const std::lock_guard lock(mutex_);
        erase();
      }
      atoll::log::write(level, text.substr(text.find(": ") + 2));
    });
  }
  thread_ = std::thread([this] { run(); });
  current = this;
}

PhaseDisplay::~PhaseDisplay() {
  if (!thread_.joinable()) return;
  if (surface_ == Surface::terminal) atoll::log::set_sink(nullptr);
  current = nullptr;
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
  }
  changed_.notify_one();
  thread_.join();
}

void PhaseDisplay::run() {
  std::unique_lock lock(mutex_);
  while (!ends_) {
    if (phases_.empty()) {
      changed_.wait(lock);
      continue;
    }
    const auto now = Clock::now();
    if (now < phases_.back().next) {
      const auto next = phases_.back().next;  // a new phase may move the entry during the wait
      changed_.wait_until(lock, next);
      continue;
    }
    show(phases_.back(), now);
    phases_.back().next = now + intervals_.next;
  }
}

// The cursor stays at the start of a terminal's line, so that what other programs write replaces
// it.
void PhaseDisplay::show(const Entry& entry, Clock::time_point now) {
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(now - entry.begin).count();
  std::string part = entry.total > 0 ? fmt::format(" ({} of {})", entry.done, entry.total) : "";
  if (0 < entry.done && entry.done < entry.total) {
    const double passed = std::chrono::duration<double>(now - entry.begin).count();
    const auto left = static_cast<double>(entry.total - entry.done);
    part.insert(part.size() - 1,
                ", " + clock_time(passed * left / static_cast<double>(entry.done)) + " left");
  }
  const std::string line = fmt::format("{}{}: {} s", entry.what, part, seconds);
  if (surface_ == Surface::log) return log::info("{}", line);
  fmt::print(stream_, "\r\x1b[K{}\r", line);
  std::fflush(stream_);
  line_open_ = true;
}

void PhaseDisplay::erase() {
  if (!line_open_) return;
  std::fputs("\r\x1b[K", stream_);
  std::fflush(stream_);
  line_open_ = false;
}

Phase::Phase(std::string what, Kind kind) : display_(current) {
  if (display_ == nullptr) return;
  {
    const std::lock_guard lock(display_->mutex_);
    const auto now = PhaseDisplay::Clock::now();
    const auto& [first, next] = display_->intervals_;
    display_->phases_.push_back(
        {std::move(what), now, now + (kind == Kind::repeated ? next : first)});
  }
  display_->changed_.notify_one();
}

Phase::~Phase() {
  if (display_ == nullptr) return;
  const std::lock_guard lock(display_->mutex_);
  display_->erase();
  display_->phases_.pop_back();
  if (display_->phases_.empty()) return;
  display_->phases_.back().next = PhaseDisplay::Clock::now() + display_->intervals_.first;
}

void Phase::progress(std::int64_t done, std::int64_t total) {
  if (display_ == nullptr) return;
  const std::lock_guard lock(display_->mutex_);
  display_->phases_.back().done = done;
  display_->phases_.back().total = total;
}

}  // namespace train
