// Tests of the sentences that explain flight logs, and of files that must be refused.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <chrono>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "atoll/error.hpp"
#include "atoll/flight.hpp"
#include "unit/train/data_temporary.hpp"

namespace {

using atoll::FlightLog;
using atoll::FlightState;

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

std::string complaint(const std::function<void()>& call, atoll::ErrorCode code) {
  try {
    call();
  } catch (const atoll::Error& error) {
    CHECK(error.code() == code);
    return error.what();
  }
  return "no error";
}

std::string bad(std::string_view text) {
  return complaint([&] { atoll::parse_flight(text, "f.json"); }, atoll::ErrorCode::bad_data);
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
  const std::vector logs = {in_all_reduce(2, 4), behind, in_all_reduce(0, 4)};
  CHECK(atoll::explain_flight(logs) ==
        "4 ranks; logs of ranks 0-2; none of rank 3\n"
        "ranks 0-2 knew of no failure\n"
        "communicator shard (mpi, ranks 0-3; comm/shard/0)\n"
        "  no log of rank 3\n"
        "  collectives that all of these ranks have completed: 1, the last one all_gather 0 "
        "(1024 x "
        "f32)\n"
        "  collective 1:\n"
        "    rank 1 never called all_reduce 1 (its last operation on this communicator was "
        "all_gather 0, complete)\n"
        "  rank 0: in all_reduce 1 (1024 x f32, sum) for 60 s\n"
        "  rank 1: its last operation on this communicator was all_gather 0, complete\n"
        "  rank 2: in all_reduce 1 (1024 x f32, sum) for 60 s\n");
}

TEST_CASE("the report shows different calls of ranks together") {
  FlightLog odd = log_of(1, 3);
  add(odd, "all_gather", FlightState::completed);
  add(odd, "reduce_scatter", FlightState::started, 512, "sum");
  FlightLog failed = in_all_reduce(2, 3);
  failed.failure = "rank 2: out of patience";
  failed.operations.back().state = FlightState::failed;
  failed.operations.back().error = "timed out after 60 s";
  const std::vector logs = {in_all_reduce(0, 3), odd, failed};
  CHECK(atoll::explain_flight(logs) ==
        "3 ranks; logs of all\n"
        "ranks 0, 1 knew of no failure\n"
        "failure, on rank 2: rank 2: out of patience\n"
        "communicator shard (mpi, ranks 0-2; comm/shard/0)\n"
        "  collectives that all of these ranks have completed: 1, the last one all_gather 0 "
        "(1024 x "
        "f32)\n"
        "  calls differ at collective 1:\n"
        "    rank 1 called reduce_scatter 1 (512 x f32, sum) where ranks 0, 2 called all_reduce 1 "
        "(1024 x f32, sum)\n"
        "  rank 0: in all_reduce 1 (1024 x f32, sum) for 60 s\n"
        "  rank 1: in reduce_scatter 1 (512 x f32, sum) for 60 s\n"
        "  rank 2: all_reduce 1 (1024 x f32, sum) failed: timed out after 60 s\n");
}

TEST_CASE(
    "the report shows earlier different calls first, even if the backend did not notice them") {
  FlightLog odd = log_of(1, 2), other = log_of(0, 2);
  add(odd, "all_reduce", FlightState::completed, 1024, "max");
  add(other, "all_reduce", FlightState::completed, 1024, "sum");
  add(other, "barrier", FlightState::started, 0);
  const std::string text = atoll::explain_flight(std::vector{odd, other});
  const auto differ = text.find(
      "calls differ at collective 0:\n    rank 1 called all_reduce 0 (1024 x f32, max) where rank "
      "0 "
      "called all_reduce 0 (1024 x f32, sum)\n");
  const auto never = text.find("rank 1 never called barrier 1");
  CHECK(differ != std::string::npos);
  CHECK(never != std::string::npos);
  CHECK(differ < never);
}

TEST_CASE("the report names the collective to which the parts of a fallback belong") {
  const auto log = [](int rank, std::string_view called) {
    FlightLog one = log_of(rank, 2);
    add(one, "all_to_all", FlightState::started, 512);
    one.operations.back().part_of = called;
    return one;
  };
  const std::string same =
      atoll::explain_flight(std::vector{log(0, "all_reduce"), log(1, "all_reduce")});
  CHECK(same.find("ranks 0, 1 are in all_to_all 0 of all_reduce\n") != std::string::npos);
  CHECK(same.find("in all_to_all 0 of all_reduce (512 x f32) for 60 s") != std::string::npos);
  // Equal all_to_alls that belong to different collectives are reported as different calls.
  const std::string other =
      atoll::explain_flight(std::vector{log(0, "all_reduce"), log(1, "reduce_scatter")});
  CHECK(other.find("calls differ at collective 0") != std::string::npos);
  CHECK(other.find("called all_to_all 0 of reduce_scatter (512 x f32)") != std::string::npos);
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
  const std::string text = atoll::explain_flight(std::vector{busy, waiting});
  CHECK(text.find("rank 1 has enqueued all_reduce 1, which waits for all_gather 0 (1024 x f32) of "
                  "communicator replicate\n    rank 0 is in all_reduce 1\n") != std::string::npos);
  CHECK(text.find("rank 0: it has not opened this communicator; it is in all_reduce 1 (1024 x f32, "
                  "sum) of communicator shard") != std::string::npos);
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
  CHECK(atoll::explain_flight(std::vector{sender, other}) ==
        "2 ranks; logs of all\n"
        "ranks 0, 1 knew of no failure\n"
        "communicator shard (mpi, ranks 0, 1; comm/shard/0)\n"
        "  collectives that all of these ranks have completed: 1, the last one all_gather 1 "
        "(1024 x "
        "f32)\n");
}

TEST_CASE("logs of different jobs are refused") {
  const auto refuse = [](const std::vector<FlightLog>& logs, atoll::ErrorCode code) {
    return complaint([&] { atoll::explain_flight(logs); }, code);
  };
  CHECK(refuse({}, atoll::ErrorCode::invalid_argument) == "explain_flight: no logs");
  CHECK(refuse({log_of(1, 2), log_of(1, 2)}, atoll::ErrorCode::mismatch) ==
        "two flight logs of rank 1");
  CHECK(refuse({log_of(0, 2), log_of(1, 3)}, atoll::ErrorCode::mismatch) ==
        "flight logs of different jobs: the job of rank 0 has 2 ranks, that of rank 1 has 3");
}

TEST_CASE("a file that is not a flight file is refused, with its name and the byte offset") {
  const std::string good = atoll::to_json(in_all_reduce(0, 2));
  CHECK(atoll::to_json(atoll::parse_flight(good, "f.json")) == good);
  CHECK(bad("") == "f.json: byte 0: the file is not JSON");
  CHECK(bad("{\"atoll_flight\":1,}") == "f.json: byte 18: the file is not JSON");
  CHECK(bad("[]").find("f.json: byte 0: the file is not a JSON object") == 0);
  CHECK(bad("{}").find("atoll_flight is missing") != std::string::npos);
  CHECK(bad(replaced(good, "\"atoll_flight\":1", "\"atoll_flight\":2")).find("version 2") !=
        std::string::npos);
  CHECK(bad(replaced(good, "\"rank\":0", "\"rank\":2")).find("rank is not from 0 to 1") !=
        std::string::npos);
  CHECK(bad(replaced(good, "\"ranks\":[0,1]", "\"ranks\":[0,7]"))
            .find("does not contain rank 0 of 2") != std::string::npos);
  CHECK(bad(replaced(good, "\"communicator\":0", "\"communicator\":3"))
            .find("refers to communicator 3; there are 1") != std::string::npos);
  CHECK(bad(replaced(good, "\"count\":1024", "\"count\":-1")).find("count is not from 0 to") !=
        std::string::npos);
  CHECK(bad(replaced(good, "\"count\":1024", "\"count\":1e400")).find("f.json: byte ") == 0);
  CHECK(bad(replaced(good, "\"error\":\"\"", "\"error\":[[[]]]")).find("f.json: byte ") == 0);
  CHECK(
      bad(replaced(good, "\"operations\":[", "\"operations\":[7,")).find("not a list of objects") !=
      std::string::npos);
  CHECK(
      bad(replaced(good, "\"host\":\"node0\"", "\"host\":\"a\\nb\"")).find("control characters") !=
      std::string::npos);
  CHECK(bad(replaced(good, "node0", std::string(atoll::max_flight_text + 1, 'x')))
            .find("host has 16385 bytes") != std::string::npos);
  CHECK(bad(std::string(atoll::max_flight_bytes + 1, ' ')).find("bytes; ") != std::string::npos);
  // The error names the byte offset at the end of the invalid entry.
  const std::string wrong = replaced(good, "\"state\":\"started\"", "\"state\":\"asleep\"");
  const auto end = wrong.find('}', wrong.find("asleep")) + 1;
  CHECK(bad(wrong) == "f.json: byte " + std::to_string(end) +
                          ": state is not one of enqueued, started, completed, failed");
  // Files that are truncated at any length are refused.
  for (std::size_t size = 0; size + 2 < good.size(); size += 7) {
    CHECK(bad(good.substr(0, size)).find("f.json: byte ") == 0);
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
  CHECK(bad("[" + many("{}") + "]") == "f.json: byte 0: the file is not a JSON object");
  for (const std::string& list : {many("0"), many("[]")})
    CHECK(bad(replaced(good, "\"operations\":[", "\"operations\":[" + list + ","))
              .find("operations is not a list of objects") != std::string::npos);
  for (const char* value : {"{}", "[]"})
    CHECK(bad(replaced(good, "\"ranks\":[0,1]", "\"ranks\":[" + many(value) + "]"))
              .find("nested too deeply") != std::string::npos);
  CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(10));
}

TEST_CASE("files are read by name") {
  const train_test::TemporaryFolder folder;
  const auto path = folder.write("log", atoll::to_json(in_all_reduce(0, 1)));
  const std::vector files = {path};
  CHECK(atoll::explain_flight(files).find("1 rank; logs of rank 0\n") == 0);
  std::filesystem::remove(path);
  CHECK(
      complaint([&] { atoll::explain_flight(files); }, atoll::ErrorCode::io).find(path.string()) ==
      0);
  CHECK(complaint([] { atoll::read_flight("/"); }, atoll::ErrorCode::io) == "/: not a file");
}
