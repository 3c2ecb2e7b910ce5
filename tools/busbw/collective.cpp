#include "collective.hpp"

#include <algorithm>
#include <limits>
#include <numeric>

namespace busbw {
namespace {

using atoll::DType;

// Each rank's part is a multiple of this many bytes.
constexpr std::uint64_t part_bytes = 16;

std::uint64_t round_down(std::uint64_t elements, DType dtype) {
  const std::uint64_t grain = part_bytes / size_of(dtype);
  return elements / grain * grain;
}

bool is_floating(DType dtype) {
  switch (dtype) {
    case DType::f32:
    case DType::bf16:
    case DType::f16:
    case DType::f64:
      return true;
    case DType::i32:
    case DType::i64:
    case DType::u8:
      return false;
  }
  return false;
}

std::uint64_t weight(int rank) { return static_cast<std::uint64_t>(rank % 4 + 1); }

struct Traits {
  std::string_view name, program;
  bool has_reduction = false, has_root = false, has_in_place = true;
};

// In the order of the enumerators.
constexpr std::array traits{
    Traits{"all_reduce", "all_reduce_perf", true},
    Traits{"all_gather", "all_gather_perf"},
    Traits{"reduce_scatter", "reduce_scatter_perf", true},
    Traits{"broadcast", "broadcast_perf", false, true},
    Traits{"reduce", "reduce_perf", true, true},
    Traits{"gather", "gather_perf", false, true},
    Traits{"scatter", "scatter_perf", false, true},
    Traits{"all_to_all", "alltoall_perf", false, false, false},
    Traits{"all_gather_v", "all_gather_v_perf"},
    Traits{"reduce_scatter_v", "reduce_scatter_v_perf", true},
    Traits{"send_recv", "sendrecv_perf", false, false, false},
};
static_assert(traits.size() == all_collectives.size());

const Traits& traits_of(Collective collective) noexcept {
  return traits[static_cast<std::size_t>(collective)];
}

Shape uneven(std::uint64_t elements, DType dtype, int ranks) {
  Shape shape;
  std::uint64_t weights = 0;
  for (int r = 0; r < ranks; ++r) weights += weight(r);
  for (int r = 0; r < ranks; ++r)
    shape.counts.push_back(round_down(elements / weights * weight(r), dtype));
  shape.total = std::accumulate(shape.counts.begin(), shape.counts.end(), std::uint64_t{0});
  shape.count = shape.total / static_cast<std::uint64_t>(ranks);
  return shape;
}

}  // namespace

double share_of(Collective collective, int rank, int ranks) noexcept {
  if (collective != Collective::all_gather_v && collective != Collective::reduce_scatter_v) {
    return 1.0 / ranks;
  }
  std::uint64_t weights = 0;
  for (int r = 0; r < ranks; ++r) weights += weight(r);
  return static_cast<double>(weight(rank)) / static_cast<double>(weights);
}

std::string_view name(Collective collective) noexcept { return traits_of(collective).name; }

std::optional<Collective> collective_from_name(std::string_view text) noexcept {
  const auto found =
      std::ranges::find_if(all_collectives, [&](Collective one) { return name(one) == text; });
  if (found == all_collectives.end()) return std::nullopt;
  return *found;
}

std::string_view program_name(Collective collective) noexcept {
  return traits_of(collective).program;
}

bool has_reduction(Collective collective) noexcept { return traits_of(collective).has_reduction; }

bool has_root(Collective collective) noexcept { return traits_of(collective).has_root; }

bool has_in_place(Collective collective) noexcept { return traits_of(collective).has_in_place; }

std::string_view name(Op op) noexcept {
  switch (op) {
    case Op::none:
      return "none";
    case Op::sum:
      return "sum";
    case Op::min:
      return "min";
    case Op::max:
      return "max";
    case Op::avg:
      return "avg";
    case Op::mulsum:
      return "mulsum";
  }
  return "?";
}

std::optional<Op> op_from_name(std::string_view text) noexcept {
  const auto found = std::ranges::find_if(all_ops, [&](Op one) { return name(one) == text; });
  if (found == all_ops.end()) return std::nullopt;
  return *found;
}

std::string_view column_name(DType dtype) noexcept {
  switch (dtype) {
    case DType::f32:
      return "float";
    case DType::bf16:
      return "bfloat16";
    case DType::f16:
      return "half";
    case DType::f64:
      return "double";
    case DType::i32:
      return "int32";
    case DType::i64:
      return "int64";
    case DType::u8:
      return "uint8";
  }
  return "?";
}

std::optional<DType> dtype_from_name(std::string_view text) noexcept {
  if (text == "int") return DType::i32;
  const auto found = std::ranges::find_if(
      all_dtypes, [&](DType one) { return column_name(one) == text || name(one) == text; });
  if (found == all_dtypes.end()) return std::nullopt;
  return *found;
}

std::optional<std::string> why_undefined(Op op, DType dtype) {
  if (op != Op::mulsum || is_floating(dtype)) return std::nullopt;
  std::string floating;
  for (const DType one : all_dtypes) {
    if (!is_floating(one)) continue;
    if (!floating.empty()) floating += one == all_dtypes.back() ? " or " : ", ";
    floating += column_name(one);
  }
  return "mulsum supports floating-point types only: use sum for " +
         std::string(column_name(dtype)) + ", or mulsum for " + floating;
}

Shape shape_of(Collective collective, std::uint64_t bytes, DType dtype, int ranks) {
  const std::uint64_t elements = bytes / size_of(dtype);
  const auto n = static_cast<std::uint64_t>(ranks);
  switch (collective) {
    case Collective::all_reduce:
    case Collective::broadcast:
    case Collective::reduce:
    case Collective::send_recv:
      return {.count = elements, .total = elements};
    case Collective::all_gather:
    case Collective::reduce_scatter:
    case Collective::gather:
    case Collective::scatter:
    case Collective::all_to_all: {
      const std::uint64_t part = round_down(elements / n, dtype);
      return {.count = part, .total = part * n};
    }
    case Collective::all_gather_v:
    case Collective::reduce_scatter_v:
      return uneven(elements, dtype, ranks);
  }
  return {};
}

double bus_factor(Collective collective, int ranks) noexcept {
  const double share = static_cast<double>(ranks - 1) / ranks;
  switch (collective) {
    case Collective::all_reduce:
      return 2 * share;
    case Collective::all_gather:
    case Collective::reduce_scatter:
    case Collective::gather:
    case Collective::scatter:
    case Collective::all_to_all:
    case Collective::all_gather_v:
    case Collective::reduce_scatter_v:
      return share;
    case Collective::broadcast:
    case Collective::reduce:
    case Collective::send_recv:
      return 1;
  }
  return 1;
}

std::vector<std::uint64_t> sweep_sizes(std::uint64_t minimum, std::uint64_t maximum,
                                       std::uint64_t step, std::uint64_t factor) {
  std::vector<std::uint64_t> sizes;
  std::uint64_t size = minimum;
  while (size <= maximum) {
    sizes.push_back(size);
    const std::uint64_t most = std::numeric_limits<std::uint64_t>::max();
    if (factor > 1 ? size > most / factor : size > most - step) break;
    const std::uint64_t next = factor > 1 ? size * factor : size + step;
    if (next <= size) break;  // the size cannot grow: 0 times a factor, or a step of 0
    size = next;
  }
  return sizes;
}

std::string_view name(AxisName axis) noexcept {
  switch (axis) {
    case AxisName::world:
      return "world";
    case AxisName::shard:
      return "shard";
    case AxisName::replicate:
      return "replicate";
  }
  return "?";
}

std::vector<std::vector<int>> axis_groups(const std::vector<int>& order, int shard, AxisName axis) {
  if (axis == AxisName::world) return {order};
  const auto inner = static_cast<std::size_t>(shard);
  const std::size_t outer = order.size() / inner;
  std::vector<std::vector<int>> groups(axis == AxisName::shard ? outer : inner);
  for (std::size_t i = 0; i < order.size(); ++i)
    groups[axis == AxisName::shard ? i / inner : i % inner].push_back(order[i]);
  return groups;
}

}  // namespace busbw
