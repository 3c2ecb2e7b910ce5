#include "inspect/pictures/svg_scene.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

namespace atoll_v1::atoll::drawing {
namespace {

constexpr std::string_view error_colour = "#c81e1e", warning_colour = "#d97706";
constexpr std::string_view dark = "#222222", frame_colour = "#9aa3ad", host_fill = "#f7f8fa";

Look with_mark(Look look, Severity mark) {
  if (mark == Severity::info) return look;
  look.fill = mark == Severity::warning ? "#fde3b8" : "#f8c9c6";
  look.border = {colour_of(mark, ""), 2};
  return look;
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
      canvas_.box(bar.place, {bar.text},
                  {.fill = "#e4e7eb", .border = {"#c9ced4", 1}, .text = quiet, .font = 9},
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
              .font = 8};
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

}  // namespace

std::string_view colour_of(Severity mark, std::string_view otherwise) {
  return mark == Severity::error     ? error_colour
         : mark == Severity::warning ? warning_colour
                                     : otherwise;
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

void paint_host(Canvas& canvas, const HostBox& host) { HostPainter(canvas, host).paint(); }

void paint_summary(Canvas& canvas, const Summary& summary) {
  const Rect& place = summary.place;
  const Look look{.fill = host_fill, .border = {frame_colour, 1}, .text = "#3c4248"};
  const std::string text = text_of(summary);
  const Rect at{place.x, place.y, place.width - 8, place.height - 8};
  for (const double shift : {8.0, 4.0})
    canvas.box({at.x + shift, at.y + shift, at.width, at.height}, {}, look, text);
  canvas.box(at, wrapped(summary.parts, at.width - 12, look.font), look, text);
}

std::string text_of(const Summary& summary) {
  return fmt::format("{}", fmt::join(summary.parts, " "));
}

}  // namespace atoll_v1::atoll::drawing
