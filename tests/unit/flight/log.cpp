// Tests of the flight recorder: its ring buffer, its file, and its reaction to SIGUSR1.
#include <doctest/doctest.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "atoll/communicator.hpp"
#include "atoll/flight.hpp"
#include "flight/flight.hpp"
#include "flight/inquiry.hpp"
#include "flight/recorder.hpp"
#include "unit/error_text.hpp"
#include "unit/train/data_temporary.hpp"

namespace {

using namespace std::chrono_literals;
using atoll::FlightState;
using atoll_test::error_of;
using atoll_test::has;

atoll::FlightCall all_reduce(std::uint64_t count) {
  return {ATOLL_ALL_REDUCE, count, atoll::DType::bf16, atoll::ReduceOp::max, 5};
}
atoll::FlightCall send_to(int peer) {
  return {ATOLL_SEND, 7, atoll::DType::f32, atoll::ReduceOp::sum, peer};
}

atoll::FlightCommunicator shard() {
  return {.id = "comm/shard/0", .name = "shard", .backend = "host", .rank = 0, .ranks = {0, 1}};
}

bool waits_for(const std::filesystem::path& file) {
  for (int i = 0; i < 500 && !std::filesystem::exists(file); ++i) std::this_thread::sleep_for(10ms);
  return std::filesystem::exists(file);
}

}  // namespace

TEST_CASE("a part of a collective is recorded with the collective that was called") {
  atoll::FlightRecorder recorder;
  const auto track = recorder.open(shard());
  atoll::FlightCall part = all_reduce(100);
  part.kind = ATOLL_ALL_TO_ALL;
  part.part_of = ATOLL_REDUCE_SCATTER;
  const std::vector<atoll::FlightCall> both = {part, all_reduce(8)};
  recorder.enqueue(*track, both, 0);
  atoll::FlightLog log = recorder.snapshot();
  log.rank = 0;
  log.size = 2;
  const atoll::FlightLog read = atoll::parse_flight(atoll::to_json(log), "text");
  REQUIRE(read.operations.size() == 2);
  CHECK(read.operations[0].kind == "all_to_all");
  CHECK(read.operations[0].part_of == "reduce_scatter");
  CHECK(read.operations[1].part_of.empty());
}

TEST_CASE("an operation is recorded from its call to its end") {
  atoll::FlightRecorder recorder;
  const auto track = recorder.open(shard());
  const std::vector<atoll::FlightCall> both = {all_reduce(100), send_to(1)};
  const auto first = recorder.enqueue(*track, both, 40);
  auto log = recorder.snapshot();
  REQUIRE(log.operations.size() == 2);
  const atoll::FlightOperation& reduction = log.operations[0];
  CHECK(reduction.kind == "all_reduce");
  CHECK(reduction.sequence == 40);
  CHECK(reduction.dtype == "bf16");
  CHECK(reduction.op == "max");
  CHECK(reduction.bytes == 200);
  CHECK(reduction.state == FlightState::enqueued);
  CHECK(reduction.started_ns == 0);
  CHECK(log.operations[1].kind == "send");
  CHECK(log.operations[1].collective == -1);
  CHECK(log.operations[1].peer == 1);

  recorder.started(first, 2);
  CHECK(recorder.snapshot().operations[1].state == FlightState::started);
  recorder.completed(*track, first, 2, 1);
  const auto failing = recorder.enqueue(*track, std::vector{all_reduce(1)}, 42);
  recorder.started(failing, 1);
  recorder.failed(failing, 1, "disk on fire");
  log = recorder.snapshot();
  REQUIRE(log.operations.size() == 3);
  CHECK(log.operations[0].state == FlightState::completed);
  CHECK(log.operations[2].state == FlightState::failed);
  CHECK(log.operations[2].error == "disk on fire");
  REQUIRE(log.communicators.size() == 1);
  CHECK(log.communicators[0].enqueued == 43);
  CHECK(log.communicators[0].completed == 2);
  CHECK(log.communicators[0].collectives_enqueued == 2);
  CHECK(log.communicators[0].collectives_completed == 1);
}

