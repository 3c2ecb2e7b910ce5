// Computes positions, from the inside out. The GPUs of a host form one row, island by island. Links
// are drawn above the GPUs, NICs below the GPUs.
#include "inspect/pictures/svg_scene.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace atoll_v1::atoll::drawing {
namespace {

constexpr double gpu_pitch = 66, gpu_width = 56, gpu_height = 34;
constexpr double least_nic_width = 62, most_nic_width = 400, nic_height = 26;
constexpr double nic_distance = 4;  // distance of two boxes of NICs
constexpr double bar_height = 18, stub_height = 16;

constexpr double package_height = 15;
constexpr double nic_gap = 28;
constexpr double least_island_width = 120;
constexpr double summary_width = 150, lone_summary_width = 330;

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

// Returns the bars that show processors: one bar for each sequence of neighbouring GPUs on the same
// processor, and no bar if all GPUs are on one processor.
std::vector<Bar> package_bars(const std::vector<GpuBox>& gpus, double y) {
  std::vector<Bar> bars;
  for (std::size_t i = 0; i < gpus.size(); ++i) {
    const Rect& at = gpus[i].place;
    const int package = gpus[i].package;
    if (package < 0) return {};
    if (i > 0 && package == gpus[i - 1].package)
      bars.back().place.width = at.right() - bars.back().place.x;
    else
      bars.push_back({{at.x, y, at.width, package_height}, fmt::format("CPU {}", package)});
  }
  return bars.size() > 1 ? bars : std::vector<Bar>();
}

// Places the bars of the processors of a host without GPUs one below the other. Returns the y
// coordinate below them.
double stack_packages(double y, HostBox& host) {
  double width = 0;
  for (const Bar& bar : host.packages)
    width = std::max(width, text_width(bar.text, package_font) + 2 * pad);
  for (Bar& bar : host.packages) {
    bar.place = {pad, y, width, package_height};
    y += package_height + 3;
  }
  host.width = std::max(host.width, pad + width);
  return host.packages.empty() ? y : y + 3;
}

double mean_x(const std::vector<std::size_t>& gpus, const std::vector<GpuBox>& boxes) {
  double sum = 0;
  for (const std::size_t gpu : gpus) sum += boxes[gpu].place.middle();
  return sum / static_cast<double>(gpus.size());
}

// Returns the x coordinate of the middle of each NIC stack. A stack is below its GPUs if possible;
// stacks that no GPU uses are on the right. Stacks do not overlap.
std::vector<double> stack_middles(const HostBox& host) {
  const std::vector<GpuBox>& gpus = host.gpus;
  std::vector<double> middles(host.stacks.size());
  const double nic_pitch = host.nic_width + nic_distance;
  double right = gpus.empty() ? pad - nic_pitch / 2 : gpus.back().place.middle();
  for (std::size_t i = 0; i < host.stacks.size(); ++i) {
    const NicStack& stack = host.stacks[i];
    const auto& below = stack.users.empty() ? stack.near : stack.users;
    middles[i] = below.empty() ? right += nic_pitch : mean_x(below, gpus);
  }
  std::vector<double*> order;
  for (double& middle : middles) order.push_back(&middle);
  std::ranges::stable_sort(order, {}, [](const double* middle) { return *middle; });
  double least = pad + host.nic_width / 2;
  for (double* const middle : order) {
    *middle = std::max(*middle, least);
    least = *middle + nic_pitch;
  }
  return middles;
}

// Computes the positions of all NIC stacks, and returns the height of the highest stack.
double place_stacks(double y, HostBox& host) {
  host.nic_width = least_nic_width;
  for (const NicStack& stack : host.stacks)
    for (const NicBox& nic : stack.nics)
      for (const std::string* text : {&nic.name, &nic.note})
        host.nic_width = std::max(host.nic_width, text_width(*text, nic_font) + nic_distance);
  host.nic_width = std::min(host.nic_width, most_nic_width);
  const std::vector<double> middles = stack_middles(host);
  double height = 0;
  for (std::size_t i = 0; i < host.stacks.size(); ++i) {
    NicStack& stack = host.stacks[i];
    auto next = [&, row = 0.0]() mutable {
      return stack.last = {middles[i] - host.nic_width / 2, y + row++ * (nic_height + 2),
                           host.nic_width, nic_height};
    };
    for (NicBox& nic : stack.nics) nic.place = next();
    if (!stack.more.empty()) next();
    height = std::max(height, stack.last.bottom() - y);
    host.width = std::max(host.width, middles[i] + host.nic_width / 2);
  }
  return height;
}

// Returns the label for the switches of an island: "NVSwitch, 18 links a GPU".
std::string switch_title(const IslandBox& island, const std::vector<Stub>& stubs) {
  std::string name = island.fabric == "nvlink" ? "NVSwitch" : "switch";
  for (const Stub& stub : stubs)
    if (stub.count != stubs.front().count) return name;
  return stubs.empty() || stubs.front().count == 1
             ? name
             : fmt::format("{}, {} links a GPU", name, stubs.front().count);
}

// Computes the positions of the islands, and returns the y coordinate below the islands.
double place_islands(double y, HostBox& host) {
  std::size_t lines = 0;
  double fabric = 0;
  const bool has_frames = std::ranges::any_of(host.islands, &IslandBox::has_frame);
  for (IslandBox& island : host.islands) {
    island.lines = wrapped(island.title, island_width(island) - 2 * pad, title_font);
    lines = std::max(lines, island.lines.size());
    fabric = std::max(fabric, fabric_height(island));
  }
  const double text_height = has_frames ? static_cast<double>(lines + 1) * line_height + pad : 0;
  const double gpu_y = y + text_height + fabric;
  const double bottom = gpu_y + gpu_height + (has_frames ? pad : 0);
  double x = pad;
  for (IslandBox& island : host.islands) {
    const double width = island_width(island);
    island.frame = {x, y, width, bottom - y};
    island.text = {x + pad, y + pad / 2, width - 2 * pad, text_height - pad};
    const double row = static_cast<double>(island.gpus.size()) * gpu_pitch;
    double gpu_x = x + (width - row + gpu_pitch - gpu_width) / 2;
    for (const std::size_t gpu : island.gpus) {
      host.gpus[gpu].place = {gpu_x, gpu_y, gpu_width, gpu_height};
      gpu_x += gpu_pitch;
    }
    if (!island.stubs.empty() && island.has_frame)
      island.bar = Bar{{x + pad, gpu_y - stub_height - bar_height, width - 2 * pad, bar_height},
                       switch_title(island, island.stubs)};
    x += width + gap;
  }
  host.width = std::max(host.width, x - gap);
  return bottom;
}

void place(HostBox& host) {
  host.width =
      std::max(text_width(host.title, title_font) + 2 * pad, text_width(host.detail, detail_font)) +
      pad;
  double y = title_top + 2 * line_height + 6;
  // The first call of place_islands() only finds the columns of the GPUs, which package_bars()
  // needs.
  place_islands(y, host);
  if (host.gpus.empty()) {
    y = stack_packages(y, host);
  } else {
    host.packages = package_bars(host.gpus, y);
    if (!host.packages.empty()) y += package_height + 6;
  }
  if (!host.islands.empty()) y = place_islands(y, host);
  if (!host.stacks.empty()) {
    if (!host.gpus.empty()) y += nic_gap;
    y += place_stacks(y, host);
  }
  host.width += pad;
  host.height = y + pad;
}

}  // namespace

