#include "collectives/board.hpp"

#include <fmt/format.h>
#include <sched.h>

#include <algorithm>

#include "sdk/describe.hpp"
#include "sdk/guard.hpp"
#include "collectives/relax.hpp"

namespace atoll_sdk {
namespace {

using namespace std::chrono_literals;

// Phases of a step fit below the bit where its number begins.
constexpr int phase_bits = 24;
// Where every rank has a core: long enough to catch a peer that runs on another one, short against
// a time slice.
constexpr std::chrono::nanoseconds longest_spin = 20us;
constexpr std::chrono::nanoseconds shortest_spin = 500ns;
// A yield lets a peer run that shares this core; it costs about a context switch.
constexpr auto yield_limit = 200us;
constexpr int looks_between_clocks = 16;
// A sleeper is woken by what it waits for; the limit bounds how late abort and deadline are seen.
constexpr auto longest_sleep = 5ms;
// With sockets to drive as well, nobody wakes the sleeper for them.
constexpr auto longest_nap = 200us;

}  // namespace

Board::Board(Team& team, ShmTransport* transport)
    : team_(team), transport_(transport), patience_(longest_spin) {
  if (transport_ == nullptr) {
    ranks_ = {team.rank};
    seats_ = {&alone_};
    return;
  }
  ranks_ = transport_->ranks();
  self_ = static_cast<int>(transport_->self());
  for (std::size_t i = 0; i < ranks_.size(); ++i) seats_.push_back(&transport_->seat(i));
}

void Board::begin(const atoll_operation& operation, Exchange* exchange) {
  ++step_;
  operation_ = &operation;
  exchange_ = exchange;
  deadline_ = Clock::time_point::max();
}

Post& Board::announce(const Signature& signature) noexcept {
  Post& post = seats_[static_cast<std::size_t>(self_)]->posts[step_ & 1];
  const bool crowded = team_.waiting == Waiting::sleep;
  post = {digest(signature), signature.factor, crowded, {}, {}, signature};
  return post;
}

bool Board::crowded() const noexcept {
  for (int local = 0; local < size(); ++local) {
    if (!post_of(local).crowded) return false;
  }
  return true;
}

const Post& Board::post_of(int local) const noexcept {
  return seats_[static_cast<std::size_t>(local)]->posts[step_ & 1];
}

std::uint64_t Board::target(std::uint64_t phase) const noexcept {
  return (step_ << phase_bits) | phase;
}

void Board::mark(std::uint64_t phase) {
  seats_[static_cast<std::size_t>(self_)]->mark.store(target(phase), std::memory_order_seq_cst);
  if (transport_ != nullptr) transport_->tell_all();
}

// In one total order with announcing a sleep: see ShmTransport::tell_all().
bool Board::reached(std::uint64_t mark) noexcept {
  for (; seen_ < size(); ++seen_) {
    const auto& seat = *seats_[static_cast<std::size_t>(seen_)];
    if (seat.mark.load(std::memory_order_seq_cst) < mark) return false;
  }
  return true;
}

template <class Done>
void Board::wait(const Done& done, std::uint64_t mark) {
  const auto start = Clock::now();
  const auto timeout = std::chrono::nanoseconds(operation_->timeout_ns);
  if (deadline_ == Clock::time_point::max() && timeout > 0ns && timeout < deadline_ - start) {
    deadline_ = start + timeout;
  }
  while (!done()) {
    if (exchange_ != nullptr && exchange_->progress()) continue;
    if (Clock::now() - start < yield_limit) {
      ::sched_yield();
      continue;
    }
    check(mark);
    const auto limit = exchange_ != nullptr ? longest_nap : longest_sleep;
    transport_->sleep_until([&] { return done() || team_.aborted.load(); }, limit);
  }
}

void Board::await(std::uint64_t phase) {
  seen_ = 0;
  const std::uint64_t mark = target(phase);
  if (reached(mark)) return;
  if (spin(mark)) return;
  wait([&] { return reached(mark); }, mark);
}

// A rank that is late for a step whose jobs are all done may find the next one's numbers: they are
// larger.
std::int64_t Board::claim(std::uint64_t jobs) noexcept {
  auto& claimed = work().claimed;
  std::uint64_t seen = claimed.load(std::memory_order_acquire);
  while (true) {
    const std::uint64_t next = std::max(seen, target(0));
    if (next >= target(jobs)) return -1;
    if (claimed.compare_exchange_weak(seen, next + 1, std::memory_order_acq_rel)) {
      return static_cast<std::int64_t>(next - target(0));
    }
  }
}

void Board::finish_job() noexcept {
  auto& done = work().done;
  std::uint64_t seen = done.load(std::memory_order_acquire);
  while (
      !done.compare_exchange_weak(seen, std::max(seen, target(0)) + 1, std::memory_order_acq_rel)) {
  }
}

void Board::await_jobs(std::uint64_t jobs) {
  const auto done = [&] { return work().done.load(std::memory_order_seq_cst) >= target(jobs); };
  if (!done()) wait(done, target(1));
  if (transport_ != nullptr) transport_->tell_all();
}

bool Board::spin(std::uint64_t mark) {
  if (exchange_ != nullptr || team_.waiting == Waiting::sleep) return false;
  auto end = Clock::time_point::max();
  while (true) {
    for (int i = 0; i < looks_between_clocks; ++i) {
      if (reached(mark)) {
        patience_ = std::min(patience_ * 2, longest_spin);
        return true;
      }
      relax();
    }
    const auto now = Clock::now();
    if (end == Clock::time_point::max()) end = now + patience_;
    if (now >= end) break;
  }
  patience_ = std::max(patience_ / 4, shortest_spin);
  return false;
}

void Board::check(std::uint64_t mark) const {
  const auto label = [&] {
    return fmt::format("{} {} of communicator {} on {}, {} bytes", kind_name(operation_->kind),
                       operation_->sequence, team_.name, team_.describe(team_.rank),
                       operation_->count * dtype_size(operation_->dtype));
  };
  if (team_.aborted.load(std::memory_order_acquire)) {
    throw Error(ATOLL_ABORTED, fmt::format("{}: aborted; {}", label(), pending_text(mark)));
  }
  if (Clock::now() >= deadline_) {
    throw Error(ATOLL_TIMEOUT, fmt::format("{}: timed out after {:.3f} s; {}", label(),
                                           static_cast<double>(operation_->timeout_ns) * 1e-9,
                                           pending_text(mark)));
  }
  for (std::size_t i = 0; i < seats_.size(); ++i) {
    if (static_cast<int>(i) == self_) continue;
    // Before the mark: a rank that is done here may close at once.
    const bool closed = transport_->closed(i);
    if (closed && seats_[i]->mark.load(std::memory_order_seq_cst) < mark) {
      throw Error(ATOLL_PEER_LOST,
                  fmt::format("{}: lost {}: it has closed", label(), team_.describe(ranks_[i])));
    }
  }
}

std::string Board::pending_text(std::uint64_t mark) const {
  constexpr int most_named = 8;
  std::string text;
  int more = 0;
  int named = 0;
  for (std::size_t i = 0; i < seats_.size(); ++i) {
    const std::uint64_t theirs = seats_[i]->mark.load(std::memory_order_acquire);
    if (theirs >= mark) continue;
    if (++named > most_named) {
      ++more;
      continue;
    }
    text += fmt::format(
        "{}{}, which {}", text.empty() ? "waiting for " : "; ", team_.describe(ranks_[i]),
        theirs >> phase_bits == step_ ? "has come and not finished" : "has not come");
  }
  if (more > 0) text += fmt::format("; and {} more", more);
  return text.empty() ? "all ranks have come, and one of them has not finished its share" : text;
}

void Board::check_posts() const {
  const std::uint64_t mine = post_of(self_).call;
  for (int local = 0; local < size(); ++local) {
    if (post_of(local).call == mine) continue;
    throw_mismatch(team_.name, team_.describe(team_.rank), post_of(self_).signature,
                   team_.describe(rank_of(local)), post_of(local).signature);
  }
}

std::byte* Board::stage(int local) const noexcept {
  return transport_->stage(static_cast<std::size_t>(local), round_ & 1);
}

}  // namespace atoll_sdk
