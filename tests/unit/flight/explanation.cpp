// Tests of the sentences that explain flight logs, and of files that must be refused.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <chrono>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "atoll/flight.hpp"
#include "unit/error_text.hpp"
#include "unit/train/data_temporary.hpp"

namespace {

using atoll::FlightLog;
using atoll::FlightState;
using atoll_test::error_of;
using atoll_test::has;

constexpr std::int64_t second = 1'000'000'000;

// Returns the log of rank `rank` of `size`, taken 100 s after the start of the job, with a
// communicator "shard" over all ranks.
FlightLog log_of(int rank, int size) {
  FlightLog log;
  log.rank = rank;
  log.size = size;
  log.host = "node0";
  log.pid = 100 + rank;
  log.reason = "signal";
  log.monotonic_ns = 100 * second;
  atoll::FlightCommunicator& shard = log.communicators.emplace_back();
  shard.id = "comm/shard/0";
  shard.name = "shard";
  shard.backend = "mpi";
  shard.rank = rank;
  for (int r = 0; r < size; ++r) shard.ranks.push_back(r);
  return log;
}

void add(FlightLog& log, std::string_view kind, FlightState state, std::uint64_t count = 1024,
         std::string_view op = "") {
  atoll::FlightCommunicator& shard = log.communicators[0];
  atoll::FlightOperation& operation = log.operations.emplace_back();
  operation.number = operation.sequence = shard.enqueued++;
  operation.collective = static_cast<std::int64_t>(shard.collectives_enqueued++);
  operation.kind = kind;
  operation.dtype = "f32";
  operation.op = op;
  operation.count = count;
  operation.bytes = 4 * count;
  operation.state = state;
  operation.enqueued_ns = 39 * second;
  if (state != FlightState::enqueued) operation.started_ns = 40 * second;
  if (state == FlightState::completed) {
    operation.finished_ns = 41 * second;
    ++shard.completed;
    ++shard.collectives_completed;
  }
}

FlightLog in_all_reduce(int rank, int size) {
  FlightLog log = log_of(rank, size);
  add(log, "all_gather", FlightState::completed);
  add(log, "all_reduce", FlightState::started, 1024, "sum");
  return log;
}

// Returns the error for a text that is no flight file.
std::string bad(std::string_view text) {
  return error_of([&] { atoll::parse_flight(text, "f.json"); });
}

std::string replaced(std::string text, std::string_view from, std::string_view to) {
  const auto at = text.find(from);
  REQUIRE(at != std::string::npos);
  return text.replace(at, from.size(), to);
}

}  // namespace

TEST_CASE("the report names a rank that never called, and a rank without a log") {
  FlightLog behind = log_of(1, 4);
  add(behind, "all_gather", FlightState::completed);
  CHECK(has(atoll::explain_flight(std::vector{in_all_reduce(2, 4), behind, in_all_reduce(0, 4)}),
            {"4 ranks; logs of ranks 0-2; none of rank 3\n", "ranks 0-2 knew of no failure\n",
             "communicator shard (mpi, ranks 0-3; comm/shard/0)\n",
             "have completed: 1, the last one all_gather 0 (1024 x f32)\n",
             "rank 1 never called all_reduce 1 (its last operation on this communicator was "
             "all_gather 0, complete)\n",
             "  rank 2: in all_reduce 1 (1024 x f32, sum) for 60 s\n"}));
}

TEST_CASE("the report shows different calls of ranks together") {
  FlightLog odd = log_of(1, 3);
  add(odd, "all_gather", FlightState::completed);
  add(odd, "reduce_scatter", FlightState::started, 512, "sum");
  FlightLog failed = in_all_reduce(2, 3);
  failed.failure = "rank 2: out of patience";
  failed.operations.back().state = FlightState::failed;
  failed.operations.back().error = "timed out after 60 s";
  CHECK(has(atoll::explain_flight(std::vector{in_all_reduce(0, 3), odd, failed}),
            {"failure, on rank 2: rank 2: out of patience\n",
             "  calls differ at collective 1:\n"
             "    rank 1 called reduce_scatter 1 (512 x f32, sum) where ranks 0, 2 called "
             "all_reduce 1 (1024 x f32, sum)\n",
             "rank 2: all_reduce 1 (1024 x f32, sum) failed: timed out after 60 s\n"}));
}