TEST_CASE("times are those of the steady clock") {
  const auto steady = [] {
    return std::chrono::steady_clock::now().time_since_epoch() / std::chrono::nanoseconds(1);
  };
  atoll::FlightRecorder recorder;
  const auto track = recorder.open(shard());
  std::this_thread::sleep_for(2ms);
  const auto before = steady();
  const auto number = recorder.enqueue(*track, std::vector{all_reduce(1)}, 0);
  const auto between = steady();
  std::this_thread::sleep_for(20ms);
  recorder.started(number, 1);
  const auto after = steady();
  const auto log = recorder.snapshot();
  // A tolerance of 1 ms, because the conversion of clock ticks to nanoseconds is not exact.
  constexpr std::int64_t slack = 1'000'000;
  CHECK(log.operations[0].enqueued_ns >= before - slack);
  CHECK(log.operations[0].enqueued_ns <= between + slack);
  CHECK(log.operations[0].started_ns >= between + 20'000'000 - slack);
  CHECK(log.operations[0].started_ns <= after + slack);
  CHECK(log.monotonic_ns >= log.operations[0].started_ns);
}

TEST_CASE("the ring keeps the last operations and nothing else") {
  atoll::FlightRecorder recorder;
  const auto track = recorder.open(shard());
  const std::vector<atoll::FlightCall> one = {all_reduce(1)};
  const std::uint64_t total = 3 * atoll::flight_capacity + 17;
  for (std::uint64_t i = 0; i < total; ++i) {
    const auto number = recorder.enqueue(*track, one, i);
    recorder.started(number, 1);
    recorder.completed(*track, number, 1, 1);
  }
  // A late report for an operation that has been overwritten must change nothing.
  recorder.failed(0, 1, "late");
  const auto log = recorder.snapshot();
  REQUIRE(log.operations.size() == atoll::flight_capacity);
  for (std::size_t i = 0; i < log.operations.size(); ++i) {
    const auto& operation = log.operations[i];
    CHECK(operation.number == total - atoll::flight_capacity + i);
    CHECK(operation.sequence == operation.number);
    CHECK(operation.state == FlightState::completed);
  }
}

TEST_CASE("several communicators can record while another thread takes snapshots") {
  constexpr int writers = 3;
  constexpr std::uint64_t each = 20'000;
  atoll::FlightRecorder recorder;
  std::atomic<int> left{writers};
  std::vector<std::jthread> threads;
  for (int w = 0; w < writers; ++w) {
    threads.emplace_back([&, w] {
      auto description = shard();
      description.name = std::to_string(w);
      const auto track = recorder.open(description);
      for (std::uint64_t i = 0; i < each; ++i) {
        // The element count of an operation encodes the thread that recorded it, and its number in
        // that thread.
        const std::vector one = {all_reduce(static_cast<std::uint64_t>(w) * each + i)};
        const auto number = recorder.enqueue(*track, one, i);
        recorder.started(number, 1);
        recorder.completed(*track, number, 1, 1);
      }
      --left;
    });
  }
  std::uint64_t seen = 0;
  bool consistent = true;
  const auto examine = [&](const atoll::FlightLog& log) {
    for (const auto& operation : log.operations) {
      const auto writer = std::stoull(log.communicators[operation.communicator].name);
      consistent = consistent && operation.count == writer * each + operation.sequence &&
                   operation.collective == static_cast<std::int64_t>(operation.sequence);
      ++seen;
    }
  };
  while (left > 0) examine(recorder.snapshot());
  threads.clear();
  examine(recorder.snapshot());
  CHECK(consistent);
  CHECK(seen > 0);
  std::uint64_t completed = 0;
  for (const auto& communicator : recorder.snapshot().communicators) {
    completed += communicator.completed;
  }
  CHECK(completed == writers * each);
}

TEST_CASE("closed communicators are removed from a full log, open ones are kept") {
  atoll::FlightRecorder recorder;
  const auto track = recorder.open(shard());
  for (std::size_t i = 0; i < 2 * atoll::max_flight_communicators; ++i) {
    recorder.open(shard())->closed = true;
  }
  const auto log = recorder.snapshot();
  CHECK(log.communicators.size() == atoll::max_flight_communicators);
  CHECK_FALSE(log.communicators[0].closed);
}

