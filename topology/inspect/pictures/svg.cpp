// Draws a scene: hosts, islands that span hosts and summaries, one below the other. A *track* is
// the line for the rails that join the same NICs (svg_scene.hpp). Below each of the boxes, a
// *lane*, a horizontal part of the track, joins the NICs; on the right, a vertical line joins the
// lanes of a track.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <map>

#include "inspect/pictures/svg_scene.hpp"
#include "parse_number.hpp"

namespace atoll_v1::atoll {
namespace drawing {
namespace {

constexpr double margin = 16;
constexpr double heading_font = 13, problem_font = 10;
constexpr double track_pitch = 13;
constexpr double group_gap = 24;

// Colours of the tracks. Colour-blind readers can distinguish them, and none looks like the colour
// of an error or a warning.
constexpr std::array<std::string_view, 8> track_colours{"#0b62a4", "#7a3fa0", "#00807a", "#5b7f00",
                                                        "#a8437b", "#6b5b3e", "#3f51b5", "#2e8b57"};
constexpr std::string_view error_colour = "#c81e1e", warning_colour = "#d97706";
constexpr std::string_view dark = "#222222", frame_colour = "#9aa3ad", host_fill = "#f7f8fa";

constexpr std::string_view quiet = "#5a6067";  // colour of secondary text

std::string_view colour_of(Severity mark, std::string_view otherwise) {
  return mark == Severity::error     ? error_colour
         : mark == Severity::warning ? warning_colour
                                     : otherwise;
}

Look with_mark(Look look, Severity mark) {
  if (mark == Severity::info) return look;
  look.fill = mark == Severity::warning ? "#fde3b8" : "#f8c9c6";
  look.border = {colour_of(mark, ""), 2};
  return look;
}

Look island_look(const IslandBox& island) {
  if (island.state == IslandState::none) return {.fill = "white", .border = {"#b5bcc4", 1}};
  if (island.state == IslandState::unknown)
    return {.fill = "#f1f2f4", .border = {"#8a929b", 1.5, Dash::dashed}};
  return island.fabric == "xgmi" ? Look{.fill = "#dff1f5", .border = {"#2b8ca3", 1.5}}
                                 : Look{.fill = "#e7f5d8", .border = {"#76b900", 1.5}};
}

Pen fabric_pen(const IslandBox& island, double width) {
  return {island.fabric == "xgmi" ? "#2b8ca3" : "#5a8f00", width};
}

// Draws the frame of an island, either inside a host or around several hosts.
void paint_frame(Canvas& canvas, const IslandBox& island) {
  canvas.frame(island.frame, island_look(island), fmt::format("{}", fmt::join(island.title, " ")));
  const double lines = static_cast<double>(island.lines.size());
  Rect place = island.text;
  place.height = lines * line_height;
  canvas.text(place, island.lines, {.text = dark, .font = title_font, .is_bold = true});
  place.y += place.height;
  place.height = line_height;
  canvas.text(place, {shortened(island.detail, place.width, detail_font)},
              {.text = quiet, .font = detail_font});
}

void paint_switch(Canvas& canvas, const IslandBox& island) {
  const Bar& bar = *island.bar;
  const Pen pen = fabric_pen(island, 1);
  canvas.box(bar.place, {bar.text}, {.fill = pen.colour, .border = pen, .text = "white"}, bar.text);
}

class HostPainter {
 public:
  HostPainter(Canvas& canvas, const HostBox& host) : canvas_(canvas), host_(host) {}

  void paint() {
    Look look{.fill = host_fill, .border = {frame_colour, 1}};
    if (host_.mark != Severity::info) look.border = {colour_of(host_.mark, ""), 2};
    canvas_.frame({0, 0, host_.width, host_.height}, look, host_.id);
    paint_title();
    for (const Bar& bar : host_.packages)
      canvas_.box(
          bar.place, {bar.text},
          {.fill = "#e4e7eb", .border = {"#c9ced4", 1}, .text = quiet, .font = package_font},
          bar.text);
    for (const IslandBox& island : host_.islands) paint_island(island);
    for (const NicStack& stack : host_.stacks) paint_stack(stack);
  }

