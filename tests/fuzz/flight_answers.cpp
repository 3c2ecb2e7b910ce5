// Fuzzes what a rank reads from other ranks about a job that hangs: their questions, and their
// answers to its own question. The first byte selects what the input is:
//   0  the answers of up to 6 ranks as text
//   1  the answers of up to 6 ranks, made from numbers; each is the log of a rank
//   2  a question to a rank with such a log: length and bytes of its name, then its details
// A rank must explain whatever the logs of other ranks contain, and answer every question with a
// log that others can read.
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "atoll/error.hpp"
#include "atoll/flight.hpp"
#include "flight/inquiry.hpp"
#include "flight/questions.hpp"
#include "script.hpp"
#include "store/store.hpp"

namespace {

using atoll::store::Answered;
using fuzz::require;
using fuzz::Script;

constexpr std::array<const char*, 6> kinds = {"all_reduce",   "all_gather", "barrier",
                                              "all_to_all_v", "send",       "recv"};

// Returns mostly small numbers, so that the logs of ranks often name the same operation.
template <class T>
T few(Script& script) {
  const auto small = script.number<std::int8_t>();
  if (small == 127) return static_cast<T>(script.number<std::uint64_t>() >> 1);
  return static_cast<T>(small & 7);
}

std::string id_of(Script& script) {
  return std::string(1, static_cast<char>('a' + script.below(4)));
}

std::vector<int> ranks_of(Script& script, int size) {
  std::vector<int> ranks;
  for (std::size_t i = script.below(6); i-- > 0;) {
    ranks.push_back(static_cast<int>(script.below(static_cast<std::size_t>(size))));
  }
  return ranks;
}

atoll::FlightLog log_of(Script& script, int rank, int size) {
  atoll::FlightLog log;
  log.rank = rank;
  log.size = size;
  for (std::size_t i = script.below(5); i-- > 0;) {
    atoll::FlightCommunicator& one = log.communicators.emplace_back();
    one.id = one.name = id_of(script);
    one.ranks = ranks_of(script, size);
    one.rank = static_cast<int>(one.ranks.size());
    one.ranks.push_back(rank);
    for (const int other : ranks_of(script, size)) one.ranks.push_back(other);
    if (script.below(8) == 7) one.name = script.text(script.below(8));
    one.closed = script.below(4) == 0;
    one.collectives_enqueued = one.enqueued = few<std::uint64_t>(script);
    one.collectives_completed = one.completed = few<std::uint64_t>(script);
  }
  if (log.communicators.empty()) return log;
  for (std::size_t i = script.below(16); i-- > 0;) {
    atoll::FlightOperation& one = log.operations.emplace_back();
    one.number = script.below(8) == 0 ? few<std::uint64_t>(script) : log.operations.size();
    one.communicator = script.below(log.communicators.size());
    one.kind = kinds[script.below(kinds.size())];
    one.sequence = few<std::uint64_t>(script);
    one.collective = few<std::int64_t>(script) - 1;
    one.count = script.below(2);
    one.peer = static_cast<int>(script.below(8)) - 1;
    one.state = static_cast<atoll::FlightState>(script.below(4));
    if (one.state == atoll::FlightState::failed) one.error = script.text(script.below(8));
  }
  return log;
}

atoll::InquirySubject subject_of(Script& script, int size) {
  atoll::InquirySubject subject{id_of(script), ranks_of(script, size),
                                few<std::int64_t>(script) - 1};
  subject.ranks.push_back(0);  // the rank that asks is a member
  return subject;
}

void answers_as_text(Script& script) {
  const int size = 1 + static_cast<int>(script.below(6));
  const atoll::InquirySubject subject = subject_of(script, size);
  std::vector<Answered> answers;
  for (int rank = 0; rank < size; ++rank) {
    const auto how = static_cast<Answered::How>(script.below(3));
    const auto length = script.number<std::uint16_t>();
    answers.push_back({how, rank + 1 == size ? script.rest() : script.text(length)});
  }
  try {
    atoll::explain_answers(answers, subject);
  } catch (const atoll::Error& error) {
    require(error.code() == atoll::ErrorCode::bad_data);
  }
}

void answers_as_logs(Script& script) {
  const int size = 1 + static_cast<int>(script.below(6));
  const atoll::InquirySubject subject = subject_of(script, size);
  std::vector<Answered> answers;
  for (int rank = 0; rank < size; ++rank) {
    const auto how = script.below(8);
    if (how < 2) {
      answers.push_back({how == 0 ? Answered::How::silent : Answered::How::departed});
    } else {
      answers.push_back({Answered::How::answered, to_json(log_of(script, rank, size))});
    }
  }
  const auto first = atoll::explain_answers(answers, subject);
  require(!first.disagreed || !first.text.empty());
}

void question(Script& script) {
  const int size = 1 + static_cast<int>(script.below(6));
  const int rank = static_cast<int>(script.below(static_cast<std::size_t>(size)));
  const atoll::FlightLog log = log_of(script, rank, size);
  const std::string name = script.text(script.number()), detail = script.rest();
  atoll::Questions questions;
  questions.add("number", [](std::string_view own) { return std::string(own); });
  questions.add("inquiry", [&](std::string_view own) { return atoll::answer_inquiry(log, own); });
  const std::string answer = questions.answer(name, detail);
  if (name == "number") require(answer == detail);
  if (name != "inquiry") return;
  const auto read = atoll::parse_flight(answer, "answer");
  require(read.rank == rank && read.size == size);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const unsigned char* data, std::size_t size) {
  if (size == 0 || size > 65'536) return 0;
  Script script({data, size});
  const auto which = script.below(3);
  if (which == 0) answers_as_text(script);
  if (which == 1) answers_as_logs(script);
  if (which == 2) question(script);
  return 0;
}
