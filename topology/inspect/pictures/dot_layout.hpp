// Where the parts of a picture go: places relative to their host or group, from its top left
// corner.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "inspect/pictures/dot_canvas.hpp"
#include "inspect/pictures/dot_scene.hpp"

namespace atoll_v1::atoll::drawing {

inline constexpr double title_font = 12;
inline constexpr double detail_font = 9.5;
inline constexpr double line_height = 14;
inline constexpr double gap = 14;         // between frames
inline constexpr double arc_height = 15;  // for each GPU that an arc goes over

struct Bar {
  Rect place;
  std::string text;
};

struct IslandPlan {
  Rect frame;
  Rect text;
  std::vector<std::string> title;
  std::optional<Bar> bar;  // the switches
};

struct StackPlan {
  std::vector<Rect> nics;  // and the line about those left out
  double x = 0;            // of the middle
};

struct HostPlan {
  double width = 0, height = 0;
  Rect title;
  std::vector<Bar> packages;
  std::vector<IslandPlan> islands;
  std::vector<Rect> gpus;
  std::vector<StackPlan> stacks;
};

HostPlan plan_host(const HostBox& host);

struct GroupPlan {
  double width = 0, height = 0;
  std::optional<IslandPlan> around;
  std::vector<HostPlan> hosts;
  std::vector<Point> hosts_at;
  std::vector<Rect> summaries;
};

GroupPlan plan_group(const Group& group);

// "NVSwitch, 18 links a GPU"
std::string switch_title(const IslandBox& island, const std::vector<Stub>& stubs);

}  // namespace atoll_v1::atoll::drawing
