// Terms of a measurement, with the names of nccl-tests: collectives, reductions and element types;
// the number of elements on each rank; and the definition of bandwidth. Pure functions.
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

// Share of the whole tensor that belongs to a rank. Ranks have equal shares, except that the _v
// collectives use weights 1, 2, 3, 4, 1, 2, ... over their sum.
double share_of(Collective collective, int rank, int ranks) noexcept;

std::string_view name(Collective collective) noexcept;
std::optional<Collective> collective_from_name(std::string_view name) noexcept;
// The name of the nccl-tests program for the collective: "alltoall_perf".
std::string_view program_name(Collective collective) noexcept;
bool has_reduction(Collective collective) noexcept;
bool has_root(Collective collective) noexcept;
// Whether the in-place columns of the table (its right half, as in nccl-tests) use an in-place
// call. all_to_all and send_recv have no in-place form; broadcast has no other form.
bool has_in_place(Collective collective) noexcept;

enum class Op {
  none,
  sum,
  min,
  max,
  avg,
  mulsum,  // sum of scaled inputs; mulsum_factor() is the factor of a rank
  prod
};
inline constexpr std::array all_ops{Op::sum, Op::prod, Op::max, Op::min, Op::avg, Op::mulsum};

std::string_view name(Op op) noexcept;
std::optional<Op> op_from_name(std::string_view name) noexcept;
constexpr double mulsum_factor(int rank) noexcept { return rank % 2 == 0 ? 1.0 : 2.0; }

inline constexpr std::array all_dtypes{atoll::DType::i8,  atoll::DType::u8,  atoll::DType::u16,
                                       atoll::DType::i32, atoll::DType::u32, atoll::DType::i64,
                                       atoll::DType::u64, atoll::DType::f16, atoll::DType::f32,
                                       atoll::DType::f64, atoll::DType::bf16};

// Names a type as in the `type` column: "float", "bfloat16", "half", "uint8".
std::string_view column_name(atoll::DType dtype) noexcept;
// Accepts the names of column_name() and atoll's own ("f32", "bf16").
std::optional<atoll::DType> dtype_from_name(std::string_view name) noexcept;

// Explains why no backend supports the combination, and names alternatives; empty for combinations
// that some backend supports.
std::optional<std::string> why_undefined(Op op, atoll::DType dtype);

// The two halves of a table row: the out-of-place and the in-place measurement.
enum class Place {
  out,
  in
};
inline constexpr std::array both_places{Place::out, Place::in};
constexpr std::string_view name(Place place) noexcept { return place == Place::out ? "out" : "in"; }

// Element counts of one operation over a group of ranks.
struct Shape {
  std::uint64_t count = 0;  // the `count` column: elements that a caller passes
  // Elements of the whole tensor: the larger of a rank's input and output.
  std::uint64_t total = 0;
  std::vector<std::uint64_t> counts = {};  // number of elements per rank, for the _v collectives
};

// Returns the largest operation of at most `bytes` bytes. Equal parts of ranks are multiples of 16
// bytes, as in nccl-tests, and may be empty. Parts of the _v collectives are in the ratio
// 1 : 2 : 3 : 4 : 1 : 2 ..., also in multiples of 16 bytes; `count` is their mean.
Shape shape_of(Collective collective, std::uint64_t bytes, atoll::DType dtype, int ranks);

// busbw = algbw * bus_factor, where algbw = total bytes / time.
double bus_factor(Collective collective, int ranks) noexcept;

// Sizes from `minimum` to `maximum`: each is the previous one times `factor` if that is above 1,
// else plus `step`.
std::vector<std::uint64_t> sweep_sizes(std::uint64_t minimum, std::uint64_t maximum,
                                       std::uint64_t step, std::uint64_t factor);

// Returns the world ranks of each group of an axis ("world", "shard" or "replicate") of a mesh
// (replicate x shard), in the order of the axis. `order` holds the world ranks in mesh order, with
// the shard axis varying fastest.
std::vector<std::vector<int>> axis_groups(const std::vector<int>& order, int shard,
                                          std::string_view axis);

}  // namespace busbw
