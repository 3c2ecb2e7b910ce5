// Computes the positions of the boxes of a scene (svg_layout.cpp) and draws them (svg_painter.cpp).
#pragma once

#include "inspect/pictures/svg_scene.hpp"

namespace atoll_v1::atoll::drawing {

inline constexpr std::string_view quiet = "#5a6067";  // colour of secondary text
inline constexpr double title_font = 12;
inline constexpr double detail_font = 9.5;
inline constexpr double line_height = 14;
inline constexpr double pad = 10;         // distance between a frame and its content in points
inline constexpr double title_top = 6;    // distance between the frame of a host and its title
inline constexpr double gap = 14;         // distance between frames in points
inline constexpr double arc_height = 15;  // height in points of an arc, for each GPU that it spans

// Computes the positions of everything in a group: one host, or an island that spans hosts. The
// positions of parts of a host are relative to the upper left corner of the host. The positions of
// hosts, summaries and the surrounding island are relative to the group.
void place(Group& group);

std::string_view colour_of(Severity mark, std::string_view otherwise);
Look island_look(const IslandBox& island);
Pen fabric_pen(const IslandBox& island, double width);

// Draws the frame of an island, either inside a host or around several hosts.
void paint_frame(Canvas& canvas, const IslandBox& island);
void paint_switch(Canvas& canvas, const IslandBox& island);

void paint_host(Canvas& canvas, const HostBox& host);

// Draws a summary of several equal hosts: a box with two more boxes behind it.
void paint_summary(Canvas& canvas, const Summary& summary);
std::string text_of(const Summary& summary);

}  // namespace atoll_v1::atoll::drawing
