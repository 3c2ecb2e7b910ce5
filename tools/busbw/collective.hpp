// The vocabulary of a measurement: collectives, reductions, element types by the names that
// nccl-tests gives them; how many elements each rank holds, and what counts as bandwidth. Pure.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "atoll/view.hpp"

namespace busbw {

enum class Collective {
  all_reduce,
  all_gather,
  reduce_scatter,
  broadcast,
  reduce,
  gather,
  scatter,
  all_to_all,
  all_gather_v,
  reduce_scatter_v,
  send_recv
};

inline constexpr std::array all_collectives{
    Collective::all_reduce,       Collective::all_gather, Collective::reduce_scatter,
    Collective::broadcast,        Collective::reduce,     Collective::gather,
    Collective::scatter,          Collective::all_to_all, Collective::all_gather_v,
    Collective::reduce_scatter_v, Collective::send_recv};

// The part of the whole tensor that belongs to a rank: an equal one, or of the _v forms 1, 2, 3, 4,
// 1 ... in turn, over their sum.
double share_of(Collective collective, int rank, int ranks) noexcept;

std::string_view name(Collective collective) noexcept;
std::optional<Collective> collective_from_name(std::string_view name) noexcept;
// What nccl-tests calls its program for it: "alltoall_perf".
std::string_view program_name(Collective collective) noexcept;
bool has_reduction(Collective collective) noexcept;
bool has_root(Collective collective) noexcept;
// Whether the right half of a row runs on one buffer. all_to_all and send_recv have no such form,
// broadcast has no other.
bool has_in_place(Collective collective) noexcept;

enum class Op {
  none,
  sum,
  min,
  max,
  avg,
  mulsum  // a sum of scaled inputs; the factor of a rank is mulsum_factor()
};
inline constexpr std::array all_ops{Op::sum, Op::max, Op::min, Op::avg, Op::mulsum};

std::string_view name(Op op) noexcept;
std::optional<Op> op_from_name(std::string_view name) noexcept;
constexpr double mulsum_factor(int rank) noexcept { return rank % 2 == 0 ? 1.0 : 2.0; }

inline constexpr std::array all_dtypes{atoll::DType::u8,  atoll::DType::i32, atoll::DType::i64,
                                       atoll::DType::f16, atoll::DType::f32, atoll::DType::f64,
                                       atoll::DType::bf16};

// "float", "bfloat16", "half", "uint8": the spelling of the `type` column.
std::string_view column_name(atoll::DType dtype) noexcept;
// That spelling, or atoll's own ("f32", "bf16").
std::optional<atoll::DType> dtype_from_name(std::string_view name) noexcept;

// Why no backend does this, and what there is instead; nothing where some do: "mulsum multiplies
// floating point only: take sum for int32, or mulsum for half, float, double or bfloat16".
std::optional<std::string> why_undefined(Op op, atoll::DType dtype);

// The two halves of a row.
enum class Place {
  out,
  in
};
inline constexpr std::array both_places{Place::out, Place::in};
constexpr std::string_view name(Place place) noexcept { return place == Place::out ? "out" : "in"; }

// One operation over `ranks` ranks, in elements.
struct Shape {
  std::uint64_t count = 0;                 // the `count` column: what a caller passes
  std::uint64_t total = 0;                 // the whole tensor: max(sent, received) of a rank
  std::vector<std::uint64_t> counts = {};  // of each rank, for the uneven forms
};

// The largest operation of at most `bytes` bytes. Where ranks hold equal parts these are multiples
// of 16 bytes, as in nccl-tests, and may be empty. Parts of the uneven forms are in the proportion
// 1 : 2 : 3 : 4 : 1 : 2 ..., also in multiples of 16 bytes; their `count` is the mean.
Shape shape_of(Collective collective, std::uint64_t bytes, atoll::DType dtype, int ranks);

// busbw = algbw * bus_factor, algbw = total bytes / time.
double bus_factor(Collective collective, int ranks) noexcept;

// minimum, minimum + step or minimum * factor (when factor > 1), ... up to `maximum`.
std::vector<std::uint64_t> sweep_sizes(std::uint64_t minimum, std::uint64_t maximum,
                                       std::uint64_t step, std::uint64_t factor);

// World ranks of each group of an axis of a mesh (replicate x shard), each in the order of the
// axis. `order` holds the world ranks in mesh order, shard innermost.
enum class AxisName {
  world,
  shard,
  replicate
};
std::string_view name(AxisName axis) noexcept;
std::vector<std::vector<int>> axis_groups(const std::vector<int>& order, int shard, AxisName axis);

}  // namespace busbw
