// Tests of the search for the ranks for which all others wait, over several communicators.
#include <doctest/doctest.h>

#include <algorithm>
#include <numeric>
#include <string>
#include <string_view>
#include <vector>

#include "atoll/flight.hpp"
#include "flight/inquiry.hpp"
#include "unit/error_text.hpp"

namespace {

using atoll::FlightState;
using atoll_test::has;
using How = atoll::store::Answered::How;
using Texts = std::vector<std::string>;

const std::string stopped = "not answer (its process is stopped, or its host is unreachable)";

std::string waits(const std::string& who, const std::string& communicator,
                  const std::string& whom) {
  return who + (who.starts_with("ranks") ? " wait" : " waits") +
         " in all_gather 0 of communicator " + communicator + " for " + whom + ", which ";
}

// The answers of the ranks of a job, made by hand. The name of a communicator is its id.
struct Job {
  explicit Job(int size) : logs(static_cast<std::size_t>(size)), hows(logs.size(), How::answered) {
    for (int rank = 0; rank < size; ++rank) {
      at(rank).rank = rank;
      at(rank).size = size;
    }
  }

  atoll::FlightLog& at(int rank) { return logs[static_cast<std::size_t>(rank)]; }
  void lose(int rank, How how) { hows[static_cast<std::size_t>(rank)] = how; }

  // Opens the communicator on all of its ranks. No rank has called an operation on it.
  void open(std::string_view name, const std::vector<int>& ranks) {
    for (std::size_t i = 0; i < ranks.size(); ++i) {
      at(ranks[i]).communicators.push_back({.id = std::string(name),
                                            .name = std::string(name),
                                            .backend = "host",
                                            .rank = static_cast<int>(i),
                                            .ranks = ranks});
    }
  }

  // The rank calls the next collective of the communicator, or a message to `peer`.
  void call(int rank, std::string_view name, FlightState state,
            const std::string& kind = "all_gather", int peer = -1) {
    atoll::FlightLog& log = at(rank);
    const auto found = std::ranges::find(log.communicators, name, &atoll::FlightCommunicator::id);
    REQUIRE(found != log.communicators.end());
    const bool message = kind == "send" || kind == "recv";
    const bool done = state == FlightState::completed;
    atoll::FlightOperation& operation = log.operations.emplace_back();
    operation.number = log.operations.size() - 1;
    operation.communicator = static_cast<std::size_t>(found - log.communicators.begin());
    operation.kind = kind;
    operation.dtype = "f32";
    operation.peer = peer;
    operation.state = state;
    operation.sequence = found->enqueued++;
    found->completed += done ? 1 : 0;
    if (message) return;
    operation.collective = static_cast<std::int64_t>(found->collectives_enqueued++);
    found->collectives_completed += done ? 1 : 0;
  }
  void wait(int rank, std::string_view name) { call(rank, name, FlightState::started); }

  Texts explained(const atoll::InquirySubject& subject) const {
    std::vector<atoll::RankState> states;
    for (std::size_t i = 0; i < logs.size(); ++i) {
      states.push_back({hows[i], hows[i] == How::answered ? &logs[i] : nullptr});
    }
    return atoll::explain_waits(states, subject);
  }

  std::vector<atoll::FlightLog> logs;
  std::vector<How> hows;
};

// A mesh of 2 x 2: rank 0 waits in shard0 for rank 1, which waits in replicate1 for rank 3.
Job mesh() {
  Job job(4);
  job.open("shard0", {0, 1});
  job.open("shard1", {2, 3});
  job.open("replicate0", {0, 2});
  job.open("replicate1", {1, 3});
  job.wait(0, "shard0");
  job.wait(1, "replicate1");
  return job;
}
const atoll::InquirySubject shard0{"shard0", {0, 1}, 0};

}  // namespace

TEST_CASE("a chain of two waits ends at the rank that does not answer or has left the job") {
  Job job = mesh();
  const std::string chain = waits("rank 1", "replicate1", "rank 3");
  job.lose(3, How::silent);
  CHECK(job.explained(shard0) == Texts{chain + "does " + stopped});
  job.lose(3, How::departed);
  CHECK(job.explained(shard0) == Texts{chain + "has left the job"});
}

TEST_CASE("a chain ends at a rank that has called nothing, or whose stream is behind") {
  Job job = mesh();
  const std::string chain = waits("rank 1", "replicate1", "rank 3");
  const Texts idle = {chain + "has not called it and is in no operation"};
  CHECK(job.explained(shard0) == idle);
  job.call(3, "replicate1", FlightState::enqueued);
  CHECK(job.explained(shard0) == Texts{chain + "has called it, but the stream has not reached it"});
  // A rank that has not even opened the communicator, and has no records at all.
  job.at(3).communicators.clear();
  job.at(3).operations.clear();
  CHECK(job.explained(shard0) == idle);
}

