#include "flight/explanation.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <numeric>
#include <set>

#include "core/errors.hpp"

namespace atoll_v1::atoll {
namespace {

constexpr std::size_t most_sentences = 8;  // largest number of sentences or calls in a text
constexpr int most_with_stacks = 4;        // largest number of ranks whose stacks are printed

bool is_message(const FlightOperation& operation) { return operation.collective < 0; }

const FlightOperation* find(const FlightView& view, std::int64_t collective) {
  const auto found = view.collectives.find(collective);
  return found == view.collectives.end() ? nullptr : found->second;
}

bool has_called(const FlightView& view, std::int64_t collective) {
  return view.communicator &&
         view.communicator->collectives_enqueued > static_cast<std::uint64_t>(collective);
}

std::string_view progress_text(FlightState state) {
  constexpr std::array<std::string_view, 4> texts = {"not started", "in progress", "complete",
                                                     "failed"};
  return texts[static_cast<std::size_t>(state)];
}

// Returns the different calls that ranks made as collective number `collective`, the most frequent
// call first.
std::vector<CallOfRanks> calls_at(const std::vector<FlightView>& views, std::int64_t collective) {
  std::vector<CallOfRanks> calls;
  for (const FlightView& view : views) {
    const FlightOperation* operation = find(view, collective);
    if (!operation) continue;
    auto call = std::ranges::find_if(
        calls, [&](const CallOfRanks& known) { return same_call(known.operation, *operation); });
    if (call == calls.end()) call = calls.insert(calls.end(), CallOfRanks{*operation, {}});
    call->ranks.push_back(view.rank());
  }
  return calls;
}

// Describes how far the ranks that called a collective are in it. Ranks in the same state are
// listed together.
std::vector<std::string> progress(const std::vector<FlightView>& views, std::int64_t collective,
                                  std::string_view name) {
  std::map<FlightState, std::vector<int>> ranks_in;
  std::vector<std::string> result;
  for (const FlightView& view : views) {
    if (!has_called(view, collective)) continue;
    const FlightOperation* operation = find(view, collective);
    const FlightState state = operation ? operation->state : FlightState::completed;
    if (state != FlightState::enqueued) {
      ranks_in[state].push_back(view.rank());
      continue;
    }
    result.push_back(fmt::format(
        "rank {} has enqueued {}, {}", view.rank(), name,
        view.running
            ? fmt::format("which waits for {} of communicator {}", call_text(*view.running),
                          view.log->communicators[view.running->communicator].name)
            : "but its stream has not reached this operation"));
  }
  const auto add = [&](FlightState state, std::string_view one, std::string_view all) {
    const std::vector<int>& ranks = ranks_in[state];
    if (ranks.empty()) return;
    const auto verb = ranks.size() == 1 ? one : all;
    result.push_back(fmt::format("{} {} {}", ranks_text(ranks), verb, name));
  };
  add(FlightState::started, "is in", "are in");
  add(FlightState::failed, "has failed in", "have failed in");
  add(FlightState::completed, "has completed", "have completed");
  return result;
}

using Logs = std::vector<const FlightLog*>;

Logs in_order(std::span<const FlightLog> logs) {
  if (logs.empty()) throw invalid("explain_flight: no logs");
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

std::vector<int> without(const std::vector<int>& all, const std::vector<int>& there) {
  std::vector<int> result;
  std::ranges::set_difference(all, there, std::back_inserter(result));
  return result;
}

std::string job_summary(const Logs& logs) {
  const int size = logs.front()->size;
  std::vector<int> all(static_cast<std::size_t>(size)), there;
  std::iota(all.begin(), all.end(), 0);
  for (const FlightLog* log : logs) there.push_back(log->rank);
  const std::vector<int> absent = without(all, there);
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

std::string rank_line(const FlightView& view) {
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
std::string stack_lines(const FlightLog& log) {
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

std::string communicator_summary(const Logs& logs, const FlightCommunicator& communicator) {
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
  const auto absent = without(members, there);
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
  const auto add = [&](std::string_view title, std::int64_t collective) {
    text += fmt::format("  {}:\n", title);
    for (const auto& sentence : explain_collective(views, collective, Views::all).sentences) {
      text += fmt::format("    {}\n", sentence);
    }
  };
  const auto disagreement = first_disagreement(views);
  if (disagreement >= 0) {
    add(fmt::format("calls differ at collective {}", disagreement), disagreement);
  }
  const auto next = static_cast<std::int64_t>(done);
  if (most > done && disagreement != next) add(fmt::format("collective {}", next), next);
  if (most == done && std::ranges::all_of(views, is_idle)) return text;
  for (const FlightView& view : views) text += rank_line(view);
  int with_stacks = 0;
  for (const FlightView& view : views) {
    const bool is_waited_for =
        most > done && !(view.communicator && view.communicator->collectives_enqueued > done);
    if (is_waited_for && with_stacks++ < most_with_stacks) text += stack_lines(*view.log);
  }
  return text;
}

}  // namespace

std::string name_text(const FlightOperation& o) {
  const std::string own = fmt::format("{} {}", o.kind, o.sequence);
  return o.part_of.empty() ? own : fmt::format("{} of {}", own, o.part_of);
}

std::string call_text(const FlightOperation& o) {
  std::string text = name_text(o);
  if (o.kind == "barrier") return text;
  text += fmt::format(" ({} x {}", o.count, o.dtype);
  if (!o.op.empty()) text += fmt::format(", {}", o.op);
  if (o.peer >= 0) text += fmt::format(", {} {}", is_message(o) ? "peer" : "root", o.peer);
  return text + ")";
}

std::string disagreement_text(std::vector<CallOfRanks>& calls) {
  std::ranges::stable_sort(calls, std::ranges::greater{},
                           [](const CallOfRanks& call) { return call.ranks.size(); });
  const auto text_of = [](const CallOfRanks& call) {
    return fmt::format("{} called {}", ranks_text(call.ranks), call_text(call.operation));
  };
  std::string text;
  for (std::size_t i = 1; i < calls.size() && i <= most_sentences; ++i) {
    text += (i > 1 ? ", " : "") + text_of(calls[i]);
  }
  if (calls.size() > most_sentences + 1) text += ", other ranks called other operations";
  return fmt::format("{} where {}", text, text_of(calls[0]));
}

std::string ranks_text(const std::vector<int>& ranks) {
  if (ranks.size() == 1) return fmt::format("rank {}", ranks.front());
  std::vector<std::string> runs;
  for (std::size_t i = 0; i < ranks.size();) {
    std::size_t end = i + 1;
    while (end < ranks.size() && ranks[end] == ranks[end - 1] + 1) ++end;
    if (end - i < 3) end = i + 1;
    runs.push_back(end == i + 1 ? std::to_string(ranks[i])
                                : fmt::format("{}-{}", ranks[i], ranks[end - 1]));
    i = end;
  }
  return fmt::format("ranks {}", fmt::join(runs, ", "));
}

bool same_call(const FlightOperation& a, const FlightOperation& b) {
  if (a.kind != b.kind || a.part_of != b.part_of) return false;
  if (a.kind == "barrier") return true;
  // Each rank passes its own count to all_to_all_v, so these counts are not compared.
  const bool counts_agree = a.count == b.count || a.kind == "all_to_all_v";
  return a.dtype == b.dtype && counts_agree && a.op == b.op && a.peer == b.peer;
}

FlightView view_of(const FlightLog& log, std::string_view id) {
  FlightView view;
  view.log = &log;
  for (std::size_t i = 0; i < log.communicators.size(); ++i) {
    if (log.communicators[i].id != id) continue;
    view.communicator = &log.communicators[i];
    view.index = i;
  }
  for (const FlightOperation& operation : log.operations) {
    if (!view.running && operation.state == FlightState::started) view.running = &operation;
    if (!view.communicator || operation.communicator != view.index) continue;
    view.last = &operation;
    if (!is_message(operation)) view.collectives[operation.collective] = &operation;
  }
  return view;
}

std::string last_text(const FlightView& view) {
  const FlightCommunicator* c = view.communicator;
  std::string text;
  if (!c) {
    text = "it has not opened this communicator";
  } else if (c->enqueued == 0) {
    text = "it has called no operation on this communicator";
  } else if (view.last) {
    text = fmt::format("its last operation on this communicator was {}, {}", name_text(*view.last),
                       progress_text(view.last->state));
  } else {
    text = fmt::format("its last operation on this communicator was number {}, {}", c->enqueued - 1,
                       c->completed >= c->enqueued ? "complete" : "not complete");
  }
  if (c && c->closed) text += "; it has closed the communicator since";
  if (view.running && (!c || view.running->communicator != view.index)) {
    text += fmt::format("; it is in {} of communicator {}", call_text(*view.running),
                        view.log->communicators[view.running->communicator].name);
  }
  return text;
}

std::int64_t first_disagreement(const std::vector<FlightView>& views) {
  std::map<std::int64_t, const FlightOperation*> known;
  std::int64_t first = -1;
  for (const FlightView& view : views) {
    for (const auto& [number, operation] : view.collectives) {
      if (first >= 0 && number >= first) break;
      const auto [entry, fresh] = known.try_emplace(number, operation);
      if (!fresh && !same_call(*entry->second, *operation)) first = number;
    }
  }
  return first;
}

Explanation explain_collective(const std::vector<FlightView>& views, std::int64_t collective,
                               Views completeness) {
  std::vector<CallOfRanks> calls = calls_at(views, collective);
  Explanation result{calls.size() > 1, {}};
  std::vector<std::string>& sentences = result.sentences;
  if (result.disagreed) sentences.push_back(disagreement_text(calls));
  const std::string name = calls.empty() ? "it" : name_text(calls[0].operation);
  std::vector<int> more;
  for (const FlightView& view : views) {
    if (has_called(view, collective)) continue;
    if (sentences.size() > most_sentences) {
      more.push_back(view.rank());
    } else {
      sentences.push_back(
          fmt::format("rank {} never called {} ({})", view.rank(), name, last_text(view)));
    }
  }
  if (!more.empty()) sentences.push_back(ranks_text(more) + " did not either");
  if (!sentences.empty() || completeness == Views::some) return result;
  sentences = progress(views, collective, name);
  if (sentences.size() > most_sentences) {
    const std::size_t rest = sentences.size() - most_sentences;
    sentences.resize(most_sentences);
    sentences.push_back(fmt::format("and {} more", rest));
  }
  return result;
}

std::string explain_flight(std::span<const FlightLog> logs) {
  const Logs sorted = in_order(logs);
  std::string text = job_summary(sorted);
  std::set<std::string, std::less<>> known;
  for (const FlightLog* log : sorted) {
    for (const FlightCommunicator& communicator : log->communicators) {
      if (known.insert(communicator.id).second) text += communicator_summary(sorted, communicator);
    }
  }
  return text;
}

std::string explain_flight(std::span<const std::filesystem::path> files) {
  std::vector<FlightLog> logs;
  for (const auto& file : files) logs.push_back(read_flight(file));
  return explain_flight(logs);
}

}  // namespace atoll_v1::atoll
