// Question: the number of the collective, -1 for messages, a space and the communicator's id.
// Answer: a flight log with this communicator, its operation at that number and some before it, its
// last one, and the one that the rank is in, whatever communicator that is on.
#include "flight/inquiry.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <utility>

#include "flight/story.hpp"
#include "core/log.hpp"
#include "core/world_internals.hpp"

namespace atoll_v1::atoll {
namespace {

constexpr std::chrono::milliseconds patience{2'000};
constexpr std::int64_t looked_back = 32;  // collectives

using How = store::Answered::How;

// What the answers are, by kind; ranks ascending.
struct Heard {
  std::vector<FlightLog> logs;
  std::vector<int> silent;
  std::vector<int> departed;
};

Heard sort_out(const std::vector<store::Answered>& answers, const Subject& subject) {
  Heard heard;
  std::vector<int> ranks = subject.ranks;
  std::ranges::sort(ranks);
  ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
  for (const int rank : ranks) {
    const store::Answered& answer = answers.at(static_cast<std::size_t>(rank));
    switch (answer.how) {
      case How::silent:
        heard.silent.push_back(rank);
        break;
      case How::departed:
        heard.departed.push_back(rank);
        break;
      case How::answered:
        if (answer.text.empty()) {
          heard.logs.emplace_back().rank = rank;
        } else {
          heard.logs.push_back(parse_flight(answer.text, fmt::format("answer of rank {}", rank)));
        }
        break;
    }
  }
  return heard;
}

Verdict find(const Heard& heard, const Subject& subject) {
  Verdict verdict;
  std::vector<std::string> sentences;
  std::vector<FlightView> views;
  for (const FlightLog& log : heard.logs) views.push_back(view_of(log, subject.communicator));
  // Who is silent explains why others wait: how far those are says nothing then.
  const auto views_are = heard.silent.empty() && heard.departed.empty() ? Views::all : Views::some;
  if (subject.collective >= 0) {
    Story story = tell_collective(views, subject.collective, views_are);
    verdict.disagreed = story.disagreed;
    sentences = std::move(story.sentences);
    // Calls that differ without a message of the wrong length pass a backend unseen, until ranks
    // that went different ways wait for each other.
    const std::int64_t earlier = first_disagreement(views);
    if (earlier >= 0 && earlier < subject.collective) {
      verdict.disagreed = true;
      sentences.insert(sentences.begin(),
                       tell_collective(views, earlier, Views::some).sentences.front());
    }
  } else {
    for (const FlightView& view : views) {
      sentences.push_back(fmt::format("rank {}: {}", view.rank(), last_text(view)));
    }
  }
  if (!heard.silent.empty()) {
    sentences.push_back(
        fmt::format("{} not answer (stopped, or the host unreachable)",
                    ranks_text(heard.silent) + (heard.silent.size() == 1 ? " does" : " do")));
  }
  if (!heard.departed.empty()) {
    sentences.push_back(ranks_text(heard.departed) +
                        (heard.departed.size() == 1 ? " has" : " have") + " left the job");
  }
  verdict.text = fmt::format("{}", fmt::join(sentences, "; "));
  return verdict;
}

}  // namespace

std::optional<Verdict> inquire(World& world, const Subject& subject) {
  try {
    const auto question = fmt::format("{} {}", subject.collective, subject.communicator);
    return find(sort_out(WorldInternals::ask(world, question, patience), subject), subject);
  } catch (const Error& error) {
    if (world.failure()) return std::nullopt;
    if (error.code() == ErrorCode::timeout) {
      return Verdict{false,
                     "rank 0, which serves the store, does not answer (stopped, or its host "
                     "unreachable)"};
    }
    log::error("cannot ask the other ranks: {}", error.what());
    return std::nullopt;
  }
}

namespace {

// A backend that compares signatures on the wire says "A called X where B called Y" itself.
bool wants_inquiry(const Error& error) {
  switch (error.code()) {
    case ErrorCode::timeout:
    case ErrorCode::backend:
      return true;
    case ErrorCode::mismatch:
      return std::string_view(error.what()).find(" called ") == std::string_view::npos;
    case ErrorCode::invalid_argument:
    case ErrorCode::not_found:
    case ErrorCode::unsupported:
    case ErrorCode::peer_lost:
    case ErrorCode::aborted:
    case ErrorCode::io:
    case ErrorCode::out_of_memory:
    case ErrorCode::bad_data:
    case ErrorCode::internal:
      return false;
  }
  return false;
}

Subject subject_of(const Communicator::Impl& impl, std::span<const Request> requests) {
  Subject subject;
  subject.communicator = impl.lane->description.id;
  // Pieces of a collective concern all of its ranks, also when they are messages of a few.
  const bool alone = !requests.empty() && requests.front().part_of < 0;
  if (alone && atoll_abi::is_message(requests.front().kind)) {
    for (const Request& request : requests) {
      subject.ranks.push_back(impl.axis.ranks[static_cast<std::size_t>(request.peer)]);
    }
    return subject;
  }
  subject.ranks = impl.axis.ranks;
  if (!requests.empty() && atoll_abi::is_message(requests.front().kind)) return subject;
  // Everything before it is complete: operations of a communicator run in order.
  subject.collective = static_cast<std::int64_t>(impl.lane->collectives_completed);
  return subject;
}

}  // namespace

Explained explain(Communicator::Impl& impl, const Error& own, std::span<const Request> requests) {
  if (!wants_inquiry(own) || impl.axis.size() == 1) return {own};
  if (impl.world.failure()) return {.error = own, .overtaken = true};
  const auto finding = inquire(impl.world, subject_of(impl, requests));
  if (!finding) return {.error = own, .overtaken = true};
  if (finding->text.empty()) return {own};
  return {Error(finding->disagreed ? ErrorCode::mismatch : own.code(),
                fmt::format("{}; {}", own.what(), finding->text)),
          finding->text};
}

Error Explained::among(const std::optional<Error>& first, bool echo) const {
  if (!first) return error;
  if (echo || overtaken) return *first;
  if (finding.empty()) return error;
  const bool same = std::string_view(first->what()).find(finding) != std::string_view::npos;
  return same ? Error(error.code(), first->what()) : *first;
}

std::string answer_inquiry(const FlightLog& log, std::string_view question) {
  std::int64_t collective = -1;
  const auto end =
      std::from_chars(question.data(), question.data() + question.size(), collective).ptr;
  const auto id = question.substr(
      std::min(question.size(), static_cast<std::size_t>(end - question.data()) + 1));
  const FlightView view = view_of(log, id);
  FlightLog answer;
  answer.rank = log.rank;
  answer.size = log.size;
  answer.host = log.host;
  answer.pid = log.pid;
  answer.reason = "question";
  answer.written_ns = log.written_ns;
  answer.monotonic_ns = log.monotonic_ns;
  std::vector<std::size_t> places(log.communicators.size(), 0);
  const auto keep = [&](std::size_t index) {
    answer.communicators.push_back(log.communicators[index]);
    places[index] = answer.communicators.size() - 1;
  };
  if (view.communicator) keep(view.index);
  const bool elsewhere =
      view.running && (!view.communicator || view.running->communicator != view.index);
  if (elsewhere) keep(view.running->communicator);
  for (const FlightOperation& operation : log.operations) {
    const bool asked = view.communicator && operation.communicator == view.index &&
                       operation.collective >= 0 && operation.collective <= collective &&
                       operation.collective > collective - looked_back;
    if (!asked && &operation != view.last && &operation != view.running) continue;
    answer.operations.push_back(operation);
    answer.operations.back().communicator = places[operation.communicator];
  }
  return to_json(answer);
}

}  // namespace atoll_v1::atoll
