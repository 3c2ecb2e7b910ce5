#include "inspect/pictures/dot_painter.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

namespace atoll_v1::atoll::drawing {
namespace {

constexpr std::string_view error_colour = "#c81e1e", warning_colour = "#d97706";
constexpr std::string_view dark = "#222222", frame_colour = "#9aa3ad", host_fill = "#f7f8fa";

Look with_mark(Look look, Mark mark) {
  switch (mark) {
    case Mark::none:
      break;
    case Mark::warning:
      look.fill = "#fde3b8";
      look.border = {warning_colour, 2};
      break;
    case Mark::error:
      look.fill = "#f8c9c6";
      look.border = {error_colour, 2};
      break;
  }
  return look;
}

class HostPainter {
 public:
  HostPainter(Canvas& canvas, const HostBox& host, const HostPlan& plan)
      : canvas_(canvas), host_(host), plan_(plan) {}

  void paint() {
    Look look{.fill = host_fill, .border = {frame_colour, 1}};
    if (host_.mark != Mark::none) look.border = {colour_of(host_.mark, ""), 2};
    canvas_.open(fmt::format("host {}", host_.id), {0, 0, plan_.width, plan_.height}, look,
                 host_.id);
    paint_title();
    for (const Bar& bar : plan_.packages)
      canvas_.box(
          fmt::format("{} {} {:.0f}", host_.id, bar.text, bar.place.x), bar.place, {bar.text},
          {.fill = "#e4e7eb", .border = {"#c9ced4", 1}, .text = quiet, .font = 9}, bar.text);
    for (std::size_t i = 0; i < host_.islands.size(); ++i)
      paint_island(host_.islands[i], plan_.islands[i]);
    for (std::size_t i = 0; i < host_.stacks.size(); ++i)
      paint_stack(host_.stacks[i], plan_.stacks[i]);
    canvas_.close();
  }

 private:
  void paint_title() {
    Rect place = plan_.title;
    place.height /= 2;
    canvas_.text(
        place, {host_.title},
        {.font = title_font, .weight = Weight::bold, .colour = colour_of(host_.mark, dark)});
    place.y += place.height;
    canvas_.text(place, {host_.detail}, {.font = detail_font, .colour = quiet});
  }

  void paint_island(const IslandBox& island, const IslandPlan& plan) {
    if (island.has_frame) open_island(canvas_, island, plan);
    if (plan.bar) paint_switch(canvas_, island, *plan.bar);
    for (const std::size_t gpu : island.gpus)
      canvas_.box(host_.gpus[gpu].id, plan_.gpus[gpu], host_.gpus[gpu].lines,
                  with_mark({.border = {"#3c4248", 1}}, host_.gpus[gpu].mark),
                  host_.gpus[gpu].tooltip);
    if (island.has_frame) canvas_.close();
    if (plan.bar) paint_stubs(island, *plan.bar);
    if (island.has_frame)
      for (const Arc& arc : island.arcs) paint_arc(island, arc);
  }

  void paint_stubs(const IslandBox& island, const Bar& bar) {
    int most = 0;
    for (const Stub& stub : island.stubs) most = std::max(most, stub.count);
    for (const Stub& stub : island.stubs) {
      const Rect& gpu = plan_.gpus[stub.gpu];
      Pen pen = fabric_pen(island, 3);
      if (stub.count < most) {
        pen = {warning_colour, 1.5};
        canvas_.text({gpu.middle() + 3, bar.place.bottom() + 1, 40, gpu.y - bar.place.bottom() - 2},
                     {std::to_string(stub.count)}, {.font = 9, .colour = warning_colour});
      }
      canvas_.line(switch_id(island), host_.gpus[stub.gpu].id,
                   {{gpu.middle(), bar.place.bottom()}, {gpu.middle(), gpu.y}}, pen);
    }
  }

  // From top to top over the GPUs between; the count stands at the highest point, and a line
  // without one is one link.
  void paint_arc(const IslandBox& island, const Arc& arc) {
    const auto [least, most] = std::ranges::minmax(island.arcs, {}, &Arc::count);
    const Rect &a = plan_.gpus[arc.a], &b = plan_.gpus[arc.b];
    const double height = arc_height * static_cast<double>(arc.b - arc.a) + 4;
    const Point from{a.middle() + 8, a.y}, to{b.middle() - 8, b.y};
    const double weight = std::min(4.0, static_cast<double>(arc.count) / least.count);
    Pen pen = fabric_pen(island, 1.3 * weight);
    pen.colour = colour_of(arc.mark, pen.colour);
    // A cubic curve reaches three quarters of the height of its control points.
    const double control = a.y - height / 0.75;
    canvas_.curve(host_.gpus[arc.a].id, host_.gpus[arc.b].id,
                  {from, {from.x + 6, control}, {to.x - 6, control}, to}, pen);
    if (most.count == 1) return;
    const std::string count = std::to_string(arc.count);
    const std::string_view fill = island_look(island).fill;
    const double width = text_width(count, 8.5) + 4;
    canvas_.box(fmt::format("{} - {}", host_.gpus[arc.a].id, host_.gpus[arc.b].id),
                {(from.x + to.x - width) / 2, a.y - height - 5.5, width, 11}, {count},
                {.fill = fill, .border = {fill, 0}, .text = pen.colour, .font = 8.5},
                fmt::format("{} links", count));
  }