 private:
  void paint_title() {
    Rect place{pad, title_top, host_.width - 2 * pad, line_height};
    canvas_.text(place, {host_.title},
                 {.text = colour_of(host_.mark, dark), .font = title_font, .is_bold = true});
    place.y += place.height;
    canvas_.text(place, {host_.detail}, {.text = quiet, .font = detail_font});
  }

  void paint_island(const IslandBox& island) {
    if (island.has_frame) paint_frame(canvas_, island);
    if (island.bar) paint_switch(canvas_, island);
    for (const std::size_t number : island.gpus) {
      const GpuBox& gpu = host_.gpus[number];
      canvas_.box(gpu.place, gpu.lines, with_mark({.border = {"#3c4248", 1}}, gpu.mark),
                  gpu.tooltip);
    }
    if (island.bar) paint_stubs(island, *island.bar);
    if (island.has_frame)
      for (const Arc& arc : island.arcs) paint_arc(island, arc);
  }

  void paint_stubs(const IslandBox& island, const Bar& bar) {
    int most = 0;
    for (const Stub& stub : island.stubs) most = std::max(most, stub.count);
    for (const Stub& stub : island.stubs) {
      const Rect& gpu = host_.gpus[stub.gpu].place;
      Pen pen = fabric_pen(island, 3);
      if (stub.count < most) {
        pen = {warning_colour, 1.5};
        canvas_.text({gpu.middle() + 3, bar.place.bottom() + 1, 40, gpu.y - bar.place.bottom() - 2},
                     {std::to_string(stub.count)}, {.text = warning_colour, .font = 9});
      }
      canvas_.line({{gpu.middle(), bar.place.bottom()}, {gpu.middle(), gpu.y}}, pen,
                   fmt::format("switch - {}", host_.gpus[stub.gpu].id));
    }
  }

  // Draws an arc between two linked GPUs, with the number of links at the top of the arc. The
  // number is omitted when all pairs in the island have one link.
  void paint_arc(const IslandBox& island, const Arc& arc) {
    const auto [least, most] = std::ranges::minmax(island.arcs, {}, &Arc::count);
    const Rect &a = host_.gpus[arc.a].place, &b = host_.gpus[arc.b].place;
    const double height = arc_height * static_cast<double>(arc.b - arc.a) + 4;
    const Point from{a.middle() + 8, a.y}, to{b.middle() - 8, b.y};
    const double weight = std::min(4.0, static_cast<double>(arc.count) / least.count);
    Pen pen = fabric_pen(island, 1.3 * weight);
    pen.colour = colour_of(arc.mark, pen.colour);
    // A cubic curve reaches three quarters of the height of its control points.
    const double control = a.y - height / 0.75;
    const std::string ends = fmt::format("{} - {}", host_.gpus[arc.a].id, host_.gpus[arc.b].id);
    canvas_.line({from, {from.x + 6, control}, {to.x - 6, control}, to}, pen, ends);
    if (most.count == 1) return;
    const std::string count = std::to_string(arc.count);
    const std::string_view fill = island_look(island).fill;
    const double width = text_width(count, 8.5) + 4;
    canvas_.box({(from.x + to.x - width) / 2, a.y - height - 5.5, width, 11}, {count},
                {.fill = fill, .border = {fill, 0}, .text = pen.colour, .font = 8.5},
                fmt::format("{}: {} links", ends, count));
  }

  void paint_stack(const NicStack& stack) {
    const bool is_used = !stack.users.empty() || host_.gpus.empty();
    for (const NicBox& nic : stack.nics) paint_nic(nic, is_used);
    if (!stack.more.empty())
      canvas_.box(stack.last, {stack.more},
                  {.fill = "none", .border = {"none", 0}, .text = quiet, .font = 8.5}, stack.more);
    for (const std::size_t gpu : stack.users)
      join(host_.gpus[gpu], stack.nics.front(), {"#555555", 1.2});
    for (const std::size_t gpu : stack.near)
      join(host_.gpus[gpu], stack.nics.front(), {error_colour, 1, Dash::dotted});
  }

