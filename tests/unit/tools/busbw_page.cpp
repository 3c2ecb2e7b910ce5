// Tests of the page that atoll-busbw --plot writes.
#include <doctest/doctest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "documents.hpp"

using namespace busbw;

TEST_CASE("the page has each measured half of a row, with its share of the limit") {
  Row row{.bytes = 1024, .op = Op::sum};
  row.out.time_us = row.in.time_us = 10;
  row.out.busbw = 2;
  row.in.busbw = 3;
  row.out.limit = {.seconds = 5e-6, .by = "memory"};
  const Row empty{.bytes = 0};
  const Row one_way{.collective = Collective::all_to_all, .bytes = 64, .root = 1};
  const std::vector<Table> tables{{.rows = {row, empty}}, {.rows = {one_way}}};
  const std::string page = to_page(tables, 0.6), start = "id=\"report\">";
  const auto at = page.find(start) + start.size();
  const auto data = nlohmann::json::parse(page.substr(at, page.find("</script>", at) - at));
  const auto& halves = data.at("halves");
  CHECK(data.at("expect") == 0.6);
  REQUIRE(halves.size() == 3);
  const auto has = [&](int half, const char* members) {
    const auto expected = nlohmann::json::parse(members);
    for (const auto& [name, value] : expected.items()) CHECK(halves[half][name] == value);
  };
  has(0, R"({"collective": "all_reduce", "bytes": 1024, "ranks": 1, "bus_bw": 2,
             "limit_percent": 50})");
  has(1, R"({"place": "in place", "bus_bw": 3, "limit_percent": null})");
  has(2, R"({"collective": "all_to_all", "op": ""})");  // which cannot run in place
}
