#include "plot.hpp"

#include <fmt/format.h>

#include <cmath>
#include <map>
#include <string>
#include <utility>

namespace busbw {
namespace {

using nlohmann::json;

std::string title_of(const Row& row, Place place) {
  std::string title = fmt::format("{} {}", name(row.collective), column_name(row.dtype));
  if (row.op != Op::none) title += fmt::format(" {}", name(row.op));
  if (row.root > 0) title += fmt::format(" root {}", row.root);
  return title + (place == Place::out ? ", out of place" : ", in place");
}

void add_point(json& points, const Row& row, double gbyte_s) {
  points["x"].push_back(row.bytes);
  points["y"].push_back(std::round(gbyte_s * 1e9));
}

}  // namespace

json plot_of(std::span<const Table> tables) {
  json curves = json::array();
  const json none{{"x", json::array()}, {"y", json::array()}};
  std::map<std::string, std::size_t> known;
  for (const Table& table : tables) {
    for (const Row& row : table.rows) {
      for (const Place place : both_places) {
        if (row.bytes == 0 || (place == Place::in && !has_in_place(row.collective))) continue;
        const std::string title = title_of(row, place);
        const auto [at, is_new] = known.try_emplace(title, curves.size());
        if (is_new) curves.push_back({{"name", title}, {"points", none}, {"limit", none}});
        json& curve = curves[at->second];
        const Half& half = row.half(place);
        add_point(curve["points"], row, half.busbw);
        if (const auto percent = half.percent(); percent && *percent > 0)
          add_point(curve["limit"], row, half.busbw * 100 / *percent);
      }
    }
  }
  return {{"kind", "busbw"}, {"title", "atoll-busbw"}, {"curves", std::move(curves)}};
}

}  // namespace busbw