TEST_CASE(
    "the report shows earlier different calls first, even if the backend did not notice them") {
  FlightLog odd = log_of(1, 2), other = log_of(0, 2);
  add(odd, "all_reduce", FlightState::completed, 1024, "max");
  add(other, "all_reduce", FlightState::completed, 1024, "sum");
  add(other, "barrier", FlightState::started, 0);
  const std::string text = atoll::explain_flight(std::vector{odd, other});
  const auto differ = text.find("calls differ at collective 0:\n    rank 1 called all_reduce 0 ");
  const auto never = text.find("rank 1 never called barrier 1");
  CHECK(never != std::string::npos);
  CHECK(differ < never);
}

TEST_CASE("the report names the collective to which the parts of a fallback belong") {
  const auto report = [](std::string_view of_zero, std::string_view of_one) {
    std::vector<FlightLog> logs = {log_of(0, 2), log_of(1, 2)};
    for (FlightLog& log : logs) add(log, "all_to_all", FlightState::started, 512);
    logs[0].operations.back().part_of = of_zero;
    logs[1].operations.back().part_of = of_one;
    return atoll::explain_flight(logs);
  };
  CHECK(has(report("all_reduce", "all_reduce"),
            {"ranks 0, 1 are in all_to_all 0 of all_reduce\n", "(512 x f32) for 60 s"}));
  // Equal all_to_alls that belong to different collectives are reported as different calls.
  CHECK(has(report("all_reduce", "reduce_scatter"),
            {"calls differ at collective 0", "called all_to_all 0 of reduce_scatter (512 x f32)"}));
}

TEST_CASE("the report explains that a rank waits on another communicator") {
  FlightLog busy = log_of(1, 2), waiting = in_all_reduce(0, 2);
  add(busy, "all_gather", FlightState::completed);
  add(busy, "all_reduce", FlightState::enqueued, 1024, "sum");
  busy.communicators.push_back(busy.communicators[0]);
  busy.communicators[1].id = "comm/replicate/0";
  busy.communicators[1].name = "replicate";
  busy.operations.push_back(busy.operations[0]);
  busy.operations.back().communicator = 1;
  busy.operations.back().state = FlightState::started;
  CHECK(has(atoll::explain_flight(std::vector{busy, waiting}),
            {"rank 1 has enqueued all_reduce 1, which waits for all_gather 0 (1024 x f32) of "
             "communicator replicate\n    rank 0 is in all_reduce 1\n",
             "rank 0: it has not opened this communicator; it is in all_reduce 1 "}));
}

TEST_CASE("sends and receives are not counted as collectives") {
  FlightLog sender = log_of(0, 2), other = log_of(1, 2);
  add(sender, "send", FlightState::completed);
  sender.operations[0].collective = -1;
  sender.operations[0].peer = 1;
  sender.communicators[0].collectives_enqueued = 0;
  sender.communicators[0].collectives_completed = 0;
  add(sender, "all_gather", FlightState::completed);
  add(other, "all_gather", FlightState::completed);
  const std::string text = atoll::explain_flight(std::vector{sender, other});
  CHECK(has(text, "have completed: 1, the last one all_gather 1 (1024 x f32)\n"));
  CHECK(text.find("differ") == std::string::npos);
}

TEST_CASE("logs of different jobs are refused") {
  const auto refusal = [](const std::vector<FlightLog>& logs) {
    return error_of([&] { atoll::explain_flight(logs); });
  };
  CHECK(refusal({}) == "invalid argument: explain_flight: no logs");
  CHECK(refusal({log_of(1, 2), log_of(1, 2)}) == "mismatch: two flight logs of rank 1");
  CHECK(has(refusal({log_of(0, 2), log_of(1, 3)}),
            "mismatch: flight logs of different jobs: the job of rank 0 has 2 ranks, that of rank "
            "1 has 3"));
}

