#include "inspect/pictures/dot_canvas.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace atoll_v1::atoll::drawing {
namespace {

constexpr double per_inch = 72;

// Returns the length in bytes of the UTF-8 sequence at the start of the text; 0 if the sequence is
// invalid.
std::size_t sequence_length(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const std::size_t length = byte(0) < 0x80             ? 1
                             : (byte(0) & 0xe0) == 0xc0 ? 2
                             : (byte(0) & 0xf0) == 0xe0 ? 3
                             : (byte(0) & 0xf8) == 0xf0 ? 4
                                                        : 0;
  if (length == 0 || length > text.size()) return 0;
  for (std::size_t i = 1; i < length; ++i)
    if ((byte(i) & 0xc0) != 0x80) return 0;
  return length;
}

// Escapes text for a quoted string of Graphviz, because names come from untrusted files. Quotes and
// backslashes are escaped. Bytes that Graphviz would interpret or reject become question marks.
std::string escaped(std::string_view text) {
  std::string result;
  while (!text.empty()) {
    const std::size_t length = sequence_length(text);
    const char first = text.front();
    if (length == 0 || (length == 1 && (static_cast<unsigned char>(first) < 0x20 || first == 0x7f)))
      result += first == '\n' || first == '\t' ? ' ' : '?';
    else if (first == '"' || first == '\\')
      result += {'\\', first};
    else if (first == '&')
      result += "&amp;";
    else
      result += text.substr(0, length);
    text.remove_prefix(std::max<std::size_t>(1, length));
  }
  return result;
}

std::string dot_quoted(std::string_view text) { return '"' + escaped(text) + '"'; }

std::string label(const std::vector<std::string>& lines, Align align) {
  const char end = align == Align::left ? 'l' : 'n';
  std::string text;
  for (const std::string& line : lines) {
    text += escaped(line);
    if (align != Align::middle || &line != &lines.back()) text += {'\\', end};
  }
  return '"' + text + '"';
}

std::string_view name(Dash dash) {
  constexpr std::array<std::string_view, 3> names{"solid", "dashed", "dotted"};
  return names[static_cast<std::size_t>(dash)];
}

std::string style(const Look& look) {
  return look.border.dash == Dash::solid ? "rounded,filled"
                                         : fmt::format("rounded,filled,{}", name(look.border.dash));
}

}  // namespace

double text_width(std::string_view text, double font) {
  const auto characters = std::ranges::count_if(
      text, [](char c) { return (static_cast<unsigned char>(c) & 0xc0) != 0x80; });
  return static_cast<double>(characters) * font * 0.6;
}

std::vector<std::string> wrapped(const std::vector<std::string>& parts, double width, double font) {
  std::vector<std::string> lines;
  for (const std::string& part : parts) {
    if (lines.empty() || text_width(lines.back() + ' ' + part, font) > width)
      lines.push_back(part);
    else
      lines.back() += ' ' + part;
  }
  return lines;
}

std::string shortened(std::string_view text, double width, double font) {
  if (text_width(text, font) <= width) return std::string(text);
  std::string part;
  while (!text.empty() && text_width(part, font) + text_width("...", font) < width) {
    const std::size_t length = std::max<std::size_t>(1, sequence_length(text));
    part += text.substr(0, length);
    text.remove_prefix(length);
  }
  return part + "...";
}

void Canvas::move_to(Point origin, double mirrored_height) {
  origin_ = origin;
  mirrored_height_ = mirrored_height;
}

Point Canvas::placed(Point point) const {
  const double y = mirrored_height_ > 0 ? mirrored_height_ - point.y : point.y;
  return {origin_.x + point.x, -(origin_.y + y)};
}

Rect Canvas::placed(const Rect& place) const {
  const Point center = placed(Point{place.middle(), place.y + place.height / 2});
  return {center.x - place.width / 2, center.y - place.height / 2, place.width, place.height};
}

