// Tests of the tuning files that atoll-busbw makes from saved bandwidth curves.
#include <doctest/doctest.h>

#include <string>

#include "atoll/error.hpp"
#include "tune.hpp"
#include "unit/error_text.hpp"

using namespace busbw;

namespace {

CurvePoint point(Collective collective, const char* algorithm, std::uint64_t bytes, double time,
                 const char* setting = "f32 sum out 4 1") {
  return {collective, algorithm, setting, bytes, time};
}

std::string lines(const std::vector<CurvePoint>& points) {
  const std::string text = tuning_text(points);
  return text.substr(text.find('\n') + 1);
}

constexpr const char* curve_row =
    R"({"collective": "all_reduce", "dtype": "f32", "op": "sum", "place": "out", "bytes": 8,
        "ranks": 2, "hosts": 2, "algorithm": "ring", "time_us": 1.5})";

std::string curve(const std::string& rows) {
  return R"({"schema": "atoll-curve-1", "rows": [)" + rows + "]}";
}

}  // namespace

TEST_CASE("the faster algorithm from each size on") {
  using enum Collective;
  CHECK(lines({point(all_reduce, "flat", 8, 9), point(all_reduce, "tree", 8, 5),
               point(all_reduce, "flat", 64, 9), point(all_reduce, "tree", 64, 8),
               point(all_reduce, "flat", 512, 10), point(all_reduce, "tree", 512, 20),
               point(all_gather, "flat", 8, 1)}) ==
        "all_reduce 0 tree\nall_reduce 512 flat\nall_gather 0 flat\n");
}

TEST_CASE("only settings that all algorithms have are compared; the best of several runs counts") {
  using enum Collective;
  CHECK(lines({point(all_reduce, "flat", 8, 5), point(all_reduce, "tree", 8, 6),
               point(all_reduce, "tree", 8, 1, "bf16 sum out 4 1")}) == "all_reduce 0 flat\n");
  CHECK(lines({point(all_reduce, "flat", 8, 5), point(all_reduce, "tree", 8, 6),
               point(all_reduce, "tree", 8, 4)}) == "all_reduce 0 tree\n");
  CHECK(lines({point(all_reduce, "flat", 8, 5), point(all_reduce, "tree", 8, 6, "x")}).empty());
  CHECK(lines({point(all_reduce, "flat", 8, 5), point(all_reduce, "flat", 64, 5),
               point(all_reduce, "tree", 64, 4)}) == "all_reduce 0 tree\n");
  CHECK_THROWS_AS(static_cast<void>(tuning_text({})), atoll::Error);
}

TEST_CASE("sums that round 16-bit types at each step win only where such a type was compared") {
  using enum Collective;
  const std::vector<CurvePoint> wide{point(all_reduce, "ring", 8, 5),
                                     point(all_reduce, "flat", 8, 6)};
  CHECK(lines(wide) == "all_reduce 0 flat\n");
  const char* bf16 = "bf16 sum out 4 2";
  CHECK(lines({point(all_reduce, "ring", 8, 5, bf16), point(all_reduce, "flat", 8, 6, bf16)}) ==
        "all_reduce 0 ring\n");
  CHECK(lines({point(all_gather, "ring", 8, 5), point(all_gather, "flat", 8, 6)}) ==
        "all_gather 0 ring\n");
  const auto uneven = Collective::reduce_scatter_v;
  CHECK(lines({point(uneven, "ring", 8, 5), point(uneven, "flat", 8, 6)}) ==
        "reduce_scatter_v 0 flat\n");
}

TEST_CASE("curves of one host decide nothing") {
  std::string text = curve_row;
  text.replace(text.find("\"hosts\": 2"), 10, "\"hosts\": 1");
  CHECK(parse_curve(curve(text), "c.json").empty());
}

TEST_CASE("a curve is read") {
  const auto points = parse_curve(curve(curve_row), "c.json");
  REQUIRE(points.size() == 1);
  CHECK(points[0].algorithm + ' ' + points[0].setting == "ring f32 sum out 2 2");
  CHECK(points[0].bytes == 8);
  CHECK(points[0].time_us == 1.5);
  CHECK(parse_curve(curve(""), "c.json").empty());
}

TEST_CASE("a bad curve is refused with its name") {
  const auto broken = [](const char* from, const char* to) {
    std::string text = curve_row;
    text.replace(text.find(from), std::string(from).size(), to);
    return curve(text);
  };
  for (const std::string& text : {std::string("[]"), curve("{}"), broken("all_reduce", "nothing"),
                                  broken("ring", "a b"), broken("1.5", "0")}) {
    CAPTURE(text);
    CHECK(atoll_test::error_of([&] {
            parse_curve(text, "c.json");
          }).starts_with(std::string(name(atoll::ErrorCode::bad_data)) + ": c.json: "));
  }
}
