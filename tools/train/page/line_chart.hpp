// Line charts as SVG.
#pragma once

#include <string>
#include <vector>

#include "page/text.hpp"

namespace train::page {

struct Series {
  std::string name;
  int colour = 1;  // 1 to 8: the colours of the page's style
  enum class Look {
    line,
    faint,  // raw values behind a smoothed line
    dots,   // a line with a dot at each value, for few values
  } look = Look::line;
  std::vector<double> x{}, y{};  // of equal size; values that are not finite leave a gap
};

struct LineChart {
  std::string title;
  std::string note{};  // one line below the title
  Unit unit = Unit::number;
  bool from_zero = false;  // whether the y axis contains 0
  // Whether the y axis is logarithmic if the values are positive and far apart: the largest at least
  // 20 times the least. The note then says so. Not together with from_zero.
  bool logarithmic = false;
  std::string x_name = "step";
  std::vector<Series> series{};
  std::vector<double> marks{};  // x of steps to point out on the x axis
  std::string marks_name{};
};

// Returns a figure with title, legend, drawing and the values that the script shows at the pointer.
// Long series are reduced to their least and greatest values in some hundred intervals. A chart
// without a finite value gives "".
std::string draw(const LineChart& chart);

// Exponential moving average over about `window` values, without bias at the start. Values that
// are not finite are passed over.
std::vector<double> smoothed(const std::vector<double>& values, double window);

}  // namespace train::page
