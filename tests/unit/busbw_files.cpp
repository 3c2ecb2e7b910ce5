// Tests of the gnuplot program that atoll-busbw writes.
#include <doctest/doctest.h>

#include <string>

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
  const std::string program = plot_program(tables, "it's.svg");
  CHECK(program.find("set output 'it''s.svg'\n") != std::string::npos);
  CHECK(program.find("$curve0 << EOD\n1024 2\n4096 2\nEOD\n") != std::string::npos);
  CHECK(program.find("$limit0 << EOD\n1024 4\n4096 4\nEOD\n") != std::string::npos);
  CHECK(program.find("$curve1 << EOD\n1024 3\n4096 3\nEOD\n") != std::string::npos);
  CHECK(program.find("$limit1") == std::string::npos);
  CHECK(program.find("title 'all_reduce float sum, in place'") != std::string::npos);
  CHECK(program.back() == '\n');
  CHECK(plot_program({}, "x").empty());
}
