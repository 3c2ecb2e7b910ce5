// Tests of the answers of ranks to an observer, and of the stacks of threads.
#include <doctest/doctest.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <limits>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "atoll/error.hpp"
#include "atoll/tooling/observer.hpp"
#include "flight/observation.hpp"
#include "flight/recorder.hpp"
#include "flight/signals.hpp"
#include "unit/store/place.hpp"

namespace {

using namespace std::chrono_literals;
using State = atoll::ObservedRank::State;

atoll::FlightCall all_reduce(std::uint64_t count) {
  return {ATOLL_ALL_REDUCE, count, atoll::DType::f32, atoll::ReduceOp::sum, -1};
}

// Returns a rank with one communicator, which has called `called` collectives and is in collective
// `running`.
atoll::ObservedRank rank_at(std::uint64_t called, std::int64_t running, double seconds,
                            const std::string& communicator = "shard") {
  atoll::ObservedRank rank;
  rank.state = State::answers;
  rank.communicators.push_back({"id/" + communicator, communicator, called, running, seconds});
  return rank;
}

// A thread that waits until it is released, in a function with a known name. If it is deaf, it
// takes no signal meanwhile, although it does not block any: it waits for the child of a vfork().
enum class Hearing {
  good,
  blocked,
  deaf
};
class Sleeper {
 public:
  Sleeper(Hearing hearing, int signal)
      : thread_([this, hearing, signal] {
          sigset_t set;
          ::sigemptyset(&set);
          ::sigaddset(&set, signal);
          if (hearing == Hearing::blocked) ::pthread_sigmask(SIG_BLOCK, &set, nullptr);
          id_ = atoll::this_thread();
          if (hearing == Hearing::deaf && ::vfork() == 0) {
            while (!released_) ::usleep(1000);
            ::_exit(0);
          }
          while (!released_) std::this_thread::sleep_for(1ms);
        }) {
    while (id_ == 0) std::this_thread::sleep_for(1ms);
    if (hearing == Hearing::deaf) std::this_thread::sleep_for(50ms);  // until it is in vfork()
  }
  ~Sleeper() { released_ = true; }
  int id() const { return id_; }

 private:
  std::atomic<int> id_{0};
  std::atomic<bool> released_{false};
  std::jthread thread_;
};

bool names(const atoll::FlightStack& stack, const std::string& function) {
  return std::ranges::any_of(stack.frames, [&](const std::string& frame) {
    return frame.find(function) != std::string::npos;
  });
}

bool has_default_action(int signal) {
  struct sigaction action {};
  ::sigaction(signal, nullptr, &action);
  return action.sa_handler == SIG_DFL;
}

}  // namespace

TEST_CASE("the answer of a rank has its operation, its duration and the bytes of ended ones") {
  atoll::FlightRecorder recorder;
  const auto track = recorder.open(
      {.id = "comm/shard/0", .name = "shard\x1b[2J", .backend = "host", .ranks = {0, 1}});
  CHECK_FALSE(atoll::decode_observation(atoll::encode_observation(recorder.snapshot(), 0))
                  .operation.has_value());
  const std::vector<atoll::FlightCall> first = {all_reduce(100)};
  const auto number = recorder.enqueue(*track, first, 0);
  recorder.started(number, 1);
  recorder.completed(*track, number, 1, 1);
  const std::vector<atoll::FlightCall> second = {all_reduce(25)};
  recorder.started(recorder.enqueue(*track, second, 1), 1);
  recorder.enqueue(*track, second, 2);
  recorder.mark_step(17);
  std::this_thread::sleep_for(20ms);

  const std::string text = atoll::encode_observation(recorder.snapshot(), recorder.bytes());
  CHECK(text.size() < 256);
  const atoll::ObservedRank rank = atoll::decode_observation(text);
  CHECK(rank.state == State::answers);
  CHECK(rank.step == 17);
  CHECK(rank.bytes == 400);
  REQUIRE(rank.operation);
  CHECK(rank.operation->communicator == "shard\\x1b[2J");
  CHECK(rank.operation->text == "all_reduce 1 (25 x f32, sum)");
  CHECK(rank.operation->state == atoll::FlightState::started);
  CHECK(rank.operation->seconds >= 0.02);
  CHECK(rank.operation->bytes == 100);
  REQUIRE(rank.communicators.size() == 1);
  CHECK(rank.communicators[0].collectives_enqueued == 3);
  CHECK(rank.communicators[0].running == 1);

  // Every shorter text is malformed, and none is read past its end.
  for (std::size_t size = 0; size < text.size(); ++size) {
    CHECK_THROWS_AS(atoll::decode_observation(text.substr(0, size)), atoll::Error);
  }
}