void Canvas::open(std::string_view cluster, const Rect& place, const Look& look,
                  std::string_view tooltip) {
  const Rect at = placed(place);
  body_ += fmt::format(
      "subgraph {} {{\ngraph [bb=\"{:.1f},{:.1f},{:.1f},{:.1f}\", style=\"{}\", fillcolor=\"{}\", "
      "color=\"{}\", penwidth={:g}, tooltip={}];\n",
      dot_quoted(fmt::format("cluster {}", cluster)), at.x, at.y, at.right(), at.bottom(),
      style(look), look.fill, look.border.colour, look.border.width, dot_quoted(tooltip));
}

void Canvas::box(std::string_view id, const Rect& place, const std::vector<std::string>& lines,
                 const Look& look, std::string_view tooltip) {
  const Rect at = placed(place);
  body_ += fmt::format(
      "{} [pos=\"{:.1f},{:.1f}\", width={:.4f}, height={:.4f}, label={}, style=\"{}\", "
      "fillcolor=\"{}\", color=\"{}\", penwidth={:g}, fontcolor=\"{}\", fontsize={:g}, "
      "tooltip={}];\n",
      dot_quoted(id), at.middle(), at.y + at.height / 2, at.width / per_inch, at.height / per_inch,
      label(lines, Align::middle), style(look), look.fill, look.border.colour, look.border.width,
      look.text, look.font, dot_quoted(tooltip));
}

void Canvas::text(const Rect& place, const std::vector<std::string>& lines, const TextLook& look) {
  const Rect at = placed(place);
  body_ += fmt::format(
      "\"text {}\" [shape=none, style=\"\", pos=\"{:.1f},{:.1f}\", width={:.4f}, height={:.4f}, "
      "margin=0, label={}, fontcolor=\"{}\", fontsize={:g}{}];\n",
      texts_++, at.middle(), at.y + at.height / 2, at.width / per_inch, at.height / per_inch,
      label(lines, look.align), look.colour, look.font,
      look.weight == Weight::bold ? ", fontname=\"Helvetica-Bold\"" : "");
}

void Canvas::dot(std::string_view id, Point place, double size, std::string_view colour) {
  const Point at = placed(place);
  body_ += fmt::format(
      "{} [shape=point, pos=\"{:.1f},{:.1f}\", width={:.4f}, style=\"{}\", color=\"{}\", "
      "fillcolor=\"{}\", label=\"\"];\n",
      dot_quoted(id), at.x, at.y, std::max(size, 1.0) / per_inch, size > 0 ? "filled" : "invis",
      colour, colour);
}

void Canvas::curve(std::string_view a, std::string_view b, const std::vector<Point>& points,
                   const Pen& pen) {
  std::string way;
  for (const Point& point : points) {
    const Point at = placed(point);
    way += fmt::format("{}{:.1f},{:.1f}", way.empty() ? "" : " ", at.x, at.y);
  }
  body_ += fmt::format("{} -- {} [pos=\"{}\", color=\"{}\", penwidth={:g}, style={}];\n",
                       dot_quoted(a), dot_quoted(b), way, pen.colour, pen.width, name(pen.dash));
}

void Canvas::line(std::string_view a, std::string_view b, Point from, Point to, const Pen& pen) {
  const Point third{(to.x - from.x) / 3, (to.y - from.y) / 3};
  curve(a, b,
        {from,
         {from.x + third.x, from.y + third.y},
         {from.x + 2 * third.x, from.y + 2 * third.y},
         to},
        pen);
}

std::string Canvas::finish(std::string_view title, double width, double height) const {
  return fmt::format(
      "graph {} {{\n"
      "  graph [layout=nop2, bb=\"0,{:.1f},{:.1f},0\", bgcolor=white, outputorder=edgesfirst, "
      "pad=0.1, fontname=\"Helvetica\"];\n"
      "  node [shape=box, fixedsize=true, fontname=\"Helvetica\"];\n"
      "{}}}\n",
      dot_quoted(title), -height, width, body_);
}

}  // namespace atoll_v1::atoll::drawing
