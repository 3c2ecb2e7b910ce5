#include "collectives/shared_memory/local_sync.hpp"

#include <fmt/format.h>
#include <sched.h>

#include <algorithm>

#include "sdk/backend.hpp"

namespace atoll_collectives {
namespace {

using namespace std::chrono_literals;

// A position is a step and a phase in one number: the low bits hold the phase, the other bits the
// number of the step.
constexpr int phase_bits = 24;
// Limits for the adaptive spin, which is used only if every rank has a core. The longest spin is
// long enough to notice a peer that runs on another core, and short compared with a scheduler time
// slice.
constexpr std::chrono::nanoseconds longest_spin = 20us;
constexpr std::chrono::nanoseconds shortest_spin = 500ns;
// How long a waiting rank yields before it sleeps. Each yield lets a peer on the same core run and
// costs about one context switch.
constexpr auto yield_limit = 200us;
// Number of times that a waiting rank checks its peers between two readings of the clock.
constexpr int looks_between_clocks = 16;
// Maximum time of one sleep. The awaited event wakes the rank; this limit bounds how late the rank
// notices an abort or a deadline.
constexpr auto longest_local_sleep = 5ms;

}  // namespace

LocalSync::LocalSync(Team& team, ShmTransport* transport)
    : team_(team), transport_(transport), patience_(longest_spin) {
  if (transport_ == nullptr) {
    ranks_ = {team.rank};
    blocks_ = {&alone_};
    return;
  }
  ranks_ = transport_->ranks();
  self_ = static_cast<int>(transport_->self());
  for (std::size_t i = 0; i < ranks_.size(); ++i) blocks_.push_back(&transport_->control_block(i));
}

void LocalSync::begin(const atoll_operation& operation, Exchange* exchange) {
  ++step_;
  operation_ = &operation;
  exchange_ = exchange;
  deadline_ = Clock::time_point::max();
}

Advert& LocalSync::advertise() noexcept {
  const Signature signature = make_signature(*operation_, team_.size(), team_.collectives);
  Advert& advert = blocks_[static_cast<std::size_t>(self_)]->adverts[step_ & 1];
  const bool oversubscribed = team_.waiting == Waiting::sleep;
  advert = {digest(signature), signature.factor, oversubscribed, {}, {}, signature};
  return advert;
}

bool LocalSync::oversubscribed() const noexcept {
  for (int local = 0; local < size(); ++local) {
    if (!advert_of(local).oversubscribed) return false;
  }
  return true;
}

const Advert& LocalSync::advert_of(int local) const noexcept {
  return blocks_[static_cast<std::size_t>(local)]->adverts[step_ & 1];
}

std::uint64_t LocalSync::position(std::uint64_t phase) const noexcept {
  return (step_ << phase_bits) | phase;
}

void LocalSync::arrive(std::uint64_t phase) {
  blocks_[static_cast<std::size_t>(self_)]->progress.arrive(position(phase), [this] {
    if (transport_ != nullptr) transport_->notify_sleepers();
  });
}

// Returns true if all ranks have reached `target`.
bool LocalSync::reached(std::uint64_t target) noexcept {
  for (; seen_ < size(); ++seen_) {
    if (blocks_[static_cast<std::size_t>(seen_)]->progress.position() < target) return false;
  }
  return true;
}

template <class Done>
void LocalSync::wait(const Done& done, std::uint64_t target) {
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
    check(target);
    const auto is_over = [&] { return done() || team_.aborted.load(); };
    if (exchange_ != nullptr && exchange_->is_pending()) {
      exchange_->sleep_until(is_over, longest_local_sleep);
    } else {
      transport_->sleep_until(is_over, longest_local_sleep);
    }
  }
}

void LocalSync::await(std::uint64_t phase) {
  seen_ = 0;
  const std::uint64_t target = position(phase);
  if (reached(target)) return;
  if (spin(target)) return;
  wait([&] { return reached(target); }, target);
}

std::int64_t LocalSync::claim(std::uint64_t jobs) noexcept {
  return work().claim(position(0), position(jobs));
}

void LocalSync::finish_job() noexcept { work().finish(position(0)); }

void LocalSync::await_jobs(std::uint64_t jobs) {
  const auto done = [&] { return work().all_done(position(jobs)); };
  if (!done()) wait(done, position(1));
  if (transport_ != nullptr) transport_->notify_sleepers();
}

bool LocalSync::spin(std::uint64_t target) {
  if (exchange_ != nullptr || team_.waiting == Waiting::sleep) return false;
  auto end = Clock::time_point::max();
  while (true) {
    for (int i = 0; i < looks_between_clocks; ++i) {
      if (reached(target)) {
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

void LocalSync::check(std::uint64_t target) const {
  const auto label = [&] {
    return fmt::format("{} {} of communicator {} on {}, {} bytes", kind_name(operation_->kind),
                       operation_->sequence, team_.name, team_.describe(team_.rank),
                       operation_->count * dtype_size(operation_->dtype));
  };
  if (team_.aborted.load(std::memory_order_acquire)) {
    throw Error(ATOLL_ABORTED, fmt::format("{}: aborted; {}", label(), pending_text(target)));
  }
  if (Clock::now() >= deadline_) {
    throw Error(ATOLL_TIMEOUT, fmt::format("{}: timed out after {:.3f} s; {}", label(),
                                           static_cast<double>(operation_->timeout_ns) * 1e-9,
                                           pending_text(target)));
  }
  for (std::size_t i = 0; i < blocks_.size(); ++i) {
    if (static_cast<int>(i) == self_) continue;
    if (blocks_[i]->progress.has_left(transport_->closed(i), target)) {
      throw Error(ATOLL_PEER_LOST, fmt::format("{}: lost {}: that rank has closed the communicator",
                                               label(), team_.describe(ranks_[i])));
    }
  }
}

std::string LocalSync::pending_text(std::uint64_t target) const {
  std::vector<std::string> pending;
  for (std::size_t i = 0; i < blocks_.size(); ++i) {
    const std::uint64_t theirs = blocks_[i]->progress.position();
    if (theirs >= target) continue;
    pending.push_back(
        fmt::format("{}, which {}", team_.describe(ranks_[i]),
                    theirs >> phase_bits == step_ ? "has not finished" : "has not arrived"));
  }
  return waiting_text(pending,
                      "all ranks have arrived; a rank has not finished its share of the work");
}

void LocalSync::check_adverts() {
  const std::uint64_t mine = advert_of(self_).call;
  for (int local = 0; local < size(); ++local) {
    if (advert_of(local).call == mine) continue;
    throw_mismatch(team_.name, team_.describe(team_.rank), advert_of(self_).signature,
                   team_.describe(rank_of(local)), advert_of(local).signature);
  }
}

std::byte* LocalSync::staging(int local) const noexcept {
  return transport_->staging(static_cast<std::size_t>(local), round_ & 1);
}

std::byte* LocalSync::previous_staging(int local) const noexcept {
  return transport_->staging(static_cast<std::size_t>(local), (round_ + 1) & 1);
}

}  // namespace atoll_collectives