  void paint_stack(const NicStack& stack, const StackPlan& plan) {
    const bool is_used = !stack.users.empty() || host_.gpus.empty();
    for (std::size_t i = 0; i < stack.nics.size(); ++i)
      paint_nic(stack.nics[i], plan.nics[i], is_used);
    if (!stack.more.empty())
      canvas_.text(plan.nics.back(), {stack.more},
                   {.font = 8.5, .align = Align::middle, .colour = quiet});
    for (const std::size_t gpu : stack.users)
      join(gpu, stack.nics.front(), plan.nics.front(), {"#555555", 1.2});
    for (const std::size_t gpu : stack.near)
      join(gpu, stack.nics.front(), plan.nics.front(), {error_colour, 1, Dash::dotted});
  }

  void paint_nic(const NicBox& nic, const Rect& place, bool is_used) {
    Look look{.fill = is_used ? "#e3edfa" : "#f1f2f4",
              .border = {is_used ? "#4a78b5" : "#b5bcc4", 1},
              .text = is_used ? dark : quiet,
              .font = 8};
    look = with_mark(look, nic.is_active ? nic.mark : Mark::error);
    if (!nic.is_active) {
      look.border.dash = Dash::dashed;
      look.text = error_colour;
    }
    std::vector<std::string> lines{shortened(nic.name, place.width, look.font)};
    if (!nic.note.empty()) lines.push_back(nic.note);
    canvas_.box(nic.id, place, lines, look, nic.tooltip);
  }

  void join(std::size_t gpu, const NicBox& nic, const Rect& top, const Pen& pen) {
    const Rect& place = plan_.gpus[gpu];
    const double middle = (place.bottom() + top.y) / 2;
    canvas_.curve(host_.gpus[gpu].id, nic.id,
                  {{place.middle(), place.bottom()},
                   {place.middle(), middle},
                   {top.middle(), middle},
                   {top.middle(), top.y}},
                  pen);
  }

  Canvas& canvas_;
  const HostBox& host_;
  const HostPlan& plan_;
};

}  // namespace

std::string_view colour_of(Mark mark, std::string_view otherwise) {
  switch (mark) {
    case Mark::none:
      return otherwise;
    case Mark::warning:
      return warning_colour;
    case Mark::error:
      return error_colour;
  }
  return otherwise;
}

Look island_look(const IslandBox& island) {
  switch (island.state) {
    case IslandState::known:
      return island.fabric == "xgmi" ? Look{.fill = "#dff1f5", .border = {"#2b8ca3", 1.5}}
                                     : Look{.fill = "#e7f5d8", .border = {"#76b900", 1.5}};
    case IslandState::none:
      return {.fill = "white", .border = {"#b5bcc4", 1}};
    case IslandState::unknown:
      return {.fill = "#f1f2f4", .border = {"#8a929b", 1.5, Dash::dashed}};
  }
  return {};
}

Pen fabric_pen(const IslandBox& island, double width) {
  return {island.fabric == "xgmi" ? "#2b8ca3" : "#5a8f00", width};
}

std::string switch_id(const IslandBox& island) { return fmt::format("switch of {}", island.id); }

void open_island(Canvas& canvas, const IslandBox& island, const IslandPlan& plan) {
  canvas.open(fmt::format("island {}", island.id), plan.frame, island_look(island),
              fmt::format("{}", fmt::join(island.title, " ")));
  const double lines = static_cast<double>(plan.title.size());
  Rect place{plan.text.x, plan.text.y, plan.text.width, lines * line_height};
  canvas.text(place, plan.title, {.font = title_font, .weight = Weight::bold, .colour = dark});
  place.y += place.height;
  place.height = line_height;
  canvas.text(place, {shortened(island.detail, place.width, detail_font)},
              {.font = detail_font, .colour = quiet});
}

void paint_switch(Canvas& canvas, const IslandBox& island, const Bar& bar) {
  const Pen pen = fabric_pen(island, 1);
  canvas.box(switch_id(island), bar.place, {bar.text},
             {.fill = pen.colour, .border = pen, .text = "white", .font = 10}, bar.text);
}

void paint_host(Canvas& canvas, const HostBox& host, const HostPlan& plan) {
  HostPainter(canvas, host, plan).paint();
}

void paint_summary(Canvas& canvas, const Summary& summary, const Rect& place) {
  const Look look{.fill = host_fill, .border = {frame_colour, 1}, .text = "#3c4248", .font = 10};
  const std::string id = summary_id(summary);
  Rect at{place.x, place.y, place.width - 8, place.height - 8};
  for (const double shift : {8.0, 4.0}) {
    const Rect behind{at.x + shift, at.y + shift, at.width, at.height};
    canvas.box(fmt::format("{} {}", id, shift), behind, {}, look, id);
  }
  canvas.box(id, at, wrapped(summary.parts, at.width - 12, look.font), look, id);
}

std::string summary_id(const Summary& summary) {
  return fmt::format("{}", fmt::join(summary.parts, " "));
}

}  // namespace atoll_v1::atoll::drawing
