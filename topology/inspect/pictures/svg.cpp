// Draws a scene: two rows of hosts, or of islands that span hosts, with the rails between the rows.
// The lower row is drawn upside down, so that all NICs face the rails. A *drop* is the line from a
// group to a track. svg_scene.hpp defines groups, summaries and tracks.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "inspect/pictures/svg_scene.hpp"

namespace atoll_v1::atoll {
namespace drawing {
namespace {

constexpr double margin = 16;
constexpr double heading_font = 13, problem_font = 10;
constexpr double track_pitch = 13;
constexpr double row_gap = 24;
constexpr double widest_row = 1400;     // width in points above which a row of hosts is split
constexpr double widest_problem = 800;  // width in points up to which findings widen the picture

// Colours of the tracks. Colour-blind readers can distinguish them, and none looks like the colour
// of an error or a warning.
constexpr std::array<std::string_view, 8> track_colours{"#0b62a4", "#7a3fa0", "#00807a", "#5b7f00",
                                                        "#a8437b", "#6b5b3e", "#3f51b5", "#2e8b57"};

// The upper or lower end of a line from a group to a track.
struct Drop {
  std::string from;
  Point place;
  std::size_t track = 0;
};

using Row = std::vector<const Group*>;

double row_width(const Row& row) {
  double width = row.empty() ? 0 : -row_gap;
  for (const Group* group : row) width += group->width + row_gap;
  return width;
}

double row_height(const Row& row) {
  double height = 0;
  for (const Group* group : row) height = std::max(height, group->height);
  return height;
}

// Calls visit(group, corner) for each group of a row with its upper left corner at `at`. Groups of
// different height are aligned on the side that faces the rails.
template <class Visit>
void each_group(const Row& row, Point at, bool is_mirrored, const Visit& visit) {
  const double height = row_height(row);
  for (const Group* group : row) {
    visit(*group, Point{at.x, is_mirrored ? at.y : at.y + height - group->height});
    at.x += group->width + row_gap;
  }
}

// Computes the drops (lines to tracks) of a row with its upper left corner at `at`. Drops of NICs
// are computed first, because only the drops of summaries can move sideways.
std::vector<Drop> drops_of(const Row& row, Point at, bool is_mirrored,
                           const std::vector<Drop>& others) {
  std::vector<Drop> drops;
  const auto mirrored = [&](double y, const Group& group) {
    return is_mirrored ? group.height - y : y;
  };
  each_group(row, at, is_mirrored, [&](const Group& group, Point corner) {
    for (const HostBox& host : group.hosts)
      for (const NicStack& stack : host.stacks) {
        const double y = corner.y + mirrored(host.at.y + stack.last.bottom(), group);
        double x = corner.x + host.at.x + stack.last.middle() -
                   5 * (static_cast<double>(stack.tracks.size()) - 1);
        for (const std::size_t track : stack.tracks) {
          drops.push_back({stack.nics.back().id, {x, y}, track});
          x += 10;
        }
      }
  });
  each_group(row, at, is_mirrored, [&](const Group& group, Point corner) {
    for (const Summary& summary : group.summaries) {
      const double y = corner.y + mirrored(summary.place.bottom() - 8, group);
      const double step = summary.place.width / (static_cast<double>(summary.tracks.size()) + 1);
      double slot = corner.x + summary.place.x;
      for (const std::size_t track : summary.tracks) {
        double x = slot += step;
        // The drop is moved sideways, at most four times, until it does not overlap another drop.
        const auto is_close = [&](const Drop& drop) { return std::abs(drop.place.x - x) < 6; };
        for (int tries = 0; tries < 4 && (std::ranges::any_of(drops, is_close) ||
                                          std::ranges::any_of(others, is_close));
             ++tries)
          x += 5;
        drops.push_back({text_of(summary), {x, y}, track});
      }
    }
  });
  return drops;
}

// Counts the drops (lines from a NIC down to its rail) that overlap a drop of another rail.
std::size_t clashes(const std::vector<Drop>& drops, const std::vector<Drop>& others) {
  std::size_t count = 0;
  for (const Drop& drop : drops)
    for (const Drop& other : others)
      if (drop.track != other.track && std::abs(drop.place.x - other.place.x) < 4) ++count;
  return count;
}

class Painter {
 public:
  explicit Painter(Scene scene) : scene_(std::move(scene)) {}

  std::string paint() {
    fill_rows();
    measure();
    canvas_.text({margin, margin, width_ - 2 * margin, 18}, {scene_.heading},
                 {.font = heading_font, .is_bold = true});
    double y = paint_row(rows_[0], margin + 26, false);
    const double tracks_y = y + row_gap;
    const bool has_tracks = !scene_.tracks.empty();
    if (has_tracks) y = tracks_y + track_pitch * static_cast<double>(scene_.tracks.size());
    if (!rows_[1].empty()) y = paint_row(rows_[1], y + row_gap, has_tracks);
    canvas_.move_to({});
    for (std::size_t track = 0; track < scene_.tracks.size(); ++track)
      paint_track(track, tracks_y + track_pitch * static_cast<double>(track) + 5);
    y = paint_problems(y);
    return canvas_.finish(scene_.heading, width_, y + margin);
  }

