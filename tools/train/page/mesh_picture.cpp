#include "page/mesh_picture.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <string_view>
#include <vector>

#include "page/run_files.hpp"
#include "page/text.hpp"

namespace train::page {
namespace {

using nlohmann::json;

constexpr double page_width = 1120, cell = 46, gap = 8, margin = 14, title = 24;
constexpr int columns_of_host = 4;
constexpr int colours = 8;
// More ranks would make a picture that nobody can read.
constexpr std::size_t most_ranks = 256;

// The position of a rank on the axes of the strategy's sharding.
struct Place {
  int replica = 0;
  int shard = 0;
};

struct Host {
  std::string name;
  std::vector<int> ranks;
};

std::vector<Host> hosts_of(const json& plan) {
  std::vector<Host> hosts;
  std::size_t shown = 0;
  for (const json& host : plan.value("hosts", json::array())) {
    if (!host.is_object()) continue;
    const json name = host.value("name", json());
    Host one{name.is_string() ? name.get<std::string>() : "host", {}};
    for (const json& rank : host.value("ranks", json::array())) {
      if (rank.is_number_integer() && shown++ < most_ranks) one.ranks.push_back(rank.get<int>());
    }
    if (!one.ranks.empty()) hosts.push_back(std::move(one));
  }
  return hosts;
}

std::map<int, Place> places_of(const json& plan) {
  std::map<int, Place> places;
  const double shards = number(plan, "shard");
  const int size = shards >= 1 ? static_cast<int>(shards) : 1;
  int at = 0;
  for (const json& rank : plan.value("order", json::array())) {
    if (rank.is_number_integer()) places[rank.get<int>()] = {at / size, at % size};
    ++at;
  }
  return places;
}

// The island of each rank, for a frame around neighbours.
std::map<int, std::size_t> islands_of(const json& plan) {
  std::map<int, std::size_t> island;
  std::size_t index = 0;
  for (const json& ranks : plan.value("islands", json::array())) {
    for (const json& rank : ranks) {
      if (rank.is_number_integer()) island[rank.get<int>()] = index;
    }
    ++index;
  }
  return island;
}

std::string draw_rank(int rank, const Place& place, std::size_t island, double x, double y) {
  const std::string where = fmt::format("rank {}: replica {}, shard {}, island {}", rank,
                                        place.replica, place.shard, island);
  return fmt::format(
      R"(<g><title>{}</title>)"
      R"(<rect class="rank c{}" x="{:.0f}" y="{:.0f}" width="{}" height="{}" rx="6"/>)"
      R"(<text class="on mid big" x="{:.0f}" y="{:.0f}">{}</text>)"
      R"(<text class="on mid small" x="{:.0f}" y="{:.0f}">r{} s{}</text></g>)",
      where, place.replica % colours + 1, x, y, cell, cell, x + cell / 2, y + 21, rank,
      x + cell / 2, y + 37, place.replica, place.shard);
}

struct Size {
  double width = 0, height = 0;
};

Size size_of(const Host& host) {
  const auto count = static_cast<double>(host.ranks.size());
  const double columns = std::min<double>(columns_of_host, count);
  const double rows = std::ceil(count / columns_of_host);
  const double wide = columns * (cell + gap) - gap + 2 * margin;
  return {std::max(wide, 2 * margin + 7.0 * static_cast<double>(host.name.size())),
          rows * (cell + gap) - gap + 2 * margin + title};
}

std::string draw_host(const Host& host, const std::map<int, Place>& places,
                      const std::map<int, std::size_t>& islands, double x, double y) {
  const Size size = size_of(host);
  std::string svg = fmt::format(
      R"(<rect class="host" x="{:.0f}" y="{:.0f}" width="{:.0f}" height="{:.0f}" rx="10"/>)"
      R"(<text class="label" x="{:.0f}" y="{:.0f}">{}</text>)",
      x, y, size.width, size.height, x + margin, y + 22, escape(host.name));
  std::size_t before = 0;
  for (std::size_t i = 0; i < host.ranks.size(); ++i) {
    const int rank = host.ranks[i];
    const double rx = x + margin + static_cast<double>(i % columns_of_host) * (cell + gap);
    const double ry = y + margin + title + static_cast<double>(i / columns_of_host) * (cell + gap);
    const auto place = places.find(rank);
    const auto found = islands.find(rank);
    const std::size_t island = found == islands.end() ? 0 : found->second;
    // A bar marks where a new island begins within a host.
    if (i > 0 && island != before && i % columns_of_host != 0) {
      svg += fmt::format(
          R"(<line class="border" x1="{0:.0f}" x2="{0:.0f}" y1="{1:.0f}" y2="{2:.0f}"/>)",
          rx - gap / 2, ry - 3, ry + cell + 3);
    } else if (i > 0 && island != before) {
      svg += fmt::format(
          R"(<line class="border" x1="{0:.0f}" x2="{1:.0f}" y1="{2:.0f}" y2="{2:.0f}"/>)",
          x + margin, x + size.width - margin, ry - gap / 2);
    }
    before = island;
    svg += draw_rank(rank, place == places.end() ? Place{} : place->second, island, rx, ry);
  }
  return svg;
}

}  // namespace

std::string draw_mesh(const json& plan) {
  if (!plan.is_object()) return {};
  const auto hosts = hosts_of(plan);
  if (hosts.empty()) return {};
  const auto places = places_of(plan);
  const auto islands = islands_of(plan);
  std::string svg;
  double x = 0, y = 0, row = 0, wide = 0;
  for (const Host& host : hosts) {
    const Size size = size_of(host);
    if (x > 0 && x + size.width > page_width) {
      x = 0;
      y += row + 16;
      row = 0;
    }
    svg += draw_host(host, places, islands, x + 1, y + 1);
    x += size.width + 16;
    row = std::max(row, size.height);
    wide = std::max(wide, x);
  }
  const double height = y + row + 2;
  return fmt::format(
      R"(<svg class="mesh" viewBox="0 0 {0:.0f} {1:.0f}" style="max-width:{0:.0f}px" role="img" aria-label="hosts and ranks">{2})"
      R"(</svg>)",
      wide, height, svg);
}

}  // namespace train::page
