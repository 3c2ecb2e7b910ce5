// Tests of tuning_lines(), which converts the user's settings to lines for backends.
#include "comm/tuning.hpp"

#include <doctest/doctest.h>

#include <string>

#include "unit/error_text.hpp"
#include "unit/train/data_temporary.hpp"

using atoll_test::error_of;
using atoll_test::has;
using train_test::TemporaryFolder;

namespace {

std::string lines_of(const std::string& file, const std::string& algorithm) {
  atoll::Config config;
  config.tuning = file;
  config.algorithm = algorithm;
  return atoll::tuning_lines(config);
}

std::string problem_of(const std::string& file, const std::string& algorithm) {
  return error_of([&] { lines_of(file, algorithm); });
}

// Returns the text of the error for a tuning file with `text`, from the number of the line on.
std::string problem_in_file(const std::string& text) {
  const TemporaryFolder folder;
  const std::string file = folder.write("tuning", text).string();
  const std::string problem = problem_of(file, ""), start = "invalid argument: " + file + ":";
  REQUIRE(problem.starts_with(start));
  return problem.substr(start.size());
}

}  // namespace

TEST_CASE("without settings there are no lines") {
  const TemporaryFolder folder;
  CHECK(lines_of("", "  ") == "");
  CHECK(lines_of(folder.write("empty", "# nothing\n\n   \n").string(), "") == "");
}

TEST_CASE("each choice in ATOLL_ALGORITHM becomes a line with 0 as MIN_BYTES") {
  CHECK(lines_of("", "all_reduce:two_level,all_gather:ring") ==
        "all_reduce 0 two_level\nall_gather 0 ring\n");
  CHECK(lines_of("", " reduce_scatter_v : ring ") == "reduce_scatter_v 0 ring\n");
}

TEST_CASE("lines of the file come first, so that ATOLL_ALGORITHM has precedence") {
  const TemporaryFolder folder;
  const auto file = folder.write("tuning",
                                 "# measured\n"
                                 "all_reduce 0 latency\n"
                                 "\tall_reduce  64K   ring  # from here on\r\n"
                                 "\n"
                                 "all_gather 1M direct\n"
                                 "connections 4\n"
                                 "barrier 2G tree");
  CHECK(lines_of(file.string(), "all_reduce:two_level") ==
        "all_reduce 0 latency\n"
        "all_reduce 65536 ring\n"
        "all_gather 1048576 direct\n"
        "connections 4\n"
        "barrier 2147483648 tree\n"
        "all_reduce 0 two_level\n");
}

TEST_CASE("an error in ATOLL_ALGORITHM quotes the value") {
  for (const char* text : {"all_reduce", "all_reduce:", ":ring", "all_reduce:ring,",
                           "all_reduce:a:b", "all_reduce:two level", ","}) {
    CHECK(has(problem_of("", text), "ATOLL_ALGORITHM=\"" + std::string(text) + "\": "));
  }
  CHECK(has(problem_of("", "all_reduce"), "expected a comma-separated list of COLLECTIVE:ALGO"));
  CHECK(has(problem_of("", "allreduce:ring"),
            "unknown collective \"allreduce\"; the collectives are: all_gather, "));
}

TEST_CASE("an error in the file names file and line") {
  const std::string form = "expected COLLECTIVE MIN_BYTES ALGORITHM, or connections N";
  CHECK(problem_in_file("all_reduce ring\n") == "1: " + form);
  CHECK(problem_in_file("# one\nall_reduce 0 ring twice\n") == "2: " + form);
  for (const std::string number : {"0", "17", "-1", "4x", "many"}) {
    CHECK(has(problem_in_file("connections " + number + "\n"),
              "1: \"" + number + "\" is not a number of connections from 1 to 16"));
  }
  for (const std::string size : {"1T", "-1", "K", "1KB", "1.5M", "0x10"}) {
    CHECK(has(problem_in_file("\nall_reduce " + size + " ring\n"),
              "2: \"" + size + "\" is not a size: write bytes, or a number with K, M or G"));
  }
  CHECK(has(problem_in_file("all_reduce 99999999999999G ring\n"), "1: the size "));
  CHECK(has(problem_in_file("allgather 0 ring\n"), "1: unknown collective \"allgather\"; "));
}

TEST_CASE("a tuning file must be a regular file") {
  CHECK(has(problem_of("/nonexistent/tuning", ""), {"not found: ", "/nonexistent/tuning"}));
  CHECK(has(problem_of("/tmp", ""), "input/output error: ATOLL_TUNING=/tmp: is a folder"));
  CHECK(has(problem_of("/dev/null", ""), "ATOLL_TUNING=/dev/null: is no regular file"));
}
