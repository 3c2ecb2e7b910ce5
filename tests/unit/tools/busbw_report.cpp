// Programs that read the output of nccl-tests must also be able to read atoll-busbw's report. The
// readers in this file do what two programs in public repositories do with the output of
// all_reduce_perf and its siblings. The code of the readers was written for this test.
#include <doctest/doctest.h>

#include <regex>
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

// Reads a report as SuperBench does (microsoft/superbenchmark, cuda_nccl_bw_performance.py). The
// last lines with "out-of-place" and "Out of bounds values" enclose the table. A row has more than
// ten words, and the first shorter line ends the rows. The bus bandwidth is the sixth word from the
// end.
std::vector<double> read_from_the_end(const std::string& text) {
  const auto lines = lines_of(text);
  std::size_t begin = 0, end = 0;
  for (std::size_t i = 0; i < lines.size(); ++i) {
    if (lines[i].find("out-of-place") != std::string::npos) begin = i;
    if (lines[i].find("Out of bounds values") != std::string::npos) end = i;
  }
  std::vector<double> bandwidths;
  for (std::size_t i = begin + 3; i < end; ++i) {
    const auto words = words_of(lines[i]);
    if (words.size() <= 10) break;
    bandwidths.push_back(std::stod(words[words.size() - 6]));
  }
  return bandwidths;
}

struct ReadRow {
  std::uint64_t bytes;
  double out_time, out_busbw, in_busbw;
  std::string wrong;
};

// Reads a report as converters to CSV do (for example aws-samples' NCCL to CSV). One regular
// expression matches a whole row, with names of types and operations, and with "N/A" where results
// were not checked. Another regular expression matches the average.
std::vector<ReadRow> read_by_expression(const std::string& text, double& average) {
  static const std::regex row(
      R"(^\s*(\d+)\s+(\d+)\s+(float|double|int|half)\s+(sum|prod|max|min|none)\s+(-?\d+))"
      R"(\s+(\d+\.?\d*)\s+(\d+\.?\d*)\s+(\d+\.?\d*)\s+(\d+|N/A))"
      R"(\s+(\d+\.?\d*)\s+(\d+\.?\d*)\s+(\d+\.?\d*)\s+(\d+|N/A))");
  static const std::regex mean(R"(# Avg bus bandwidth\s*:\s*(\d+\.?\d*))");
  std::vector<ReadRow> rows;
  std::smatch match;
  for (const std::string& line : lines_of(text)) {
    if (std::regex_search(line, match, row))
      rows.push_back({std::stoull(match[1]), std::stod(match[6]), std::stod(match[8]),
                      std::stod(match[12]), match[13]});
    if (std::regex_search(line, match, mean)) average = std::stod(match[1]);
  }
  return rows;
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

std::string report(const std::vector<Row>& rows, const Layout& layout) {
  std::string text = header_lines(layout);
  for (const Row& one : rows) text += row_line(one, layout);
  return text + footer_lines(judge(rows, std::nullopt)) + limit_lines(rows, layout) +
         expect(rows, 0.85).text;
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
  std::vector<Row> wrong = rows;
  wrong[0].in.wrong = 3;
  CHECK(footer_lines(judge(wrong, std::nullopt)).find("values : 1 FAILED") != std::string::npos);
}

TEST_CASE("readers of nccl-tests read it, whatever else is said") {
  const std::vector<Row> rows{row(1 << 10, 10), row(1 << 20, 100), row(1 << 30, 123'456.7)};
  const std::string text = report(rows, {});
  CHECK(text.find("% of limit") != std::string::npos);

  const auto from_the_end = read_from_the_end(text);
  REQUIRE(from_the_end.size() == 3);
  CHECK(from_the_end[1] == doctest::Approx(10.49));

  double average = 0;
  const auto by_expression = read_by_expression(text, average);
  REQUIRE(by_expression.size() == 3);
  CHECK(by_expression[2].bytes == 1 << 30);
  CHECK(by_expression[2].out_time == doctest::Approx(123'457));
  CHECK(by_expression[1].in_busbw == doctest::Approx(20.97));
  CHECK(by_expression[1].wrong == "0");
  CHECK(average == doctest::Approx(judge(rows, std::nullopt).average_busbw).epsilon(1e-4));
}

TEST_CASE("unchecked halves read N/A") {
  std::vector<Row> rows{row(1 << 20, 100)};
  rows[0].in.wrong.reset();
  double average = 0;
  const auto read = read_by_expression(report(rows, {}), average);
  REQUIRE(read.size() == 1);
  CHECK(read[0].wrong == "N/A");
  CHECK(read_from_the_end(report(rows, {})).size() == 1);
}

TEST_CASE("-I adds four columns to each half, as nccl-tests does") {
  const auto lines = lines_of(header_lines({.latency = true}));
  CHECK(words_of(lines[2]).size() == 1 + 5 + 16);
  const auto words = words_of(row_line(row(1 << 20, 100), {.latency = true}));
  REQUIRE(words.size() == 5 + 16);
  CHECK(words[9] == "100.00");   // column i_min of the report
  CHECK(words[10] == "200.00");  // column i_max of the report
  CHECK(words[11] == "200.00");  // column i_p99 of the report
  CHECK(words[12] == "33.33");   // column i_cv% of the report
}

TEST_CASE("statistics of single operations") {
  std::vector<double> times;
  for (int i = 100; i >= 1; --i) times.push_back(i);
  const LatencySummary summary = summarize(times);
  CHECK(summary.min == 1);
  CHECK(summary.max == 100);
  CHECK(summary.p50 == 50);
  CHECK(summary.p95 == 95);
  CHECK(summary.p99 == 99);
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