// A table of two such answers would subtract numbers whose difference does not fit into 64 bits.
TEST_CASE("an answer whose numbers are negative for the observer is malformed") {
  const auto answer = [](std::uint64_t step, std::uint64_t clock, std::uint64_t running) {
    return atoll::store::Packer()
        .wide_number(step)
        .wide_number(0)
        .wide_number(clock)
        .number(0)
        .number(1)
        .text("id")
        .text("shard")
        .wide_number(1)
        .wide_number(running)
        .wide_number(0)
        .take();
  };
  constexpr std::uint64_t first_negative = std::uint64_t{1} << 63;
  const atoll::ObservedRank rank =
      atoll::decode_observation(answer(first_negative, first_negative - 1, 0));
  CHECK(rank.step == std::numeric_limits<std::int64_t>::max());
  CHECK(rank.monotonic_ns == std::numeric_limits<std::int64_t>::max());
  CHECK(rank.communicators.at(0).running == -1);
  CHECK_THROWS_AS(atoll::decode_observation(answer(first_negative + 1, 1, 1)), atoll::Error);
  CHECK_THROWS_AS(atoll::decode_observation(answer(1, first_negative, 1)), atoll::Error);
  CHECK_THROWS_AS(atoll::decode_observation(answer(1, 1, first_negative + 1)), atoll::Error);
}

TEST_CASE("a malformed answer makes its rank unreadable, and no other rank") {
  atoll_test::Place place(2);
  atoll_test::Rank zero(place, 0), one(place, 1);
  const std::string good = atoll::encode_observation(atoll::FlightRecorder().snapshot(), 0);
  zero.client.answer_with([](auto...) { return std::string("nonsense"); });
  one.client.answer_with([&](auto...) { return good; });
  atoll::Observer observer("127.0.0.1:" + std::to_string(place.port()), "right");
  const auto ranks = observer.look();
  REQUIRE(ranks);
  REQUIRE(ranks->size() == 2);
  CHECK(ranks->at(0).state == State::unreadable);
  CHECK(ranks->at(0).pid == 100);
  CHECK(ranks->at(1).state == State::answers);
  CHECK(atoll::waited_for(*ranks).empty());
}

TEST_CASE("others wait for the rank that has not called the collective") {
  std::vector<atoll::ObservedRank> ranks = {rank_at(8, 7, 3), rank_at(7, -1, 0), rank_at(8, 7, 5)};
  auto late = atoll::waited_for(ranks);
  REQUIRE(late.size() == 1);
  CHECK(late[0].rank == 1);
  CHECK(late[0].waiting == 2);
  CHECK(late[0].seconds == 5);
  CHECK(late[0].reason == "has not called collective 7 of communicator shard");

  // Rank 1 is late because it waits for rank 3 in another communicator: rank 3 is the reason.
  ranks[1].communicators.push_back({"id/outer", "outer", 3, 2, 4});
  ranks.push_back(rank_at(2, -1, 0, "outer"));
  late = atoll::waited_for(ranks);
  REQUIRE(late.size() == 1);
  CHECK(late[0].rank == 3);
  CHECK(late[0].waiting == 1);
}

TEST_CASE("others wait for a silent rank, and for no rank if all are in the same collective") {
  std::vector<atoll::ObservedRank> ranks = {rank_at(8, 7, 3), rank_at(8, 7, 1)};
  CHECK(atoll::waited_for(ranks).empty());
  ranks.emplace_back().state = State::silent;
  const auto late = atoll::waited_for(ranks);
  REQUIRE(late.size() == 1);
  CHECK(late[0].rank == 2);
  CHECK(late[0].waiting == 2);
  CHECK(atoll::waited_for({}).empty());
}