TEST_CASE("a long chain loses its middle, and its end is named") {
  constexpr int size = 2000;
  Job job(size);
  for (int rank = 0; rank + 1 < size; ++rank) {
    job.open("c" + std::to_string(rank), {rank, rank + 1});
    job.wait(rank, "c" + std::to_string(rank));
  }
  job.lose(size - 1, How::silent);
  const Texts texts = job.explained({"c0", {0, 1}, 0});
  REQUIRE(texts.size() == 1);
  CHECK(texts[0].size() < 1000);
  CHECK(texts[0].find("for rank 5, which waits in") == std::string::npos);
  CHECK(has(texts[0], {"for ranks that wait in 1990 other operations, the last one for rank 1995, "
                       "which waits in all_gather 0 of communicator c1995 for rank 1996, ",
                       "of communicator c1998 for rank 1999, which does not answer"}));
}

TEST_CASE("ranks that called two operations in different orders wait for each other") {
  Job job(2);
  job.open("a", {0, 1});
  job.open("b", {0, 1});
  job.wait(0, "a");
  job.wait(1, "b");
  const Texts expected = {waits("rank 0", "a", "rank 1") +
                          "waits in all_gather 0 of communicator b for rank 0: these ranks called "
                          "their operations in different orders"};
  CHECK(job.explained({"a", {0, 1}, 0}) == expected);
  // The same if each rank has enqueued the other operation behind the first one.
  job.call(0, "b", FlightState::enqueued);
  job.call(1, "a", FlightState::enqueued);
  CHECK(job.explained({"a", {0, 1}, 0}) == expected);
}

TEST_CASE("ranks that called their operations in the same order are no cycle") {
  Job job(2);
  job.open("a", {0, 1});
  job.open("b", {0, 1});
  job.call(0, "b", FlightState::enqueued);  // on another stream, which has not reached it
  job.wait(0, "a");
  job.wait(1, "b");
  CHECK(job.explained({"a", {0, 1}, 0}) ==
        Texts{waits("rank 1", "b", "rank 0") + "has called it, but the stream has not reached it"});
}

TEST_CASE("a silent rank is named rather than the ranks that are late because of it") {
  Job job = mesh();
  job.lose(1, How::silent);  // rank 0 waits for it directly, which the caller says
  CHECK(job.explained(shard0).empty());
  // Ranks 1 and 2 wait in different communicators: one for a silent rank, one for a late rank.
  Job two(5);
  two.open("all", {0, 1, 2});
  two.open("left", {1, 3});
  two.open("right", {2, 4});
  two.wait(0, "all");
  two.wait(1, "left");
  two.wait(2, "right");
  two.lose(3, How::silent);
  const atoll::InquirySubject all{"all", {0, 1, 2}, 0};
  const std::string left = waits("rank 1", "left", "rank 3") + "does " + stopped;
  const std::string right = waits("rank 2", "right", "rank 4");
  CHECK(two.explained(all) == Texts{left});
  two.lose(4, How::departed);
  CHECK(two.explained(all) == Texts{left, right + "has left the job"});
  two.lose(4, How::silent);
  CHECK(two.explained(all) == Texts{left, right + "does " + stopped});
}

TEST_CASE("several ranks are named together, and a rank only once") {
  Job job(6);
  job.open("all", {0, 1, 2});
  job.open("deep", {1, 2, 3, 5});
  job.wait(0, "all");
  job.wait(1, "deep");
  job.wait(2, "deep");
  job.lose(3, How::silent);
  job.lose(5, How::silent);
  CHECK(job.explained({"all", {0, 1, 2}, 0}) ==
        Texts{waits("ranks 1, 2", "deep", "ranks 3, 5") + "do " + stopped});
}

TEST_CASE("a rank that is behind in the same communicator is no cause by itself") {
  Job job(4);
  job.open("all", {0, 1, 2});
  job.open("pair", {2, 3});
  job.call(0, "all", FlightState::completed);
  job.wait(0, "all");
  job.wait(1, "all");
  job.wait(2, "pair");
  job.lose(3, How::silent);
  CHECK(job.explained({"all", {0, 1, 2}, 1}) ==
        Texts{waits("rank 2", "pair", "rank 3") + "does " + stopped});
}

TEST_CASE("an operation that all ranks have called ends a chain") {
  Job job = mesh();
  job.wait(3, "replicate1");
  CHECK(has(job.explained(shard0).at(0),
            "rank 1 is in all_gather 0 of communicator replicate1, "
            "which all ranks of that communicator called"));
  // A rank that has completed the operation keeps nobody waiting.
  job.at(3).operations.clear();
  job.at(3).communicators[1].completed = job.at(3).communicators[1].collectives_completed = 1;
  CHECK(job.explained(shard0).size() == 1);
  CHECK(job.explained(shard0)[0].find("rank 3") == std::string::npos);
}