 private:
  // Fills the rows: groups in both, summaries of hosts below. Two groups that fit into a row are not
  // split if there is a summary.
  void fill_rows() {
    for (Group& group : scene_.groups) {
      place(group);
      rows_[group.hosts.empty() ? 1 : 0].push_back(&group);
    }
    const std::size_t groups = rows_[0].size();
    if (!rows_[1].empty() && groups <= 2 && row_width(rows_[0]) < widest_row) return;
    const auto half = rows_[0].begin() + static_cast<std::ptrdiff_t>((groups + 1) / 2);
    rows_[1].insert(rows_[1].begin(), half, rows_[0].end());
    rows_[0].erase(half, rows_[0].end());
  }

  void measure() {
    left_ = margin;
    for (const Track& track : scene_.tracks)
      left_ = std::max(left_, 2 * margin + text_width(track.title, detail_font));
    double width = text_width(scene_.heading, heading_font);
    for (const Row& row : rows_) width = std::max(width, row_width(row));
    for (const Problem& problem : scene_.problems)
      width = std::max(width, std::min(widest_problem, text_width(problem.text, problem_font)));
    width_ = left_ + width + margin;
  }

  // Returns the left edge of a row. If the picture has at most two groups, they are aligned on the
  // left, so that equal groups are above each other. Other rows are centred, and shifted if that
  // separates overlapping drops (lines to tracks) of different tracks.
  double begin_of(const Row& row, double y, bool is_mirrored) const {
    if (rows_[0].size() + rows_[1].size() <= 2) return left_;
    const double middle = left_ + (width_ - margin - left_ - row_width(row)) / 2;
    double best = middle;
    std::optional<std::size_t> least;
    for (const double shift : {0.0, 8.0, -8.0, 16.0, -16.0, 24.0, -24.0}) {
      if (least && middle + shift < left_) continue;
      const std::size_t here =
          clashes(drops_of(row, {middle + shift, y}, is_mirrored, drops_), drops_);
      if (least && here >= *least) continue;
      least = here;
      best = middle + shift;
    }
    return best;
  }

  // Draws a row and returns the y coordinate below the row.
  double paint_row(const Row& row, double y, bool is_mirrored) {
    const Point at{begin_of(row, y, is_mirrored), y};
    const std::vector<Drop> drops = drops_of(row, at, is_mirrored, drops_);
    drops_.insert(drops_.end(), drops.begin(), drops.end());
    each_group(row, at, is_mirrored,
               [&](const Group& group, Point corner) { paint_group(group, corner, is_mirrored); });
    return y + row_height(row);
  }

  void paint_group(const Group& group, Point at, bool is_mirrored) {
    const double mirrored_height = is_mirrored ? group.height : 0;
    canvas_.move_to(at, mirrored_height);
    const bool has_bar = group.around && group.around->bar;
    if (group.around) paint_frame(canvas_, *group.around);
    if (has_bar) paint_switch(canvas_, *group.around);
    for (const HostBox& host : group.hosts) {
      const double y = is_mirrored ? group.height - host.at.y - host.height : host.at.y;
      canvas_.move_to({at.x + host.at.x, at.y + y}, is_mirrored ? host.height : 0);
      paint_host(canvas_, host);
    }
    canvas_.move_to(at, mirrored_height);
    for (const Summary& summary : group.summaries) paint_summary(canvas_, summary);
    if (has_bar) paint_buses(group);
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

  void paint_track(std::size_t number, double y) {
    const Track& track = scene_.tracks[number];
    const std::string_view colour = track_colours[number % track_colours.size()];
    double right = left_;
    for (const Drop& drop : drops_)
      if (drop.track == number) right = std::max(right, drop.place.x);
    canvas_.box({margin / 2, y - 6, left_ - margin, 12}, {track.title},
                {.border = {"white", 0}, .text = colour, .font = detail_font}, track.title);
    canvas_.line({{left_ - margin / 2, y}, {right, y}},
                 {colour, 2.2, track.is_assumed ? Dash::dashed : Dash::solid}, track.title);
    for (const Drop& drop : drops_) {
      if (drop.track != number) continue;
      const Point joint{drop.place.x, y};
      canvas_.dot(joint, 6, colour);
      canvas_.line({drop.place, joint}, {colour, 1.4},
                   fmt::format("{} - {}", drop.from, track.title));
    }
  }

  // Lists the findings below the picture. Returns the y coordinate below the list.
  double paint_problems(double y) {
    if (!scene_.problems.empty()) y += row_gap;
    const double width = width_ - 2 * margin;
    for (const Problem& problem : scene_.problems) {
      canvas_.text({margin, y, width, line_height}, {shortened(problem.text, width, problem_font)},
                   {.text = colour_of(problem.mark, quiet), .font = problem_font});
      y += line_height;
    }
    return y;
  }

  Scene scene_;
  Canvas canvas_;
  std::array<Row, 2> rows_;
  std::vector<Drop> drops_;
  double left_ = 0, width_ = 0;
};

}  // namespace
}  // namespace drawing

std::string to_svg(const Inspection& inspection) {
  return drawing::Painter(drawing::make_scene(inspection)).paint();
}

}  // namespace atoll_v1::atoll