TEST_CASE("a log can be read again, also with line breaks and long texts of the program") {
  atoll::FlightRecorder recorder;
  atoll::FlightCommunicator odd = shard();
  odd.id = odd.name = "tensor\nparallel\x1b[2J\xff";
  const auto track = recorder.open(odd);
  const auto number = recorder.enqueue(*track, std::vector{all_reduce(4)}, 0);
  recorder.failed(number, 1, std::string(atoll::max_flight_text, '\n'));
  recorder.mark_step(-5);
  atoll::FlightLog log = recorder.snapshot();
  log.size = 2;
  log.failure = "rank 0: cannot open the \"data\":\n\tno such file";
  const std::string text = atoll::to_json(log);
  const atoll::FlightLog read = atoll::parse_flight(text, "log");
  CHECK(atoll::to_json(read) == text);
  CHECK(read.failure == "rank 0: cannot open the \"data\":\\x0a\\x09no such file");
  CHECK(read.communicators.at(0).name == "tensor\\x0aparallel\\x1b[2J\\xff");
  CHECK(read.operations.at(0).error.starts_with("\\x0a\\x0a"));
  CHECK(read.step == -1);
  // Another rank finds the communicator in the answer by the id that it knows itself.
  const auto answer = atoll::answer_inquiry(log, "0 " + odd.id);
  using How = atoll::store::Answered::How;
  const auto result =
      atoll::explain_answers({{How::answered, answer}, {How::silent}}, {odd.id, {0, 1}, 0});
  CHECK(has(result.text, "rank 1 does not answer"));
  CHECK(result.text.find("has not opened") == std::string::npos);
}

TEST_CASE("a World writes its flight file on request, at SIGUSR1 and at a failure") {
  const train_test::TemporaryFolder folder;
  const auto file = folder.path() / "run.0.json";
  atoll::Config config;
  config.flight = (folder.path() / "run").string();
  config.owns_process = 1;
  config.log = "error";
  {
    atoll::World world = atoll::World::single(config);
    const auto flight = atoll::Flight::of(world);
    const auto track = flight->recorder().open(
        {.id = "comm/shard/0", .name = "shard", .backend = "host", .rank = 0, .ranks = {0}});
    flight->recorder().enqueue(*track, std::vector{all_reduce(9)}, 0);
    atoll::write_flight(world);
    CHECK(atoll::read_flight(file).reason == "call");
    CHECK(atoll::read_flight(file).operations.size() == 1);

    std::filesystem::remove(file);
    REQUIRE(::kill(::getpid(), SIGUSR1) == 0);
    REQUIRE(waits_for(file));
    CHECK(atoll::read_flight(file).reason == "signal");

    std::filesystem::remove(file);
    world.fail("disk on fire");
    flight->await_written();
    const auto log = atoll::read_flight(file);
    CHECK(log.reason == "failure");
    CHECK(log.failure == "rank 0: disk on fire");
    CHECK(log.operations.size() == 1);
  }
  std::size_t files = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(folder.path())) {
    ++files;
  }
  CHECK(files == 1);  // only the flight file exists, without a temporary file
  struct sigaction action {};
  REQUIRE(::sigaction(SIGUSR1, nullptr, &action) == 0);
  const bool given_back = action.sa_handler == SIG_DFL;
  CHECK(given_back);
}

namespace {
std::atomic<int> own_signals{0};
}  // namespace

TEST_CASE("a SIGUSR1 handler of the program is not replaced") {
  const train_test::TemporaryFolder folder;
  struct sigaction own {
  }, before{};
  own.sa_handler = [](int) { ++own_signals; };
  REQUIRE(::sigaction(SIGUSR1, &own, &before) == 0);
  atoll::Config config;
  config.flight = (folder.path() / "run").string();
  config.owns_process = 1;
  config.log = "error";
  {
    atoll::World world = atoll::World::single(config);
    const auto flight = atoll::Flight::of(world);
    REQUIRE(::raise(SIGUSR1) == 0);
    CHECK(own_signals == 1);
  }
  REQUIRE(::raise(SIGUSR1) == 0);
  CHECK(own_signals == 2);
  CHECK_FALSE(std::filesystem::exists(folder.path() / "run.0.json"));
  REQUIRE(::sigaction(SIGUSR1, &before, nullptr) == 0);
}

TEST_CASE("without Config::flight, or with a bad path, write_flight() throws") {
  atoll::World world = atoll::World::single();
  CHECK(atoll::flight_log(world).operations.empty());
  CHECK(has(error_of([&] { atoll::write_flight(world); }), "invalid argument: write_flight"));
  atoll::Config config;
  config.flight = "/nowhere/at/all";
  config.log = "off";
  atoll::World other = atoll::World::single(config);
  CHECK(has(error_of([&] { atoll::write_flight(other); }),
            {"input/output error: ", "/nowhere/at/all.0.json"}));
}
