#include "plot.hpp"

#include <fmt/format.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string_view>
#include <vector>

#include "atoll/error.hpp"

namespace busbw {
namespace {

struct Curve {
  std::string title;
  std::string points;  // gnuplot data, one line "bytes GB/s" for each point
  std::string limit;
};

// Quotes text for gnuplot, where '' stands for a single quote.
std::string in_quotes(std::string_view text) {
  std::string result = "'";
  for (const char c : text) result += c == '\'' ? "''" : std::string(1, c == '\n' ? ' ' : c);
  return result + "'";
}

std::vector<Curve> curves_of(std::span<const Table> tables) {
  std::vector<Curve> curves;
  std::map<std::string, std::size_t> known;
  for (const Table& table : tables) {
    for (const Row& row : table.rows) {
      for (const Place place : both_places) {
        if (row.bytes == 0 || (place == Place::in && !has_in_place(row.collective))) continue;
        std::string title = fmt::format("{} {}", name(row.collective), column_name(row.dtype));
        if (row.op != Op::none) title += fmt::format(" {}", name(row.op));
        if (row.root > 0) title += fmt::format(" root {}", row.root);
        title += fmt::format(", {}", place == Place::out ? "out of place" : "in place");
        const auto [at, is_new] = known.try_emplace(title, curves.size());
        if (is_new) curves.push_back({title, "", ""});
        const Half& half = row.half(place);
        Curve& curve = curves[at->second];
        curve.points += fmt::format("{} {:.6g}\n", row.bytes, half.busbw);
        if (const auto percent = half.percent(); percent && *percent > 0)
          curve.limit += fmt::format("{} {:.6g}\n", row.bytes, half.busbw * 100 / *percent);
      }
    }
  }
  return curves;
}

}  // namespace

std::string plot_program(std::span<const Table> tables, const std::string& path) {
  const std::vector<Curve> curves = curves_of(tables);
  std::string text = fmt::format(
      "set terminal svg size 960,600 noenhanced background rgb 'white'\n"
      "set output {}\n"
      "set logscale x 2\nset format x '%.0b %BB'\nset grid\nset key outside right top\n"
      "set xlabel 'bytes of the whole tensor'\nset ylabel 'bus bandwidth (GB/s)'\n"
      "set yrange [0:*]\n",
      in_quotes(path));
  std::string plots;
  for (std::size_t i = 0; i < curves.size(); ++i) {
    text += fmt::format("$curve{} << EOD\n{}EOD\n", i, curves[i].points);
    plots +=
        fmt::format("{}$curve{} with linespoints linecolor {} title {}",
                    plots.empty() ? "plot " : ", \\\n     ", i, i + 1, in_quotes(curves[i].title));
    if (curves[i].limit.empty()) continue;
    text += fmt::format("$limit{} << EOD\n{}EOD\n", i, curves[i].limit);
    plots += fmt::format(", \\\n     $limit{} with lines dashtype 2 linecolor {} title {}", i,
                         i + 1, in_quotes(curves[i].title + ", limit"));
  }
  return curves.empty() ? "" : text + plots + "\n";
}

void find_gnuplot() {
  if (std::system("command -v gnuplot > /dev/null") == 0) return;
  throw atoll::Error(atoll::ErrorCode::not_found,
                     "--plot: gnuplot is not in PATH: install the package gnuplot-nox");
}

void run_gnuplot(const std::string& program) {
  if (program.empty())
    throw atoll::Error(atoll::ErrorCode::invalid_argument, "--plot: there is no data to draw");
  find_gnuplot();
  std::FILE* const gnuplot = popen("gnuplot", "we");
  if (gnuplot == nullptr)
    throw atoll::Error(atoll::ErrorCode::io, fmt::format("--plot: {}", std::strerror(errno)));
  // If gnuplot ends early, its status shows that.
  static_cast<void>(std::fwrite(program.data(), 1, program.size(), gnuplot));
  if (pclose(gnuplot) != 0)
    throw atoll::Error(atoll::ErrorCode::io, "--plot: gnuplot failed; see its output above");
}

}  // namespace busbw
