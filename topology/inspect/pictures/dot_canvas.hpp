// A drawing in Graphviz' language whose every place is given, so that Graphviz only paints it:
// `layout=nop2` of neato reads `pos` and `bb` as `dot -Tdot` writes them. Places are in points
// (1/72 inch) from the top left corner; Graphviz counts from the bottom.
#pragma once

#include <initializer_list>
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

struct Look {
  std::string_view fill = "white";
  Pen border = {};
  std::string_view text = "#222222";
  double font = 10;
};

enum class Weight {
  plain,
  bold
};

enum class Align {
  left,
  middle,
  right
};

struct TextLook {
  double font = 10;
  Weight weight = Weight::plain;
  Align align = Align::left;
  std::string_view colour = "#222222";
};

// What a text takes, in points: an upper estimate for the usual sans-serif fonts.
double text_width(std::string_view text, double font);

// Lines of at most `width`, of parts that stay whole.
std::vector<std::string> wrapped(const std::vector<std::string>& parts, double width, double font);

// Shortened to `width`, with dots in place of what is missing.
std::string shortened(std::string_view text, double width, double font);

class Canvas {
 public:
  // Until the next call, places are relative to `origin`, and upside down within `height` when it
  // is positive.
  void move_to(Point origin, double mirrored_height = 0);

  // A frame around everything until its close(). `name` is unique.
  void open(std::string_view name, const Rect& place, const Look& look, std::string_view tooltip);
  void close();

  // `id` names the box for edges.
  void box(std::string_view id, const Rect& place, const std::vector<std::string>& lines,
           const Look& look, std::string_view tooltip);
  void text(const Rect& place, const std::vector<std::string>& lines, const TextLook& look);
  // An anchor for edges that is not seen unless it has a size.
  void dot(std::string_view id, Point place, double size, std::string_view colour);

  // A line from box to box along cubic Bezier curves: a start, then three points a curve.
  void curve(std::string_view a, std::string_view b, const std::vector<Point>& points,
             const Pen& pen);
  void line(std::string_view a, std::string_view b, std::initializer_list<Point> corners,
            const Pen& pen);

  std::string finish(std::string_view title, double width, double height) const;

 private:
  Point placed(Point point) const;
  Rect placed(const Rect& place) const;
  void indent();

  Point origin_;
  double mirrored_height_ = 0;
  std::size_t depth_ = 1;
  std::size_t texts_ = 0;
  std::string body_;
};

}  // namespace atoll_v1::atoll::drawing
