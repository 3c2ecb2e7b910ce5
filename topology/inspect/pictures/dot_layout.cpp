// Places, from the inside out: GPUs stand in one row, island by island; what joins them is above,
// the NICs that they use are below them.
#include "inspect/pictures/dot_layout.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

namespace atoll_v1::atoll::drawing {
namespace {

constexpr double pad = 10;
constexpr double gpu_pitch = 66, gpu_width = 56, gpu_height = 34;
constexpr double nic_pitch = 66, nic_width = 62, nic_height = 26;
constexpr double bar_height = 18, stub_height = 16;

constexpr double package_height = 15;
constexpr double nic_gap = 28;
constexpr double least_island_width = 120;
constexpr double summary_width = 150;

double fabric_height(const IslandBox& island) {
  double height = 0;
  if (!island.has_frame) return height;
  if (!island.stubs.empty()) height += bar_height + stub_height;
  std::size_t span = 0;
  for (const Arc& arc : island.arcs) span = std::max(span, arc.b - arc.a);
  if (span > 0) height += arc_height * static_cast<double>(span) + arc_height;
  return height;
}

double island_width(const IslandBox& island) {
  const double gpus = static_cast<double>(island.gpus.size()) * gpu_pitch - (gpu_pitch - gpu_width);
  return std::max(island.has_frame ? least_island_width : 0, gpus + 2 * pad);
}

std::vector<std::string> island_lines(const IslandBox& island, double width) {
  return wrapped(island.title, width - 2 * pad, title_font);
}

// Runs of neighbours on one processor; none unless there are two processors at least.
std::vector<Bar> package_bars(const HostBox& host, const std::vector<Rect>& gpus, double y) {
  std::vector<Bar> bars;
  for (std::size_t i = 0; i < host.gpus.size(); ++i) {
    const int package = host.gpus[i].package;
    if (package < 0) return {};
    if (i > 0 && package == host.gpus[i - 1].package)
      bars.back().place.width = gpus[i].right() - bars.back().place.x;
    else
      bars.push_back(
          {{gpus[i].x, y, gpus[i].width, package_height}, fmt::format("CPU {}", package)});
  }
  return bars.size() > 1 ? bars : std::vector<Bar>();
}

double mean_x(const std::vector<std::size_t>& gpus, const std::vector<Rect>& places) {
  double sum = 0;
  for (const std::size_t gpu : gpus) sum += places[gpu].middle();
  return sum / static_cast<double>(gpus.size());
}

// Each stack below its GPUs where it can be, the others to the right; none on another.
std::vector<double> stack_middles(const HostBox& host, const std::vector<Rect>& gpus) {
  std::vector<double> wanted(host.stacks.size());
  double right = gpus.empty() ? pad - nic_pitch / 2 : gpus.back().middle();
  for (std::size_t i = 0; i < host.stacks.size(); ++i) {
    const NicStack& stack = host.stacks[i];
    const auto& below = stack.users.empty() ? stack.near : stack.users;
    wanted[i] = below.empty() ? right += nic_pitch : mean_x(below, gpus);
  }
  std::vector<std::size_t> order(host.stacks.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(order, {}, [&](std::size_t i) { return wanted[i]; });
  std::vector<double> middles = wanted;
  for (std::size_t k = 0; k < order.size(); ++k)
    middles[order[k]] = std::max(wanted[order[k]],
                                 k == 0 ? pad + nic_width / 2 : middles[order[k - 1]] + nic_pitch);
  // Those that were pushed to the right come back as far as there is room.
  for (std::size_t k = order.size(); k-- > 0;) {
    const double limit = k + 1 < order.size() ? middles[order[k + 1]] - nic_pitch
                         : gpus.empty()       ? middles[order[k]]
                                              : std::max(wanted[order[k]], gpus.back().middle());
    const double least = pad + nic_width / 2 + static_cast<double>(k) * nic_pitch;
    middles[order[k]] = std::max(least, std::min(middles[order[k]], limit));
  }
  return middles;
}

// Returns the height of the highest.
double add_stacks(const HostBox& host, double y, HostPlan& plan) {
  const std::vector<double> middles = stack_middles(host, plan.gpus);
  double height = 0;
  for (std::size_t i = 0; i < host.stacks.size(); ++i) {
    const NicStack& stack = host.stacks[i];
    StackPlan placed;
    placed.x = middles[i];
    const std::size_t rows = stack.nics.size() + (stack.more.empty() ? 0 : 1);
    for (std::size_t row = 0; row < rows; ++row)
      placed.nics.push_back({placed.x - nic_width / 2,
                             y + static_cast<double>(row) * (nic_height + 2), nic_width,
                             nic_height});
    height = std::max(height, placed.nics.back().bottom() - y);
    plan.width = std::max(plan.width, placed.x + nic_width / 2);
    plan.stacks.push_back(std::move(placed));
  }
  return height;
}

// Returns the y below the islands.
double add_islands(const HostBox& host, double y, HostPlan& plan) {
  std::size_t lines = 0;
  double fabric = 0;
  const bool has_frames = std::ranges::any_of(host.islands, &IslandBox::has_frame);
  for (const IslandBox& island : host.islands) {
    lines = std::max(lines, island_lines(island, island_width(island)).size());
    fabric = std::max(fabric, fabric_height(island));
  }
  const double text_height = has_frames ? static_cast<double>(lines + 1) * line_height + pad : 0;
  const double gpu_y = y + text_height + fabric;
  const double bottom = gpu_y + gpu_height + (has_frames ? pad : 0);
  double x = pad;
  plan.gpus.resize(host.gpus.size());
  for (const IslandBox& island : host.islands) {
    IslandPlan placed;
    const double width = island_width(island);
    placed.frame = {x, y, width, bottom - y};
    placed.text = {x + pad, y + pad / 2, width - 2 * pad, text_height - pad};
    placed.title = island_lines(island, width);
    const double row = static_cast<double>(island.gpus.size()) * gpu_pitch;
    double gpu_x = x + (width - row + gpu_pitch - gpu_width) / 2;
    for (const std::size_t gpu : island.gpus) {
      plan.gpus[gpu] = {gpu_x, gpu_y, gpu_width, gpu_height};
      gpu_x += gpu_pitch;
    }
    if (!island.stubs.empty() && island.has_frame)
      placed.bar = Bar{{x + pad, gpu_y - stub_height - bar_height, width - 2 * pad, bar_height},
                       switch_title(island, island.stubs)};
    plan.islands.push_back(std::move(placed));
    x += width + gap;
  }
  plan.width = std::max(plan.width, x - gap);
  return bottom;
}

}  // namespace

std::string switch_title(const IslandBox& island, const std::vector<Stub>& stubs) {
  std::string name = island.fabric == "nvlink" ? "NVSwitch" : "switch";
  for (const Stub& stub : stubs)
    if (stub.count != stubs.front().count) return name;
  return stubs.empty() || stubs.front().count == 1
             ? name
             : fmt::format("{}, {} links a GPU", name, stubs.front().count);
}

HostPlan plan_host(const HostBox& host) {
  HostPlan plan;
  plan.width =
      std::max(text_width(host.title, title_font) + 2 * pad, text_width(host.detail, detail_font)) +
      pad;
  plan.title = {pad, 6, 0, 2 * line_height};
  double y = plan.title.bottom() + 6;
  // Processors are told by the GPUs that hang on them, whose columns only add_islands() knows.
  add_islands(host, y, plan);
  plan.packages = package_bars(host, plan.gpus, y);
  if (!plan.packages.empty()) y += package_height + 6;
  plan.islands.clear();
  if (!host.islands.empty()) y = add_islands(host, y, plan);
  if (!host.stacks.empty()) {
    if (!host.gpus.empty()) y += nic_gap;
    y += add_stacks(host, y, plan);
  }
  plan.width += pad;
  plan.height = y + pad;
  plan.title.width = plan.width - 2 * pad;
  return plan;
}

GroupPlan plan_group(const Group& group) {
  GroupPlan plan;
  double x = group.around ? gap : 0, height = 0;
  const double top = group.around ? 2 * line_height + pad + bar_height + 22 : 0;
  for (const HostBox& host : group.hosts) {
    plan.hosts.push_back(plan_host(host));
    plan.hosts_at.push_back({x, top});
    x += plan.hosts.back().width + gap;
    height = std::max(height, plan.hosts.back().height);
  }
  for (std::size_t i = 0; i < group.summaries.size(); ++i) {
    plan.summaries.push_back({x, top, summary_width, height});
    x += summary_width + gap;
  }
  plan.width = group.around ? x : x - gap;
  plan.height = top + height + (group.around ? gap : 0);
  if (!group.around) return plan;
  IslandPlan around;
  around.frame = {0, 0, plan.width, plan.height};
  around.text = {gap, 6, plan.width - 2 * gap, 2 * line_height};
  around.title = wrapped(group.around->title, around.text.width, title_font);
  std::vector<Stub> stubs;
  for (const HostBox& host : group.hosts)
    for (const IslandBox& island : host.islands)
      stubs.insert(stubs.end(), island.stubs.begin(), island.stubs.end());
  if (!stubs.empty())
    around.bar = Bar{{gap, around.text.bottom() + pad / 2, plan.width - 2 * gap, bar_height},
                     switch_title(*group.around, stubs)};
  plan.around = std::move(around);
  return plan;
}

}  // namespace atoll_v1::atoll::drawing