TEST_CASE("a file that is not a flight file is refused, with its name and the byte offset") {
  const std::string good = atoll::to_json(in_all_reduce(0, 2));
  CHECK(has(bad(""), "bad data: f.json: byte 0: the file is not JSON"));
  CHECK(has(bad("{\"atoll_flight\":1,}"), "f.json: byte 18: the file is not JSON"));
  CHECK(has(bad("[]"), "f.json: byte 0: the file is not a JSON object"));
  CHECK(has(bad("{}"), "atoll_flight is missing"));
  CHECK(has(bad(std::string(atoll::max_flight_bytes + 1, ' ')), "bytes; "));
  struct Damage {
    std::string_view from;
    std::string to;
    std::string_view error;
  };
  const Damage damages[] = {
      {"\"atoll_flight\":1", "\"atoll_flight\":2", "version 2"},
      {"\"rank\":0", "\"rank\":2", "rank is not from 0 to 1"},
      {"\"ranks\":[0,1]", "\"ranks\":[0,7]", "does not contain rank 0 of 2"},
      {"\"communicator\":0", "\"communicator\":3", "refers to communicator 3; there are 1"},
      {"\"count\":1024", "\"count\":-1", "count is not from 0 to"},
      {"\"count\":1024", "\"count\":1e400", "f.json: byte "},
      {"\"error\":\"\"", "\"error\":[[[]]]", "f.json: byte "},
      {"\"operations\":[", "\"operations\":[7,", "not a list of objects"},
      {"\"host\":\"node0\"", "\"host\":\"a\\nb\"", "control characters"},
      {"node0", std::string(atoll::max_flight_text + 1, 'x'), "host has 16385 bytes"}};
  for (const Damage& damage : damages) {
    CHECK(has(bad(replaced(good, damage.from, damage.to)), damage.error));
  }
  // The error names the byte offset at the end of the invalid entry.
  const std::string wrong = replaced(good, "\"state\":\"started\"", "\"state\":\"asleep\"");
  const auto end = wrong.find('}', wrong.find("asleep")) + 1;
  CHECK(has(bad(wrong), "f.json: byte " + std::to_string(end) + ": state is not one of enqueued"));
  // Files that are truncated at any length are refused.
  for (std::size_t size = 0; size + 2 < good.size(); size += 7) {
    CHECK(has(bad(good.substr(0, size)), "f.json: byte "));
  }
}

TEST_CASE("a hostile flight file of many values is read or refused in linear time") {
  const std::string good = atoll::to_json(in_all_reduce(0, 2));
  const auto many = [](std::string_view value) {
    std::string text;
    for (int i = 0; i < 150'000; ++i) text += fmt::format("{}{}", text.empty() ? "" : ",", value);
    return text;
  };
  const auto start = std::chrono::steady_clock::now();
  // Members that this version does not know are skipped.
  const std::string head = "{\"later\":[" + many("{}") + "],\"atoll_flight\":1";
  CHECK(atoll::to_json(atoll::parse_flight(replaced(good, "{\"atoll_flight\":1", head), "f")) ==
        good);
  std::string members;
  for (int i = 0; i < 150'000; ++i) members += fmt::format("\"m{}\":{{}},", i);
  CHECK(atoll::to_json(atoll::parse_flight(replaced(good, "{", "{" + members), "f")) == good);
  // The lists and their entries hold nothing but what they should.
  for (const char* value : {"0", "[]"}) {
    const std::string list = "\"operations\":[" + many(value) + ",";
    CHECK(has(bad(replaced(good, "\"operations\":[", list)), "is not a list of objects"));
  }
  for (const char* value : {"{}", "[]"}) {
    const std::string list = "\"ranks\":[" + many(value) + "]";
    CHECK(has(bad(replaced(good, "\"ranks\":[0,1]", list)), "nested too deeply"));
  }
  CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(10));
}

TEST_CASE("files are read by name") {
  const train_test::TemporaryFolder folder;
  const auto path = folder.write("log", atoll::to_json(in_all_reduce(0, 1)));
  const std::vector files = {path};
  CHECK(atoll::explain_flight(files).find("1 rank; logs of rank 0\n") == 0);
  std::filesystem::remove(path);
  CHECK(
      has(error_of([&] { atoll::explain_flight(files); }), "input/output error: " + path.string()));
  CHECK(error_of([] { atoll::read_flight("/"); }) == "input/output error: /: not a file");
}
