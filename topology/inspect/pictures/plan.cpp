// Prints a mesh plan for people.
#include <fmt/format.h>

#include <algorithm>
#include <span>

#include "inspect/pictures/paint.hpp"
#include "wording.hpp"

namespace atoll_v1::atoll {
namespace {

constexpr int most_rows = 32;

// Lists ranks as ranges: "0-7, 12". A list of more than 16 ranges is cut.
std::string ranks_text(std::span<const int> ranks) {
  constexpr int most_pieces = 16;
  std::string text = number_ranges(ranks);
  std::size_t end = 0;
  for (int piece = 0; piece < most_pieces && end != std::string::npos; ++piece)
    end = text.find(", ", end == 0 ? 0 : end + 2);
  return end == std::string::npos ? text : text.substr(0, end) + ", ...";
}

}  // namespace

std::string to_text(const MeshPlan& plan, Colour colour) {
  const bool has_inner = plan.inner > 1;
  const std::string shape =
      has_inner ? fmt::format("mesh {}x{}x{}", plan.replicate, plan.shard, plan.inner)
                : fmt::format("mesh {}x{}", plan.replicate, plan.shard);
  std::string text =
      fmt::format("{} ({})\n  {}\n", paint(colour, Ink::bold, shape),
                  has_inner ? "replicate x shard x inner" : "replicate x shard", plan.why);
  const std::size_t row =
      static_cast<std::size_t>(plan.shard) * static_cast<std::size_t>(plan.inner);
  const std::span<const int> order(plan.order);
  // With tensor parallelism (inner ranks), a row of the mesh contains several shard groups.
  const std::string_view group = has_inner ? "replica" : "shard group";
  for (int i = 0; i < std::min(plan.replicate, most_rows); ++i)
    text += fmt::format("  {} {}: ranks {}\n", group, i,
                        ranks_text(order.subspan(static_cast<std::size_t>(i) * row, row)));
  if (plan.replicate > most_rows)
    text += fmt::format("  and {} more {}s\n", plan.replicate - most_rows, group);
  if (!plan.left_out.empty())
    text += fmt::format("  faster without ranks {}\n", ranks_text(plan.left_out));
  for (const Finding& finding : plan.findings)
    text +=
        fmt::format("  {}: {}\n", paint(colour, ink_of(finding.severity), name(finding.severity)),
                    to_line(finding));
  return text;
}

}  // namespace atoll_v1::atoll
