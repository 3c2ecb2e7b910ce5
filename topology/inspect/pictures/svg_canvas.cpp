#include "inspect/pictures/svg_canvas.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace atoll_v1::atoll::drawing {
namespace {

constexpr double most_rounding = 12;  // maximum radius of the corners of a box, in points
// Distance between two lines of text, and from the middle of a line to its baseline, as multiples
// of the font's size.
constexpr double line_spacing = 1.15, baseline = 0.34;

// Returns the length in bytes of the character at the start of the text; 0 if the text does not
// begin with a character in UTF-8, or if SVG cannot hold the character.
std::size_t character_length(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  if (byte(0) < 0x80) return byte(0) < 0x20 || byte(0) == 0x7f ? 0 : 1;
  const std::size_t length = byte(0) < 0xc0 ? 0 : byte(0) < 0xe0 ? 2 : byte(0) < 0xf0 ? 3 : 4;
  if (length == 0 || byte(0) > 0xf7 || length > text.size()) return 0;
  char32_t code = byte(0) & (0x7fU >> length);
  for (std::size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return 0;
    code = code << 6 | (byte(i) & 0x3f);
  }
  constexpr std::array<char32_t, 5> least{0, 0, 0x80, 0x800, 0x10000};
  const bool is_surrogate = code >= 0xd800 && code <= 0xdfff;
  const bool is_character =
      code >= least[length] && code <= 0x10ffff && !is_surrogate && (code & 0xfffe) != 0xfffe;
  return is_character ? length : 0;
}

// Escapes a text, because names come from untrusted files. Bytes that SVG cannot hold become
// question marks.
std::string escaped(std::string_view text) {
  std::string result;
  while (!text.empty()) {
    const std::size_t length = character_length(text);
    const char first = text.front();
    if (length == 0)
      result += first == '\n' || first == '\t' ? ' ' : '?';
    else if (first == '&')
      result += "&amp;";
    else if (first == '<')
      result += "&lt;";
    else if (first == '>')
      result += "&gt;";
    else
      result += text.substr(0, length);
    text.remove_prefix(std::max<std::size_t>(1, length));
  }
  return result;
}

std::string stroke(const Pen& pen) {
  constexpr std::array<std::string_view, 3> dashes{"", " stroke-dasharray=\"5,2\"",
                                                   " stroke-dasharray=\"1,5\""};
  return fmt::format("stroke=\"{}\" stroke-width=\"{:g}\"{}", pen.colour, pen.width,
                     dashes[static_cast<std::size_t>(pen.dash)]);
}

std::string rectangle(const Rect& at, const Look& look) {
  return fmt::format(
      "<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\" rx=\"{:.1f}\" "
      "fill=\"{}\" {}/>",
      at.x, at.y, at.width, at.height, std::min(most_rounding, std::min(at.width, at.height) / 3),
      look.fill, stroke(look.border));
}

// Returns lines of text around the middle of the height of the place. `anchor` is "start" for text
// on the left of the place, or "middle".
std::string text_in(const Rect& at, const std::vector<std::string>& lines, const Look& look,
                    std::string_view anchor) {
  const double spacing = line_spacing * look.font;
  const double x = anchor == "middle" ? at.middle() : at.x;
  double y = at.y + at.height / 2 + baseline * look.font -
             spacing * (static_cast<double>(lines.size()) - 1) / 2;
  std::string text;
  for (const std::string& line : lines) {
    text += fmt::format(
        "<text x=\"{:.1f}\" y=\"{:.1f}\" font-size=\"{:g}\" fill=\"{}\" "
        "text-anchor=\"{}\"{}>{}</text>",
        x, y, look.font, look.text, anchor, look.is_bold ? " font-weight=\"bold\"" : "",
        escaped(line));
    y += spacing;
  }
  return text;
}

std::string titled(std::string_view tooltip) {
  return fmt::format("<title>{}</title>", escaped(tooltip));
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

std::string_view fitting(std::string_view text, double width, double font) {
  std::size_t end = 0;
  while (end < text.size()) {
    const std::size_t next = end + std::max<std::size_t>(1, character_length(text.substr(end)));
    if (end > 0 && text_width(text.substr(0, next), font) > width) break;
    end = next;
  }
  return text.substr(0, end);
}

std::string shortened(std::string_view text, double width, double font) {
  if (text_width(text, font) <= width) return std::string(text);
  return std::string(fitting(text, width - text_width("...", font), font)) + "...";
}

Point Canvas::placed(Point point) const { return {origin_.x + point.x, origin_.y + point.y}; }

Rect Canvas::placed(const Rect& place) const {
  return {origin_.x + place.x, origin_.y + place.y, place.width, place.height};
}

void Canvas::frame(const Rect& place, const Look& look, std::string_view tooltip) {
  frames_ +=
      fmt::format("<g class=\"frame\">{}{}</g>\n", titled(tooltip), rectangle(placed(place), look));
}

void Canvas::box(const Rect& place, const std::vector<std::string>& lines, const Look& look,
                 std::string_view tooltip) {
  const Rect at = placed(place);
  boxes_ += fmt::format("<g class=\"box\">{}{}{}</g>\n", titled(tooltip), rectangle(at, look),
                        text_in(at, lines, look, "middle"));
}

void Canvas::text(const Rect& place, const std::vector<std::string>& lines, const Look& look) {
  boxes_ += text_in(placed(place), lines, look, "start") + '\n';
}

void Canvas::dot(Point place, double size, std::string_view colour) {
  const Point at = placed(place);
  boxes_ += fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"{:g}\" fill=\"{}\"/>\n", at.x,
                        at.y, size / 2, colour);
}

void Canvas::line(const std::vector<Point>& points, const Pen& pen, std::string_view tooltip) {
  std::string way;
  for (const Point& point : points) {
    const Point at = placed(point);
    const bool begins_curve = way.find(' ') == way.npos && points.size() == 4;
    way += fmt::format("{}{:.1f},{:.1f}",
                       way.empty()    ? "M"
                       : begins_curve ? " C"
                                      : " ",
                       at.x, at.y);
  }
  lines_ += fmt::format("<path d=\"{}\" {}>{}</path>\n", way, stroke(pen), titled(tooltip));
}

std::string Canvas::finish(std::string_view title, double width, double height) const {
  return fmt::format(
      "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n"
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0:.1f}pt\" height=\"{1:.1f}pt\" "
      "viewBox=\"0 0 {0:.1f} {1:.1f}\" font-family=\"Helvetica, Arial, sans-serif\">\n"
      "{2}\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
      "{3}<g fill=\"none\">\n{4}</g>\n{5}</svg>\n",
      width, height, titled(title), frames_, lines_, boxes_);
}

}  // namespace atoll_v1::atoll::drawing
