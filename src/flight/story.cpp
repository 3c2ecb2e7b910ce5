#include "flight/story.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>

namespace atoll_v1::atoll {
namespace {

constexpr std::size_t most_sentences = 8;  // largest number of sentences or calls in a text

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

// Describes how far a collective is on the ranks that called it. Ranks in the same state are listed
// together.
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
  // In all_to_all_v every rank has its own count.
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

Story tell_collective(const std::vector<FlightView>& views, std::int64_t collective,
                      Views completeness) {
  Story story;
  std::vector<CallOfRanks> calls = calls_at(views, collective);
  story.disagreed = calls.size() > 1;
  if (story.disagreed) story.sentences.push_back(disagreement_text(calls));
  const std::string name = calls.empty() ? "it" : name_text(calls[0].operation);
  std::vector<int> more;
  for (const FlightView& view : views) {
    if (has_called(view, collective)) continue;
    if (story.sentences.size() > most_sentences) {
      more.push_back(view.rank());
    } else {
      story.sentences.push_back(
          fmt::format("rank {} never called {} ({})", view.rank(), name, last_text(view)));
    }
  }
  if (!more.empty()) story.sentences.push_back(ranks_text(more) + " did not either");
  if (!story.sentences.empty() || completeness == Views::some) return story;
  story.sentences = progress(views, collective, name);
  if (story.sentences.size() > most_sentences) {
    const std::size_t rest = story.sentences.size() - most_sentences;
    story.sentences.resize(most_sentences);
    story.sentences.push_back(fmt::format("and {} more", rest));
  }
  return story;
}

}  // namespace atoll_v1::atoll