  void paint_nic(const NicBox& nic, bool is_used) {
    Look look{.fill = is_used ? "#e3edfa" : "#f1f2f4",
              .border = {is_used ? "#4a78b5" : "#b5bcc4", 1},
              .text = is_used ? dark : quiet,
              .font = nic_font};
    look = with_mark(look, nic.is_active ? nic.mark : Severity::error);
    if (!nic.is_active) {
      look.border.dash = Dash::dashed;
      look.text = error_colour;
    }
    std::vector<std::string> lines{shortened(nic.name, nic.place.width, look.font)};
    if (!nic.note.empty()) lines.push_back(nic.note);
    canvas_.box(nic.place, lines, look, nic.tooltip);
  }

  void join(const GpuBox& gpu, const NicBox& nic, const Pen& pen) {
    const double left = gpu.place.middle(), right = nic.place.middle();
    const double middle = (gpu.place.bottom() + nic.place.y) / 2;
    canvas_.line(
        {{left, gpu.place.bottom()}, {left, middle}, {right, middle}, {right, nic.place.y}}, pen,
        fmt::format("{} - {}", gpu.id, nic.id));
  }

  Canvas& canvas_;
  const HostBox& host_;
};

std::string text_of(const Summary& summary) {
  return fmt::format("{}", fmt::join(summary.parts, " "));
}

// Draws a summary of several equal hosts: a box with two more boxes behind it.
void paint_summary(Canvas& canvas, const Summary& summary) {
  const Rect& place = summary.place;
  const Look look{.fill = host_fill, .border = {frame_colour, 1}, .text = "#3c4248"};
  const std::string text = text_of(summary);
  const Rect at{place.x, place.y, place.width - 8, place.height - 8};
  for (const double shift : {8.0, 4.0})
    canvas.box({at.x + shift, at.y + shift, at.width, at.height}, {}, look, text);
  canvas.box(at, wrapped(summary.parts, at.width - 12, look.font), look, text);
}

class Painter {
 public:
  explicit Painter(Scene scene) : scene_(std::move(scene)) {}

  std::string paint() {
    measure();
    canvas_.text({margin, margin, width_ - 2 * margin, 18}, {scene_.heading},
                 {.font = heading_font, .is_bold = true});
    Point at{left_, margin + 26};
    for (const Group& group : scene_.groups) {
      paint_group(group, at);
      at.y = paint_lanes(group, at) + group_gap;
    }
    for (const auto& [track, ends] : lanes_)
      canvas_.line({{track_x(track), ends.first}, {track_x(track), ends.second}}, pen_of(track),
                   scene_.tracks[track].title);
    return canvas_.finish(scene_.heading, width_, paint_problems(at.y) + margin);
  }

 private:
  void measure() {
    for (const Track& track : scene_.tracks)
      left_ = std::max(left_, 2 * margin + text_width(track.title, detail_font));
    double width = text_width(scene_.heading, heading_font);
    for (Group& group : scene_.groups) {
      place(group);
      groups_width_ = std::max(groups_width_, group.width);
    }
    width =
        std::max(width, groups_width_ + track_pitch * static_cast<double>(scene_.tracks.size()));
    width_ = left_ + width + margin;
  }

  void paint_group(const Group& group, Point at) {
    canvas_.move_to(at);
    const bool has_bar = group.around && group.around->bar;
    if (group.around) paint_frame(canvas_, *group.around);
    if (has_bar) paint_switch(canvas_, *group.around);
    for (const HostBox& host : group.hosts) {
      canvas_.move_to({at.x + host.at.x, at.y + host.at.y});
      HostPainter(canvas_, host).paint();
    }
    canvas_.move_to(at);
    for (const Summary& summary : group.summaries) paint_summary(canvas_, summary);
    if (has_bar) paint_buses(group);
    canvas_.move_to({});
  }

