// Writes a drawing as SVG: frames at the back, then lines, then boxes and texts. Positions are in
// points (1/72 inch) from the upper left corner.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace atoll_v1::atoll::drawing {

struct Point {
  double x = 0, y = 0;
};

struct Rect {
  double x = 0, y = 0, width = 0, height = 0;
  double right() const { return x + width; }
  double bottom() const { return y + height; }
  double middle() const { return x + width / 2; }
};

enum class Dash {
  solid,
  dashed,
  dotted
};

struct Pen {
  std::string_view colour = "#555555";
  double width = 1;
  Dash dash = Dash::solid;
};

// The look of a box and of the text in it. Colours are constants of the program, never texts from
// files, so they are written without escaping.
struct Look {
  std::string_view fill = "white";
  Pen border = {};
  std::string_view text = "#222222";
  double font = 10;
  bool is_bold = false;
};

// Estimates the width of a text in common sans-serif fonts, in points. The estimate is rather too
// large than too small.
double text_width(std::string_view text, double font);

// Joins `parts` with spaces into lines of at most `width` points, without splitting a part.
std::vector<std::string> wrapped(const std::vector<std::string>& parts, double width, double font);

// Returns the first characters of a text, at least one, as far as `width` points hold them.
std::string_view fitting(std::string_view text, double width, double font);

// Shortens a text to `width` points. A text that was shortened ends in dots.
std::string shortened(std::string_view text, double width, double font);

// Collects the elements of a drawing. Viewers show the tooltip of an element under the mouse.
class Canvas {
 public:
  // Sets the origin for all positions until the next call of move_to().
  void move_to(Point origin) { origin_ = origin; }

  void frame(const Rect& place, const Look& look, std::string_view tooltip);
  // Draws a box with centred lines of text.
  void box(const Rect& place, const std::vector<std::string>& lines, const Look& look,
           std::string_view tooltip);
  // Draws lines of text, aligned on the left. The fill and border of the look do not matter.
  void text(const Rect& place, const std::vector<std::string>& lines, const Look& look);
  void dot(Point place, double size, std::string_view colour);
  // Draws a straight line between two points, or a cubic Bezier curve with two control points
  // between them.
  void line(const std::vector<Point>& points, const Pen& pen, std::string_view tooltip);

  std::string finish(std::string_view title, double width, double height) const;

 private:
  Point placed(Point point) const;
  Rect placed(const Rect& place) const;

  Point origin_;
  std::string frames_, lines_, boxes_;
};

}  // namespace atoll_v1::atoll::drawing
