// How the parts of a picture look.
#pragma once

#include <string>
#include <string_view>

#include "inspect/pictures/dot_canvas.hpp"
#include "inspect/pictures/dot_layout.hpp"
#include "inspect/pictures/dot_scene.hpp"

namespace atoll_v1::atoll::drawing {

inline constexpr std::string_view quiet = "#5a6067";  // of what matters less

std::string_view colour_of(Mark mark, std::string_view otherwise);
Look island_look(const IslandBox& island);
Pen fabric_pen(const IslandBox& island, double width);

// The id of the switches of an island, for edges.
std::string switch_id(const IslandBox& island);

// What islands in a host and islands around hosts have in common.
void open_island(Canvas& canvas, const IslandBox& island, const IslandPlan& plan);
void paint_switch(Canvas& canvas, const IslandBox& island, const Bar& bar);

void paint_host(Canvas& canvas, const HostBox& host, const HostPlan& plan);

// A box with others behind it.
void paint_summary(Canvas& canvas, const Summary& summary, const Rect& place);
std::string summary_id(const Summary& summary);

}  // namespace atoll_v1::atoll::drawing
