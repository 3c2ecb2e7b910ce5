// The details of a question are the number of the collective (-1 for messages), a space and the id
// of the communicator.
//
// An answer is a flight log with the open communicators and only these operations: the collective
// in question and some before it, the last operation on its communicator, the operations in
// progress, and the first enqueued operation on each communicator with none in progress.
#include "flight/inquiry.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>
#include <utility>

#include "atoll/tooling/observer.hpp"
#include "core/errors.hpp"
#include "core/log.hpp"
#include "core/parse.hpp"
#include "flight/explanation.hpp"
#include "world/world_internals.hpp"

namespace atoll_v1::atoll {
namespace {

constexpr std::chrono::milliseconds inquiry_patience{2'000};
constexpr std::int64_t looked_back = 32;  // largest number of collectives in an answer
constexpr int most_started = 32;          // largest number of operations in progress in an answer
// If a communicator has more ranks, only its first `listing_ranks` ranks list its members, so that
// the answers of all its ranks together do not grow with the square of their number.
constexpr std::size_t most_listed = 256;
constexpr int listing_ranks = 16;

using How = store::Answered::How;

// The answers of all ranks, and of those in InquirySubject::ranks ("asked"), in ascending order.
struct Answers {
  std::vector<FlightLog> logs;    // logs of the ranks that answered
  std::vector<RankState> states;  // state of each rank; points into `logs`
  std::vector<FlightView> asked;  // views of the asked ranks that answered
  std::vector<int> silent;        // asked ranks that did not answer in time
  std::vector<int> departed;      // asked ranks that have left the job
};

Answers sort_out(const std::vector<store::Answered>& answers, const InquirySubject& subject) {
  Answers sorted;
  sorted.logs.reserve(answers.size());
  for (std::size_t rank = 0; rank < answers.size(); ++rank) {
    const store::Answered& answer = answers[rank];
    RankState& state = sorted.states.emplace_back(answer.how, nullptr);
    if (answer.how != How::answered) continue;
    FlightLog& log = sorted.logs.emplace_back();
    state.log = &log;
    log.rank = static_cast<int>(rank);
    if (answer.text.empty()) continue;
    const std::string source = fmt::format("answer of rank {}", rank);
    log = parse_flight(answer.text, source);
    require(std::cmp_equal(log.rank, rank) && std::cmp_equal(log.size, answers.size()),
            ErrorCode::bad_data, "{}: it is of rank {} of {}", source, log.rank, log.size);
  }
  for (const int rank : std::set<int>(subject.ranks.begin(), subject.ranks.end())) {
    const RankState& state = sorted.states.at(static_cast<std::size_t>(rank));
    if (state.log) {
      sorted.asked.push_back(view_of(*state.log, subject.communicator));
    } else {
      (state.how == How::silent ? sorted.silent : sorted.departed).push_back(rank);
    }
  }
  return sorted;
}

InquiryResult find(const Answers& sorted, const InquirySubject& subject) {
  InquiryResult result;
  std::vector<std::string> sentences;
  const std::vector<FlightView>& views = sorted.asked;
  // If a rank did not answer, the others wait for that rank, so their progress is not described.
  const auto views_are =
      sorted.silent.empty() && sorted.departed.empty() ? Views::all : Views::some;
  if (subject.collective >= 0) {
    Explanation explanation = explain_collective(views, subject.collective, views_are);
    result.disagreed = explanation.disagreed;
    sentences = std::move(explanation.sentences);
    // If ranks made different calls that move the same number of bytes, a backend may not notice.
    // The ranks then wait for each other in a later call, so the report names the earlier one.
    const std::int64_t earlier = first_disagreement(views);
    if (earlier >= 0 && earlier < subject.collective) {
      result.disagreed = true;
      sentences.insert(sentences.begin(),
                       explain_collective(views, earlier, Views::some).sentences.front());
    }
  } else {
    for (const FlightView& view : views) {
      sentences.push_back(fmt::format("rank {}: {}", view.rank(), last_text(view)));
    }
  }
  const auto add = [&](const std::vector<int>& ranks, const std::string& text) {
    if (!ranks.empty()) sentences.push_back(fmt::format("{} {}", ranks_text(ranks), text));
  };
  add(sorted.silent, silence_text(sorted.silent.size()));
  add(sorted.departed, departure_text(sorted.departed.size()));
  // Different calls already explain why ranks wait, so the chains of waits are left out.
  if (!result.disagreed) {
    for (auto& wait : explain_waits(sorted.states, subject)) sentences.push_back(std::move(wait));
  }
  result.text = fmt::format("{}", fmt::join(sentences, "; "));
  return result;
}

}  // namespace

InquiryResult explain_answers(const std::vector<store::Answered>& answers, InquirySubject subject) {
  subject.communicator = flight_text(subject.communicator);
  return find(sort_out(answers, subject), subject);
}

std::optional<InquiryResult> inquire(World& world, const InquirySubject& subject) {
  try {
    const auto detail = fmt::format("{} {}", subject.collective, subject.communicator);
    const auto answers =
        WorldInternals::store(world).ask(inquiry_question, detail, inquiry_patience);
    return explain_answers(answers, subject);
  } catch (const Error& error) {
    if (world.failure()) return std::nullopt;
    if (error.code() == ErrorCode::timeout) {
      const bool external = world.config().store == "external";
      return InquiryResult{false, (external ? "atoll-store " : "rank 0, which serves the store, ") +
                                      silence_text(1)};
    }
    log::error("cannot ask the other ranks what they were doing: {}", error.what());
    return std::nullopt;
  }
}

std::string answer_inquiry(FlightLog log, std::string_view detail) {
  const std::size_t space = detail.find(' ');
  const auto collective = number_from<std::int64_t>(detail.substr(0, space)).value_or(-1);
  const FlightView view = view_of(log, detail.substr(space + 1));
  std::vector<bool> is_kept(log.communicators.size(), false), has_pending = is_kept;
  std::vector<FlightOperation> operations;
  int started = 0;
  for (const FlightOperation& operation : log.operations) {
    const std::size_t place = operation.communicator;
    const bool asked = view.communicator && place == view.index && operation.collective >= 0 &&
                       operation.collective <= collective &&
                       operation.collective > collective - looked_back;
    const bool is_started = operation.state == FlightState::started && started++ < most_started;
    const bool is_next = operation.state == FlightState::enqueued && !has_pending[place];
    if (is_started || is_next) has_pending[place] = true;
    if (!asked && !is_started && !is_next && &operation != view.last) continue;
    is_kept[place] = true;
    operations.push_back(operation);
  }
  if (view.communicator) is_kept[view.index] = true;
  std::size_t open = 0;
  for (std::size_t i = log.communicators.size(); i-- > 0;) {
    if (!log.communicators[i].closed && open++ < max_observed_communicators) is_kept[i] = true;
  }
  std::vector<FlightCommunicator> communicators;
  std::vector<std::size_t> places(log.communicators.size(), 0);
  for (std::size_t i = 0; i < log.communicators.size(); ++i) {
    if (!is_kept[i]) continue;
    places[i] = communicators.size();
    FlightCommunicator& kept = communicators.emplace_back(std::move(log.communicators[i]));
    const bool lists = kept.ranks.size() <= most_listed || kept.rank < listing_ranks;
    if (has_pending[i] && lists) continue;
    kept.ranks = {log.rank};
    kept.rank = 0;
  }
  for (FlightOperation& operation : operations) {
    operation.communicator = places[operation.communicator];
  }
  log.communicators = std::move(communicators);
  log.operations = std::move(operations);
  log.stacks.clear();
  log.failure.clear();  // the rank that asks knows the failure, and the text can be long
  return to_json(log);
}

}  // namespace atoll_v1::atoll
