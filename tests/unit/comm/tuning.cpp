// Tests of tuning_lines(), which converts the user's settings to lines for backends.
#include "comm/tuning.hpp"

#include <doctest/doctest.h>
#include <unistd.h>

#include "atoll/error.hpp"

namespace {

class TuningFile {
 public:
  explicit TuningFile(const std::string& text) {
    const int fd = ::mkstemp(path_.data());
    REQUIRE(fd >= 0);
    REQUIRE(::write(fd, text.data(), text.size()) == static_cast<ssize_t>(text.size()));
    ::close(fd);
  }
  ~TuningFile() { ::unlink(path_.c_str()); }
  TuningFile(const TuningFile&) = delete;
  TuningFile& operator=(const TuningFile&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_ = "/tmp/atoll-tuning-XXXXXX";
};

std::string lines_of(const std::string& file, const std::string& algorithm) {
  atoll::Config config;
  config.tuning = file;
  config.algorithm = algorithm;
  return atoll::tuning_lines(config);
}

std::string problem_of(const std::string& file, const std::string& algorithm,
                       atoll::ErrorCode code = atoll::ErrorCode::invalid_argument) {
  try {
    lines_of(file, algorithm);
  } catch (const atoll::Error& error) {
    CHECK(error.code() == code);
    return error.what();
  }
  return "";
}

// Returns the text of the error for a tuning file with `text`, without the prefix "FILE:".
std::string problem_in_file(const std::string& text) {
  const TuningFile file(text);
  const std::string problem = problem_of(file.path(), "");
  REQUIRE(problem.starts_with(file.path() + ":"));
  return problem.substr(file.path().size() + 1);
}

}  // namespace

TEST_CASE("without settings there are no lines") {
  CHECK(lines_of("", "") == "");
  CHECK(lines_of("", "  ") == "");
  const TuningFile empty("# nothing\n\n   \n");
  CHECK(lines_of(empty.path(), "") == "");
}

TEST_CASE("each choice in ATOLL_ALGORITHM becomes a line with 0 as MIN_BYTES") {
  CHECK(lines_of("", "all_reduce:two_level,all_gather:ring") ==
        "all_reduce 0 two_level\nall_gather 0 ring\n");
  CHECK(lines_of("", " reduce_scatter_v : ring ") == "reduce_scatter_v 0 ring\n");
}

TEST_CASE("lines of the file come first, so that ATOLL_ALGORITHM has precedence") {
  const TuningFile file(
      "# measured\n"
      "all_reduce 0 latency\n"
      "\tall_reduce  64K   ring  # from here on\r\n"
      "\n"
      "all_gather 1M direct\n"
      "connections 4\n"
      "barrier 2G tree");
  CHECK(lines_of(file.path(), "all_reduce:two_level") ==
        "all_reduce 0 latency\n"
        "all_reduce 65536 ring\n"
        "all_gather 1048576 direct\n"
        "connections 4\n"
        "barrier 2147483648 tree\n"
        "all_reduce 0 two_level\n");
}

TEST_CASE("an error in ATOLL_ALGORITHM quotes the value") {
  CHECK(problem_of("", "all_reduce") ==
        "ATOLL_ALGORITHM=\"all_reduce\": expected a comma-separated list of "
        "COLLECTIVE:ALGORITHM");
  for (const char* text : {"all_reduce:", ":ring", "all_reduce:ring,", "all_reduce:a:b",
                           "all_reduce:two level", ","}) {
    CAPTURE(text);
    CHECK(problem_of("", text).find("ATOLL_ALGORITHM=\"") == 0);
  }
  const std::string unknown = problem_of("", "allreduce:ring");
  CHECK(unknown.find("unknown collective \"allreduce\"; the collectives are: all_gather, "
                     "all_gather_v, all_reduce,") != std::string::npos);
}

TEST_CASE("an error in the file names file and line") {
  CHECK(problem_in_file("all_reduce ring\n") ==
        "1: expected COLLECTIVE MIN_BYTES ALGORITHM, or connections N");
  for (const char* number : {"0", "17", "-1", "4x", "many"}) {
    CAPTURE(number);
    CHECK(problem_in_file(std::string("connections ") + number + "\n") ==
          std::string("1: \"") + number + "\" is not a number of connections from 1 to 16");
  }
  CHECK(problem_in_file("# one\nall_reduce 0 ring twice\n") ==
        "2: expected COLLECTIVE MIN_BYTES ALGORITHM, or connections N");
  CHECK(problem_in_file("\nall_reduce 1T ring\n") ==
        "2: \"1T\" is not a size: write bytes, or a number with K, M or G");
  for (const char* size : {"-1", "K", "1KB", "1.5M", "0x10"}) {
    CAPTURE(size);
    CHECK(problem_in_file(std::string("all_reduce ") + size + " ring\n").find("1: \"") == 0);
  }
  CHECK(problem_in_file("all_reduce 99999999999999G ring\n") ==
        "1: the size \"99999999999999G\" is too large");
  CHECK(problem_in_file("allgather 0 ring\n").find("1: unknown collective \"allgather\"; ") == 0);
  CHECK(problem_of("/nonexistent/tuning", "", atoll::ErrorCode::not_found)
            .find("/nonexistent/tuning") != std::string::npos);
}

TEST_CASE("a tuning file must be a regular file") {
  constexpr auto io = atoll::ErrorCode::io;
  CHECK(problem_of("/tmp", "", io) == "ATOLL_TUNING=/tmp: is a folder; name a regular file");
  CHECK(problem_of("/dev/null", "", io) ==
        "ATOLL_TUNING=/dev/null: is no regular file; name a regular file");
}
