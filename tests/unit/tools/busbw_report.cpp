// Tests of atoll-busbw's report, which is laid out as by nccl-tests: other programs read it.
// tests/cluster/busbw_tool reads whole reports as those programs do.
#include <doctest/doctest.h>

#include <sstream>
#include <string>
#include <vector>

#include "report.hpp"

using namespace busbw;

namespace {

std::vector<std::string> lines_of(const std::string& text) {
  std::istringstream stream(text);
  std::vector<std::string> lines;
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

std::vector<std::string> words_of(const std::string& line) {
  std::istringstream stream(line);
  std::vector<std::string> words;
  for (std::string word; stream >> word;) words.push_back(word);
  return words;
}

Row row(std::uint64_t bytes, double time_us) {
  Row one{.bytes = bytes, .count = bytes / 4, .op = Op::sum, .ranks = 2};
  for (Half* half : {&one.out, &one.in}) {
    half->time_us = time_us;
    half->algbw = static_cast<double>(bytes) / time_us / 1e3;
    half->busbw = half->algbw;
    half->wrong = 0;
    half->limit = {.seconds = time_us * 0.5e-6, .by = "memory"};
    half->latency = summarize({time_us, time_us * 2});
  }
  one.in.busbw *= 2;
  return one;
}

}  // namespace

TEST_CASE("the table is laid out as by nccl-tests") {
  const auto lines = lines_of(header_lines({}));
  REQUIRE(lines.size() == 4);
  CHECK(lines[1].find("out-of-place                       in-place") != std::string::npos);
  CHECK(lines[2] ==
        "#       size         count      type   redop    root     time   algbw   busbw  #wrong     "
        "time   algbw   busbw  #wrong ");
  CHECK(lines[3] ==
        "#        (B)    (elements)                               (us)  (GB/s)  (GB/s)             "
        "(us)  (GB/s)  (GB/s)         ");
  CHECK(row_line(row(1 << 20, 100), {}) ==
        "     1048576        262144     float     sum      -1   100.00   10.49   10.49       0   "
        "100.00   10.49   20.97       0\n");
}

TEST_CASE("footer") {
  const std::vector<Row> rows{row(1'000'000, 100)};
  CHECK(footer_lines(judge(rows, std::nullopt)) ==
        "# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 15 \n#\n");
  CHECK(footer_lines(judge(rows, 16)).find(": 15 OK") != std::string::npos);
  CHECK(footer_lines(judge(rows, 17)).find(": 15 FAILED") != std::string::npos);
  CHECK(footer_lines(judge(rows, 17)).find("# below 15.3 GB/s, which is 0.9 x") !=
        std::string::npos);
  std::vector<Row> wrong = rows;
  wrong[0].in.wrong = 3;
  CHECK(footer_lines(judge(wrong, std::nullopt)).find("values : 1 FAILED") != std::string::npos);
}

TEST_CASE("-I adds four columns to each half, as nccl-tests does") {
  const auto lines = lines_of(header_lines({.latency = true}));
  CHECK(words_of(lines[2]).size() == 1 + 5 + 16);
  const auto words = words_of(row_line(row(1 << 20, 100), {.latency = true}));
  REQUIRE(words.size() == 5 + 16);
  CHECK(std::vector(words.begin() + 9, words.begin() + 13) ==
        std::vector<std::string>{"100.00", "200.00", "200.00", "33.33"});  // min, max, p99, cv%
}

TEST_CASE("statistics of single operations") {
  std::vector<double> times;
  for (int i = 100; i >= 1; --i) times.push_back(i);
  const LatencySummary summary = summarize(times);
  CHECK(std::vector{summary.min, summary.p50, summary.p95, summary.p99, summary.max} ==
        std::vector<double>{1, 50, 95, 99, 100});
  CHECK(summary.mean == doctest::Approx(50.5));
  CHECK(summary.deviation == doctest::Approx(28.866).epsilon(1e-4));
  const LatencySummary one = summarize({3});
  CHECK(one.p50 == 3);
  CHECK(one.p99 == 3);
  CHECK(one.cv_percent() == 0);
}

TEST_CASE("expectations name the rows below") {
  const std::vector<Row> rows{row(1 << 20, 100)};  // this row reaches 50 % of its limit
  CHECK(expect(rows, 0.49).below == 0);
  const Expectation failed = expect(rows, 0.51);
  CHECK(failed.below == 2);
  CHECK(failed.judged == 2);
  CHECK(failed.text.find("all_reduce float sum 1048576 B, in: 50.0 %") != std::string::npos);
  CHECK(failed.text.find("FAILED") != std::string::npos);
  std::vector<Row> unknown = rows;
  unknown[0].out.limit = unknown[0].in.limit = {.seconds = std::nullopt, .by = "not known"};
  CHECK(expect(unknown, 0.5).judged == 0);
  CHECK(limit_lines(unknown, {}) == "# all_reduce: no limit: not known\n#\n");
  std::vector<Row> of_ring = rows;
  of_ring[0].out.limit.by = of_ring[0].in.limit.by = by_ring;
  CHECK(expect(of_ring, 0.49).text.find("Share of a ring") != std::string::npos);
  CHECK(limit_lines(of_ring, {}).find("of a ring: NVLS") != std::string::npos);
  CHECK(limit_lines(rows, {}).find("ring") == std::string::npos);
}

TEST_CASE("ports: findings as comments") {
  using atoll::Severity;
  const std::vector<atoll::Finding> findings{
      {"errors_rose", Severity::warning, {"a/mlx5_0"}, "symbol_error +8", "packets", "clean"},
      {"sender_waited", Severity::info, {"a/mlx5_0"}, "port_xmit_wait +9", "slow", ""}};
  CHECK(busbw::port_lines(findings) ==
        "# warning: symbol_error +8; packets; clean\n"
        "# info: port_xmit_wait +9; slow\n");
  CHECK(busbw::port_lines({}).empty());
}