TEST_CASE("a thread records its own stack, and the signal gets its default action again") {
  atoll::prepare_stacks();
  const int signal = SIGRTMIN + 9;
  const Sleeper sleeper(Hearing::good, signal);
  const std::vector<atoll::FlightThread> threads = {
      {sleeper.id(), "caller"}, {atoll::this_thread(), "main"}, {1 << 30, "ended"}};
  for (int round = 0; round < 3; ++round) {
    const auto stacks = atoll::take_stacks(signal, threads, 2s);
    REQUIRE(stacks.size() == 1);
    const atoll::FlightStack stack = atoll::named(stacks[0]);
    CHECK(stack.thread == sleeper.id());
    CHECK(stack.role == "caller");
    REQUIRE(stack.frames.size() >= 3);
    // With sanitizers, frames of their interceptors come first.
    atoll::FlightStack innermost = stack;
    innermost.frames.resize(3);
    CHECK(names(innermost, "nanosleep"));
    CHECK(names(stack, "libc.so"));
  }
  CHECK(has_default_action(signal));
}

TEST_CASE("a thread that blocks the signal is left out without a delay") {
  atoll::prepare_stacks();
  const int signal = SIGRTMIN + 12;
  const Sleeper blocked(Hearing::blocked, signal), sleeper(Hearing::good, signal);
  const std::vector<atoll::FlightThread> threads = {{blocked.id(), "caller"},
                                                    {sleeper.id(), "executor"}};
  const auto before = std::chrono::steady_clock::now();
  const auto stacks = atoll::take_stacks(signal, threads, 5s);
  CHECK(std::chrono::steady_clock::now() - before < 2s);
  REQUIRE(stacks.size() == 1);
  CHECK(stacks[0].thread.role == "executor");
  CHECK(has_default_action(signal));
}

TEST_CASE("a thread that takes no signal is left out, and the late signal does no harm") {
  atoll::prepare_stacks();
  const int signal = SIGRTMIN + 10;
  {
    const Sleeper deaf(Hearing::deaf, signal), sleeper(Hearing::good, signal);
    const std::vector<atoll::FlightThread> threads = {{deaf.id(), "caller"},
                                                      {sleeper.id(), "executor"}};
    const auto before = std::chrono::steady_clock::now();
    const auto stacks = atoll::take_stacks(signal, threads, 100ms);
    CHECK(std::chrono::steady_clock::now() - before < 2s);
    REQUIRE(stacks.size() == 1);
    CHECK(stacks[0].thread.role == "executor");
    // A later call, which this thread does not concern, must not bring back the default either.
    CHECK(atoll::take_stacks(signal, std::span(threads).last(1), 2s).size() == 1);
    CHECK_FALSE(has_default_action(signal));
  }
}

TEST_CASE("a program keeps its own handler of the signal") {
  const int signal = SIGRTMIN + 11;
  static std::atomic<int> handled{0};
  struct sigaction own {};
  own.sa_handler = [](int) { ++handled; };
  ::sigaction(signal, &own, nullptr);
  const Sleeper sleeper(Hearing::good, signal);
  const std::vector<atoll::FlightThread> threads = {{sleeper.id(), "caller"}};
  CHECK(atoll::take_stacks(signal, threads, 50ms).empty());
  CHECK(handled == 0);
}

TEST_CASE("a flight file keeps the stacks and the step, and a file without them can be read") {
  atoll::FlightLog log;
  log.step = 3;
  log.stacks.push_back({12, "caller", {"f+0x1 (a.so)", "main+0x2 (b)"}});
  const std::string text = atoll::to_json(log);
  const atoll::FlightLog read = atoll::parse_flight(text, "text");
  CHECK(read.step == 3);
  REQUIRE(read.stacks.size() == 1);
  CHECK(read.stacks[0].thread == 12);
  CHECK(read.stacks[0].role == "caller");
  CHECK(read.stacks[0].frames == log.stacks[0].frames);
  std::string older = text;
  older.erase(older.find(",\"step\":3"), 9);
  older.erase(older.find(",\n  \"stacks\""), older.rfind(']') + 1 - older.find(",\n  \"stacks\""));
  CHECK(atoll::parse_flight(older, "older").stacks.empty());
  CHECK(atoll::parse_flight(older, "older").step == -1);

  log.stacks[0].frames.assign(atoll::max_flight_frames + 1, "f");
  CHECK_THROWS_AS(atoll::parse_flight(atoll::to_json(log), "text"), atoll::Error);
  log.stacks[0].frames = {"frame"};
  std::string unprintable = atoll::to_json(log);
  unprintable.replace(unprintable.find("frame"), 5, "f\\u001b");
  CHECK_THROWS_AS(atoll::parse_flight(unprintable, "text"), atoll::Error);
}
