#include "collective.hpp"

#include <algorithm>
#include <limits>
#include <numeric>
#include <string>
#include <utility>

namespace busbw {
namespace {

using atoll::DType;

// Each rank's part is a multiple of this many bytes.
constexpr std::uint64_t part_bytes = 16;

std::uint64_t round_down(std::uint64_t elements, DType dtype) {
  const std::uint64_t grain = part_bytes / size_of(dtype);
  return elements / grain * grain;
}

// Name of each type in the `type` column.
struct TypeTraits {
  DType dtype;
  std::string_view column;
  bool is_floating = false;
};
constexpr std::array types{
    TypeTraits{DType::i8, "int8"},
    TypeTraits{DType::u8, "uint8"},
    TypeTraits{DType::u16, "uint16"},
    TypeTraits{DType::i32, "int32"},
    TypeTraits{DType::u32, "uint32"},
    TypeTraits{DType::i64, "int64"},
    TypeTraits{DType::u64, "uint64"},
    TypeTraits{DType::f16, "half", true},
    TypeTraits{DType::f32, "float", true},
    TypeTraits{DType::f64, "double", true},
    TypeTraits{DType::bf16, "bfloat16", true},
};
static_assert(types.size() == all_dtypes.size());

const TypeTraits& traits_of(DType dtype) noexcept {
  return *std::ranges::find(types, dtype, &TypeTraits::dtype);
}

std::uint64_t weight(int rank) { return static_cast<std::uint64_t>(rank % 4 + 1); }

std::uint64_t total_weight(int ranks) {
  std::uint64_t sum = 0;
  for (int r = 0; r < ranks; ++r) sum += weight(r);
  return sum;
}

template <class Enum, std::size_t size>
std::optional<Enum> from_name(const std::array<Enum, size>& all, std::string_view text) noexcept {
  const auto found = std::ranges::find_if(all, [&](Enum one) { return name(one) == text; });
  return found == all.end() ? std::nullopt : std::optional(*found);
}

enum class Division {
  whole,  // every rank has the whole tensor
  equal,  // every rank has an equal part
  uneven  // parts of the ranks differ, in proportion to weight()
};

struct Traits {
  std::string_view name, program;
  Division division = Division::whole;
  bool has_reduction = false, has_root = false, has_in_place = true;
};

// The traits of each collective, in the order of the enumerators of Collective.
constexpr std::array traits{
    Traits{"all_reduce", "all_reduce_perf", Division::whole, true},
    Traits{"all_gather", "all_gather_perf", Division::equal},
    Traits{"reduce_scatter", "reduce_scatter_perf", Division::equal, true},
    Traits{"broadcast", "broadcast_perf", Division::whole, false, true},
    Traits{"reduce", "reduce_perf", Division::whole, true, true},
    Traits{"gather", "gather_perf", Division::equal, false, true},
    Traits{"scatter", "scatter_perf", Division::equal, false, true},
    Traits{"all_to_all", "alltoall_perf", Division::equal, false, false, false},
    Traits{"all_gather_v", "all_gather_v_perf", Division::uneven},
    Traits{"reduce_scatter_v", "reduce_scatter_v_perf", Division::uneven, true},
    Traits{"send_recv", "sendrecv_perf", Division::whole, false, false, false},
};
static_assert(traits.size() == all_collectives.size());

const Traits& traits_of(Collective collective) noexcept {
  return traits[static_cast<std::size_t>(collective)];
}

Shape uneven(std::uint64_t elements, DType dtype, int ranks) {
  Shape shape;
  const std::uint64_t weights = total_weight(ranks);
  for (int r = 0; r < ranks; ++r)
    shape.counts.push_back(round_down(elements / weights * weight(r), dtype));
  shape.total = std::accumulate(shape.counts.begin(), shape.counts.end(), std::uint64_t{0});
  shape.count = shape.total / static_cast<std::uint64_t>(ranks);
  return shape;
}

}  // namespace

double share_of(Collective collective, int rank, int ranks) noexcept {
  if (traits_of(collective).division != Division::uneven) return 1.0 / ranks;
  return static_cast<double>(weight(rank)) / static_cast<double>(total_weight(ranks));
}

std::string_view name(Collective collective) noexcept { return traits_of(collective).name; }

std::optional<Collective> collective_from_name(std::string_view text) noexcept {
  return from_name(all_collectives, text);
}

std::string_view program_name(Collective collective) noexcept {
  return traits_of(collective).program;
}

bool has_reduction(Collective collective) noexcept { return traits_of(collective).has_reduction; }

bool has_root(Collective collective) noexcept { return traits_of(collective).has_root; }

bool has_in_place(Collective collective) noexcept { return traits_of(collective).has_in_place; }

std::string_view name(Op op) noexcept {
  constexpr std::array<std::string_view, 7> names{"none", "sum",    "min", "max",
                                                  "avg",  "mulsum", "prod"};
  return names[static_cast<std::size_t>(op)];
}

std::optional<Op> op_from_name(std::string_view text) noexcept { return from_name(all_ops, text); }

std::string_view column_name(DType dtype) noexcept { return traits_of(dtype).column; }

std::optional<DType> dtype_from_name(std::string_view text) noexcept {
  if (text == "int") return DType::i32;
  for (const auto& [number, dtype] :  // "fp16" and "float16"
       {std::pair{"16", DType::f16}, {"32", DType::f32}, {"64", DType::f64}})
    if (text == std::string("fp") + number || text == std::string("float") + number) return dtype;
  const auto found = std::ranges::find_if(
      all_dtypes, [&](DType one) { return column_name(one) == text || name(one) == text; });
  if (found == all_dtypes.end()) return std::nullopt;
  return *found;
}

std::optional<std::string> why_undefined(Op op, DType dtype) {
  if (op != Op::mulsum || traits_of(dtype).is_floating) return std::nullopt;
  std::string floating;
  for (const TypeTraits& one : types) {
    if (!one.is_floating) continue;
    if (!floating.empty()) floating += one.dtype == types.back().dtype ? " or " : ", ";
    floating += one.column;
  }
  return "mulsum supports floating-point types only: use sum for " +
         std::string(column_name(dtype)) + ", or mulsum for " + floating;
}

Shape shape_of(Collective collective, std::uint64_t bytes, DType dtype, int ranks) {
  const std::uint64_t elements = bytes / size_of(dtype);
  const auto n = static_cast<std::uint64_t>(ranks);
  switch (traits_of(collective).division) {
    case Division::whole:
      return {.count = elements, .total = elements};
    case Division::equal: {
      const std::uint64_t part = round_down(elements / n, dtype);
      return {.count = part, .total = part * n};
    }
    case Division::uneven:
      return uneven(elements, dtype, ranks);
  }
  return {};
}

double bus_factor(Collective collective, int ranks) noexcept {
  const double share = static_cast<double>(ranks - 1) / ranks;
  if (collective == Collective::all_reduce) return 2 * share;
  return traits_of(collective).division == Division::whole ? 1 : share;
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
    if (next <= size) break;  // the size cannot grow from 0 by a factor, nor by a step of 0
    size = next;
  }
  return sizes;
}

std::vector<std::vector<int>> axis_groups(const std::vector<int>& order, int shard,
                                          std::string_view axis) {
  if (axis == "world") return {order};
  const auto inner = static_cast<std::size_t>(shard);
  const std::size_t outer = order.size() / inner;
  std::vector<std::vector<int>> groups(axis == "shard" ? outer : inner);
  for (std::size_t i = 0; i < order.size(); ++i)
    groups[axis == "shard" ? i / inner : i % inner].push_back(order[i]);
  return groups;
}

}  // namespace busbw
