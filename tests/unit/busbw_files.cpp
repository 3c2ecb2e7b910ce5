// Tests of the plot that atoll-busbw writes.
#include <doctest/doctest.h>

#include <nlohmann/json.hpp>
#include <vector>

#include "plot.hpp"

using namespace busbw;

TEST_CASE("a curve for each collective, type and place, its limit beside it") {
  Row row{.bytes = 1024, .op = Op::sum};
  row.out.time_us = row.in.time_us = 10;
  row.out.busbw = 2;
  row.in.busbw = 3;
  row.out.limit = {.seconds = 5e-6, .by = "memory"};
  Row larger = row;
  larger.bytes = 4096;
  const std::vector<Table> tables{{.collective = Collective::all_reduce, .rows = {row, larger}}};
  const auto curves = plot_of(tables)["curves"];
  REQUIRE(curves.size() == 2);
  const auto curve = [](const nlohmann::json& y) {
    return nlohmann::json{{"x", {1024, 4096}}, {"y", y}};
  };
  CHECK(curves[0]["points"] == curve({2e9, 2e9}));
  CHECK(curves[0]["limit"] == curve({4e9, 4e9}));
  CHECK(curves[1]["points"] == curve({3e9, 3e9}));
  CHECK(curves[1]["limit"]["x"].empty());
  CHECK(curves[1]["name"] == "all_reduce float sum, in place");
  CHECK(plot_of({})["curves"].empty());
}
