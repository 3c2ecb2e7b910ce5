// A question is the number of the collective (-1 for messages), a space and the communicator's id.
//
// An answer is a flight log, cut down to that communicator's operation with this number and some
// before it, its last operation, and the operation that the rank is in on any communicator.
#include "flight/inquiry.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>
#include <utility>

#include "core/log.hpp"
#include "core/text.hpp"
#include "core/world_internals.hpp"
#include "flight/story.hpp"

namespace atoll_v1::atoll {
namespace {

constexpr std::chrono::milliseconds patience{2'000};
constexpr std::int64_t looked_back = 32;  // largest number of collectives in an answer

using How = store::Answered::How;

// Logs of the ranks that answered a question, and the ranks that did not, in ascending order.
struct Answers {
  std::vector<FlightLog> logs;
  std::vector<int> silent;    // ranks that did not answer in time
  std::vector<int> departed;  // ranks that have left the job
};

Answers sort_out(const std::vector<store::Answered>& answers, const InquirySubject& subject) {
  Answers sorted;
  for (const int rank : std::set<int>(subject.ranks.begin(), subject.ranks.end())) {
    const store::Answered& answer = answers.at(static_cast<std::size_t>(rank));
    switch (answer.how) {
      case How::silent:
        sorted.silent.push_back(rank);
        break;
      case How::departed:
        sorted.departed.push_back(rank);
        break;
      case How::answered:
        if (answer.text.empty()) {
          sorted.logs.emplace_back().rank = rank;
        } else {
          sorted.logs.push_back(parse_flight(answer.text, fmt::format("answer of rank {}", rank)));
        }
        break;
    }
  }
  return sorted;
}

InquiryResult find(const Answers& sorted, const InquirySubject& subject) {
  InquiryResult result;
  std::vector<std::string> sentences;
  std::vector<FlightView> views;
  for (const FlightLog& log : sorted.logs) views.push_back(view_of(log, subject.communicator));
  // If a rank did not answer, the others wait for that rank, so their progress is not described.
  const auto views_are =
      sorted.silent.empty() && sorted.departed.empty() ? Views::all : Views::some;
  if (subject.collective >= 0) {
    Story story = tell_collective(views, subject.collective, views_are);
    result.disagreed = story.disagreed;
    sentences = std::move(story.sentences);
    // If ranks made different calls that move the same number of bytes, a backend may not notice.
    // The ranks then wait for each other in a later call, so the report names the earlier one.
    const std::int64_t earlier = first_disagreement(views);
    if (earlier >= 0 && earlier < subject.collective) {
      result.disagreed = true;
      sentences.insert(sentences.begin(),
                       tell_collective(views, earlier, Views::some).sentences.front());
    }
  } else {
    for (const FlightView& view : views) {
      sentences.push_back(fmt::format("rank {}: {}", view.rank(), last_text(view)));
    }
  }
  if (!sorted.silent.empty()) {
    sentences.push_back(
        fmt::format("{} (its process is stopped, or its host is unreachable)",
                    ranks_text(sorted.silent) +
                        (sorted.silent.size() == 1 ? " does not answer" : " do not answer")));
  }
  if (!sorted.departed.empty()) {
    sentences.push_back(ranks_text(sorted.departed) +
                        (sorted.departed.size() == 1 ? " has" : " have") + " left the job");
  }
  result.text = fmt::format("{}", fmt::join(sentences, "; "));
  return result;
}

}  // namespace

std::optional<InquiryResult> inquire(World& world, const InquirySubject& subject) {
  try {
    const auto question = fmt::format("{} {}", subject.collective, subject.communicator);
    return find(sort_out(WorldInternals::store(world).ask(question, patience), subject), subject);
  } catch (const Error& error) {
    if (world.failure()) return std::nullopt;
    if (error.code() == ErrorCode::timeout) {
      return InquiryResult{false,
                           "rank 0, which serves the store, does not answer (its process is "
                           "stopped, or its host is unreachable)"};
    }
    log::error("cannot ask the other ranks what they were doing: {}", error.what());
    return std::nullopt;
  }
}

std::string answer_inquiry(FlightLog log, std::string_view question) {
  const std::size_t space = question.find(' ');
  const auto collective = number_from<std::int64_t>(question.substr(0, space)).value_or(-1);
  const FlightView view = view_of(log, question.substr(space + 1));
  std::vector<FlightCommunicator> communicators;
  std::vector<FlightOperation> operations;
  std::vector<std::size_t> places(log.communicators.size(), 0);
  const auto keep = [&](std::size_t index) {
    communicators.push_back(log.communicators[index]);
    places[index] = communicators.size() - 1;
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
    operations.push_back(operation);
    operations.back().communicator = places[operation.communicator];
  }
  log.communicators = std::move(communicators);
  log.operations = std::move(operations);
  log.stacks.clear();
  log.failure.clear();  // the rank that asks knows the failure, and the text can be long
  return to_json(log);
}

}  // namespace atoll_v1::atoll