TEST_CASE("messages are followed to their peers") {
  Job job(4);
  job.open("pipe", {3, 2, 1, 0});  // rank r is member 3 - r
  job.call(0, "pipe", FlightState::started, "recv", 2);
  job.call(1, "pipe", FlightState::started, "recv", 1);
  const atoll::InquirySubject from_1{"pipe", {1}, -1};
  const std::string chain = "rank 1 waits in recv 0 of communicator pipe for rank 2, which ";
  CHECK(job.explained(from_1) == Texts{chain + "is in no operation"});
  job.call(2, "pipe", FlightState::started, "recv", 0);
  job.lose(3, How::silent);
  CHECK(job.explained(from_1) ==
        Texts{chain + "waits in recv 0 of communicator pipe for rank 3, which does " + stopped});
  // Two ranks that both receive wait for each other; a send and its recv do not.
  Job both(2);
  both.open("pipe", {0, 1});
  both.call(0, "pipe", FlightState::started, "recv", 1);
  both.call(1, "pipe", FlightState::started, "recv", 0);
  const Texts texts = both.explained(from_1);
  REQUIRE(texts.size() == 1);
  CHECK(has(texts[0], "called their operations in different orders"));
  both.at(1).operations[0].kind = "send";
  CHECK(both.explained(from_1).empty());
}

TEST_CASE("at most eight chains are named") {
  Job job(21);
  std::vector<int> first(11);
  std::iota(first.begin(), first.end(), 0);
  job.open("all", first);
  job.wait(0, "all");
  for (int rank = 1; rank <= 10; ++rank) {
    job.open("pair" + std::to_string(rank), {rank, rank + 10});
    job.wait(rank, "pair" + std::to_string(rank));
    job.lose(rank + 10, How::silent);
  }
  const Texts texts = job.explained({"all", first, 0});
  REQUIRE(texts.size() == 9);
  CHECK(texts[8] == "and 2 more");
}

TEST_CASE("an answer has what the search needs, and lists only communicators in use") {
  constexpr int size = 1000;
  std::vector<int> all(size);
  std::iota(all.begin(), all.end(), 0);
  Job job(size);
  job.open("all", all);
  job.open("pair", {20, 21});
  job.open("other", {20, 22});
  for (const int rank : {3, 20}) job.wait(rank, "all");
  const auto answer = [&](int rank) {
    return atoll::parse_flight(atoll::answer_inquiry(job.at(rank), "0 pair"), "answer");
  };
  CHECK(answer(3).communicators.at(0).ranks == all);
  const atoll::FlightLog log = answer(20);
  REQUIRE(log.communicators.size() == 3);
  CHECK(log.communicators[0].ranks == std::vector{20});  // ranks 0 to 15 list it
  CHECK(log.communicators[1].ranks == std::vector{20});  // rank 20 is in no operation there
  CHECK(log.operations.size() == 1);
  // The cut lists do not matter, because another rank has listed the communicator.
  job.lose(999, How::silent);
  for (int rank = 0; rank < size; ++rank) {
    if (rank != 3 && rank != 20) job.wait(rank, "all");
    job.at(rank) = answer(rank);
  }
  CHECK(job.explained({"pair", {20, 21}, 0}) ==
        Texts{waits("ranks 20, 21", "all", "rank 999") + "does " + stopped});
}

TEST_CASE("a message of a communicator that few answers list finds its peer") {
  std::vector<int> all(300);
  std::iota(all.begin(), all.end(), 0);
  Job job(300);
  job.open("pipe", all);
  job.call(3, "pipe", FlightState::started, "recv", 2);
  job.call(20, "pipe", FlightState::started, "recv", 21);
  job.call(21, "pipe", FlightState::started, "send", 20);
  for (const int rank : {3, 20, 21}) {
    job.at(rank) = atoll::parse_flight(atoll::answer_inquiry(job.at(rank), "-1 pipe"), "answer");
  }
  CHECK(job.explained({"pipe", {21}, -1}).empty());
  job.call(21, "pipe", FlightState::started, "recv", 22);
  job.lose(22, How::silent);
  CHECK(job.explained({"pipe", {21}, -1}) ==
        Texts{"rank 21 waits in recv 1 of communicator pipe for rank 22, which does " + stopped});
}

TEST_CASE("the chains of 16,384 ranks take little work") {
  constexpr int side = 128;
  Job job(side * side);
  std::vector<int> row(side), column(side);
  for (int i = side - 1; i >= 0; --i) {
    for (int k = 0; k < side; ++k) {
      row[static_cast<std::size_t>(k)] = i * side + k;
      column[static_cast<std::size_t>(k)] = k * side + i;
    }
    job.open("shard" + std::to_string(i), row);
    job.open("replicate" + std::to_string(i), column);
  }
  // Each row waits for its last rank, and the last column waits for the last rank of the job.
  for (int rank = 0; rank + 1 < side * side; ++rank) {
    const bool is_last = rank % side == side - 1;
    job.wait(rank, is_last ? "replicate127" : "shard" + std::to_string(rank / side));
  }
  job.lose(side * side - 1, How::silent);
  CHECK(job.explained({"shard0", row, 0}) ==
        Texts{waits("rank 127", "replicate127", "rank 16383") + "does " + stopped});
}