void place(Group& group) {
  double x = group.around ? gap : 0, height = 0;
  const double top = group.around ? 2 * line_height + pad + bar_height + 22 : 0;
  for (HostBox& host : group.hosts) {
    place(host);
    host.at = {x, top};
    x += host.width + gap;
    height = std::max(height, host.height);
  }
  const bool is_lone = group.hosts.empty();
  if (is_lone) height = 4 * line_height;
  for (Summary& summary : group.summaries) {
    summary.place = {x, top, is_lone ? lone_summary_width : summary_width, height};
    x += summary.place.width + gap;
  }
  group.width = group.around ? x : x - gap;
  group.height = top + height + (group.around ? gap : 0);
  if (!group.around) return;
  IslandBox& around = *group.around;
  around.frame = {0, 0, group.width, group.height};
  around.text = {gap, 6, group.width - 2 * gap, 2 * line_height};
  around.lines = wrapped(around.title, around.text.width, title_font);
  std::vector<Stub> stubs;
  for (const HostBox& host : group.hosts)
    for (const IslandBox& island : host.islands)
      stubs.insert(stubs.end(), island.stubs.begin(), island.stubs.end());
  if (!stubs.empty())
    around.bar = Bar{{gap, around.text.bottom() + pad / 2, group.width - 2 * gap, bar_height},
                     switch_title(around, stubs)};
}

}  // namespace atoll_v1::atoll::drawing