  // Draws the lines from the switches of an island to the hosts of the island.
  void paint_buses(const Group& group) {
    const auto paint_bus = [&](double x, double y, std::string_view to) {
      canvas_.line({{x, group.around->bar->place.bottom()}, {x, y}}, fabric_pen(*group.around, 5),
                   fmt::format("switch - {}", to));
    };
    for (const HostBox& host : group.hosts)
      paint_bus(host.at.x + host.width / 2, host.at.y, host.id);
    for (const Summary& summary : group.summaries)
      paint_bus(summary.place.middle(), summary.place.y, text_of(summary));
  }

  double track_x(std::size_t track) const {
    return left_ + groups_width_ + track_pitch * static_cast<double>(track + 1);
  }

  Pen pen_of(std::size_t track) const {
    return {track_colours[track % track_colours.size()], 2.2,
            scene_.tracks[track].is_assumed ? Dash::dashed : Dash::solid};
  }

  // Draws the lanes below a group with its upper left corner at `at`, and the lines from its NICs
  // to the lanes. Returns the y coordinate below them.
  double paint_lanes(const Group& group, Point at) {
    // For each track, the ids of its NICs and the points where their lines begin.
    std::map<std::size_t, std::vector<std::pair<std::string, Point>>> nics;
    for (const HostBox& host : group.hosts)
      for (const NicStack& stack : host.stacks) {
        Point from{at.x + host.at.x + stack.last.middle() -
                       5 * (static_cast<double>(stack.tracks.size()) - 1),
                   at.y + host.at.y + stack.last.bottom()};
        for (const std::size_t track : stack.tracks) {
          nics[track].emplace_back(stack.nics.back().id, from);
          from.x += 10;
        }
      }
    double y = at.y + group.height;
    for (const auto& [track, ends] : nics) {
      y += track_pitch;
      lanes_.try_emplace(track, y, y).first->second.second = y;
      const std::string& title = scene_.tracks[track].title;
      const Pen pen = pen_of(track);
      canvas_.text({margin, y - 6, left_ - 2 * margin, 12}, {title},
                   {.text = pen.colour, .font = detail_font});
      canvas_.line({{left_ - margin / 2, y}, {track_x(track), y}}, pen, title);
      canvas_.dot({track_x(track), y}, 6, pen.colour);
      for (const auto& [nic, from] : ends) {
        canvas_.dot({from.x, y}, 6, pen.colour);
        canvas_.line({from, {from.x, y}}, {pen.colour, 1.4}, fmt::format("{} - {}", nic, title));
      }
    }
    return y;
  }

  // Lists the findings below the picture, in lines of its width. Returns the y coordinate below.
  double paint_problems(double y) {
    const double width = width_ - 2 * margin;
    for (const Problem& problem : scene_.problems) {
      std::vector<std::string> words;
      for (std::string_view word : words_of(problem.text))
        for (; !word.empty(); word.remove_prefix(words.back().size()))
          words.emplace_back(fitting(word, width, problem_font));
      const std::vector<std::string> lines = wrapped(words, width, problem_font);
      const double height = static_cast<double>(lines.size()) * line_height;
      canvas_.text({margin, y, width, height}, lines,
                   {.text = colour_of(problem.mark, quiet), .font = problem_font});
      y += height;
    }
    return y;
  }

  Scene scene_;
  Canvas canvas_;
  std::map<std::size_t, std::pair<double, double>> lanes_;  // y of each track's first and last lane
  double left_ = margin, groups_width_ = 0, width_ = 0;
};

}  // namespace
}  // namespace drawing

std::string to_svg(const Inspection& inspection) {
  return drawing::Painter(drawing::make_scene(inspection)).paint();
}

}  // namespace atoll_v1::atoll
