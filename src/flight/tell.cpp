// Implements tell_flight(), which explains the logs of a job to people.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <set>

#include "atoll/flight.hpp"
#include "core/errors.hpp"
#include "flight/story.hpp"

namespace atoll_v1::atoll {
namespace {

constexpr int most_with_stacks = 4;  // ranks of a communicator whose stacks are printed

using Logs = std::vector<const FlightLog*>;

Logs in_order(std::span<const FlightLog> logs) {
  if (logs.empty()) throw invalid("tell_flight: no logs");
  Logs result;
  for (const FlightLog& log : logs) result.push_back(&log);
  std::ranges::stable_sort(result, {}, [](const FlightLog* log) { return log->rank; });
  for (std::size_t i = 1; i < result.size(); ++i) {
    const FlightLog &a = *result[i - 1], &b = *result[i];
    require(
        a.size == b.size, ErrorCode::mismatch,
        "flight logs of different jobs: the job of rank {} has {} ranks, that of rank {} has {}",
        a.rank, a.size, b.rank, b.size);
    if (a.rank == b.rank) {
      throw make_error(ErrorCode::mismatch, "two flight logs of rank {}", a.rank);
    }
  }
  return result;
}

std::vector<int> missing(const std::vector<int>& all, const std::vector<int>& there) {
  std::vector<int> result;
  std::ranges::set_difference(all, there, std::back_inserter(result));
  return result;
}

std::string tell_job(const Logs& logs) {
  const int size = logs.front()->size;
  std::vector<int> all(static_cast<std::size_t>(size)), there;
  std::iota(all.begin(), all.end(), 0);
  for (const FlightLog* log : logs) there.push_back(log->rank);
  const std::vector<int> absent = missing(all, there);
  std::string text = fmt::format("{} rank{}; logs of {}", size, size == 1 ? "" : "s",
                                 absent.empty() && size > 1 ? "all" : ranks_text(there));
  if (!absent.empty()) text += fmt::format("; none of {}", ranks_text(absent));
  text += '\n';
  std::map<std::string, std::vector<int>> failures;
  for (const FlightLog* log : logs) failures[log->failure].push_back(log->rank);
  for (const auto& [failure, ranks] : failures) {
    if (failure.empty()) {
      text += fmt::format("{} knew of no failure\n", ranks_text(ranks));
    } else {
      text += fmt::format("failure, on {}: {}\n", ranks_text(ranks), failure);
    }
  }
  return text;
}

std::string tell_rank(const FlightView& view) {
  std::string text = fmt::format("  rank {}: ", view.rank());
  const FlightOperation* const running = view.running;
  if (running && running->communicator == view.index && view.communicator) {
    const auto ns = static_cast<double>(view.log->monotonic_ns - running->started_ns);
    return text + fmt::format("in {} for {:.3g} s\n", call_text(*running), ns * 1e-9);
  }
  if (view.last && view.last->state == FlightState::failed) {
    return text + fmt::format("{} failed: {}\n", call_text(*view.last), view.last->error);
  }
  return text + last_text(view) + '\n';
}

// Returns lines with the innermost frames of the threads in the log.
std::string tell_stacks(const FlightLog& log) {
  constexpr std::size_t most_stacks = 3, most_frames = 8;
  std::string text;
  for (std::size_t i = 0; i < std::min(most_stacks, log.stacks.size()); ++i) {
    const FlightStack& stack = log.stacks[i];
    text += fmt::format("  rank {}, {} thread {}:\n", log.rank, stack.role, stack.thread);
    for (std::size_t k = 0; k < std::min(most_frames, stack.frames.size()); ++k) {
      text += fmt::format("    {}\n", stack.frames[k]);
    }
    const std::size_t more = stack.frames.size() - std::min(most_frames, stack.frames.size());
    if (more > 0) text += fmt::format("    and {} more\n", more);
  }
  return text;
}

bool is_idle(const FlightView& view) {
  return view.communicator && view.communicator->completed == view.communicator->enqueued;
}

std::string tell_communicator(const Logs& logs, const FlightCommunicator& communicator) {
  std::vector<FlightView> views;
  std::vector<int> members = communicator.ranks, there;
  std::ranges::sort(members);
  for (const FlightLog* log : logs) {
    if (!std::ranges::binary_search(members, log->rank)) continue;
    views.push_back(view_of(*log, communicator.id));
    there.push_back(log->rank);
  }
  std::uint64_t done = communicator.collectives_completed, most = done;
  for (const FlightView& view : views) {
    const std::uint64_t own = view.communicator ? view.communicator->collectives_completed : 0;
    done = std::min(done, own);
    if (view.communicator) most = std::max(most, view.communicator->collectives_enqueued);
  }
  std::string text = fmt::format("communicator {} ({}, {}; {})\n", communicator.name,
                                 communicator.backend, ranks_text(members), communicator.id);
  const auto absent = missing(members, there);
  if (!absent.empty()) text += fmt::format("  no log of {}\n", ranks_text(absent));
  text += fmt::format("  collectives that all of these ranks have completed: {}", done);
  const auto last = static_cast<std::int64_t>(done) - 1;
  for (const FlightView& view : views) {
    const auto found = view.collectives.find(last);
    if (found == view.collectives.end()) continue;
    text += fmt::format(", the last one {}", call_text(*found->second));
    break;
  }
  text += '\n';
  const auto tell = [&](std::string_view title, std::int64_t collective) {
    text += fmt::format("  {}:\n", title);
    for (const auto& sentence : tell_collective(views, collective, Views::all).sentences) {
      text += fmt::format("    {}\n", sentence);
    }
  };
  const auto disagreement = first_disagreement(views);
  if (disagreement >= 0) {
    tell(fmt::format("calls differ at collective {}", disagreement), disagreement);
  }
  const auto next = static_cast<std::int64_t>(done);
  if (most > done && disagreement != next) tell(fmt::format("collective {}", next), next);
  if (most == done && std::ranges::all_of(views, is_idle)) return text;
  for (const FlightView& view : views) text += tell_rank(view);
  int told = 0;
  for (const FlightView& view : views) {
    const bool is_waited_for =
        most > done && !(view.communicator && view.communicator->collectives_enqueued > done);
    if (is_waited_for && told++ < most_with_stacks) text += tell_stacks(*view.log);
  }
  return text;
}

}  // namespace

std::string tell_flight(std::span<const FlightLog> logs) {
  const Logs sorted = in_order(logs);
  std::string text = tell_job(sorted);
  std::set<std::string, std::less<>> told;
  for (const FlightLog* log : sorted) {
    for (const FlightCommunicator& communicator : log->communicators) {
      if (told.insert(communicator.id).second) text += tell_communicator(sorted, communicator);
    }
  }
  return text;
}

std::string tell_flight(std::span<const std::filesystem::path> files) {
  std::vector<FlightLog> logs;
  for (const auto& file : files) logs.push_back(read_flight(file));
  return tell_flight(logs);
}

}  // namespace atoll_v1::atoll
