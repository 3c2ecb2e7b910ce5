#include "comm/arguments.hpp"

#include <functional>
#include <limits>

#include "comm/backend_communicator.hpp"
#include "core/errors.hpp"

namespace atoll_v1::atoll {
namespace {

constexpr std::uint64_t most_bytes = std::numeric_limits<std::int64_t>::max();

}  // namespace

// Uses std::less, because only std::less orders addresses of different arrays.
bool overlap(ConstView a, ConstView b) {
  const auto* const first = static_cast<const std::byte*>(a.data);
  const auto* const second = static_cast<const std::byte*>(b.data);
  const std::less<> before;
  return a.count > 0 && b.count > 0 && before(first, second + b.bytes()) &&
         before(second, first + a.bytes());
}

void Arguments::refuse(std::string_view rule, ErrorCode code) const {
  throw make_error(code, "rank {}: {} on communicator {}: {}", group_.world().rank(), operation_,
                   group_.name(), rule);
}

void Arguments::known(ConstView view, std::string_view which) const {
  const auto dtype = static_cast<std::int32_t>(view.dtype);
  require(atoll_abi::within(atoll_abi::dtypes, dtype), "{} has the dtype {}, which does not exist",
          which, dtype);
}

void Arguments::buffer(ConstView view, std::string_view which) const {
  known(view, which);
  require(view.count <= most_bytes / size_of(view.dtype), "{2} is too large: {0} elements of {1}",
          view.count, name(view.dtype), which);
  require(view.count == 0 || view.data != nullptr, "{} is NULL and has {} elements", which,
          view.count);
}

void Arguments::same_dtype(ConstView src, ConstView dst) const {
  known(src, "src");
  known(dst, "dst");
  require(src.dtype == dst.dtype, "src has elements of {}, but dst has elements of {}",
          name(src.dtype), name(dst.dtype));
}

void Arguments::alike(ConstView src, ConstView dst) const {
  same_dtype(src, dst);
  require(src.count == dst.count, "src has {} elements, but dst has {}", src.count, dst.count);
  buffer(src, "src");
  buffer(dst, "dst");
}

void Arguments::divisible(ConstView src) const {
  const auto ranks = static_cast<std::uint64_t>(group_.axis().size());
  require(src.count % ranks == 0, "src has {} elements, which is no multiple of {} ranks",
          src.count, ranks);
}

void Arguments::peer(int rank) const {
  require(rank >= 0 && rank < group_.axis().size(),
          "rank {} does not exist: the communicator has {} ranks", rank, group_.axis().size());
}

void Arguments::list(std::size_t views, std::string_view which) const {
  require(views == static_cast<std::size_t>(group_.axis().size()), "{} has {} views for {} ranks",
          which, views, group_.axis().size());
}

void Arguments::message(int rank, int tag, bool has_tags, bool receives) const {
  const bool is_any = receives && (rank == ATOLL_ANY || tag == ATOLL_ANY);
  require(has_tags || (tag == 0 && !is_any),
          "tags and any source need a communicator that is opened with CommunicatorOptions::tags");
  if (!receives || rank != ATOLL_ANY) peer(rank);
  require(tag >= 0 || (receives && tag == ATOLL_ANY),
          "the tag is {}: use a number from 0 to 2147483647", tag);
}

void Arguments::own_messages(int sends, int receives) const {
  require(sends == receives,
          "messages of this rank to itself: {} sends, but {} receives: pass a send and its receive "
          "to one group()",
          sends, receives);
}

std::uint64_t Arguments::layout(std::span<const std::uint64_t> counts, std::uint64_t whole,
                                std::string_view buffer) const {
  require(counts.size() == static_cast<std::size_t>(group_.axis().size()),
          "{} counts were given for {} ranks", counts.size(), group_.axis().size());
  const auto own = static_cast<std::size_t>(group_.axis().index);
  std::uint64_t sum = 0, first = 0;
  for (std::size_t r = 0; r < counts.size(); ++r) {
    if (r == own) first = sum;
    require(counts[r] <= whole - sum,
            "the counts of ranks 0 to {} add up to more than the {} elements of {}", r, whole,
            buffer);
    sum += counts[r];
  }
  require(sum == whole, "the counts add up to {}, but {} has {} elements", sum, buffer, whole);
  return first;
}

std::uint64_t Arguments::counts(std::span<const std::uint64_t> counts, std::uint64_t whole,
                                std::uint64_t part) const {
  const std::uint64_t first = layout(counts, whole, "the larger buffer");
  const auto own = static_cast<std::size_t>(group_.axis().index);
  require(counts[own] == part, "the count of rank {} is {}, but its buffer has {} elements", own,
          counts[own], part);
  return first;
}

void Arguments::exchanged(std::span<const std::uint64_t> sent, std::uint64_t src_count,
                          std::span<const std::uint64_t> received, std::uint64_t dst_count) const {
  layout(sent, src_count, "src");
  layout(received, dst_count, "dst");
  const auto own = static_cast<std::size_t>(group_.axis().index);
  require(sent[own] == received[own], "rank {} sends {} elements to itself, but receives {}", own,
          sent[own], received[own]);
}

void Arguments::apart(ConstView one, ConstView other, const void* place) const {
  if (!overlap(one, other) || (place != nullptr && one.data == place)) return;
  refuse(place == nullptr ? "src and dst overlap"
                          : "src and dst overlap, but not in place: the smaller buffer must be "
                            "this rank's part of the larger one");
}

void Arguments::blocks(ConstView src, ConstView dst, Whole whole) const {
  const auto& [part, all] = whole == Whole::dst ? std::tie(src, dst) : std::tie(dst, src);
  same_dtype(src, dst);
  const auto ranks = static_cast<std::uint64_t>(group_.axis().size());
  const bool whole_is_dst = whole == Whole::dst;
  require(all.count % ranks == 0 && all.count / ranks == part.count,
          "{} has {} elements, not {} ranks x the {} elements of {}", whole_is_dst ? "dst" : "src",
          all.count, ranks, part.count, whole_is_dst ? "src" : "dst");
  buffer(src, "src");
  buffer(dst, "dst");
  const auto rank = static_cast<std::uint64_t>(group_.axis().index);
  apart(part, all, all.part(part.count * rank, part.count).data);
}

void Arguments::reduction(DType dtype, const Reduction& reduction) const {
  const auto op = static_cast<std::int32_t>(reduction.op);
  require(atoll_abi::within(atoll_abi::ops, op), "the op {} does not exist", op);
  if (!atoll_abi::is_reducible(static_cast<std::int32_t>(dtype))) {
    refuse(fmt::format("elements of {} cannot be reduced: convert them to bf16 or f32 first",
                       name(dtype)),
           ErrorCode::unsupported);
  }
  require(atoll_abi::is_reducible(static_cast<std::int32_t>(dtype), op),
          "the reduction {} is not defined for elements of {}", name(reduction.op), name(dtype));
  if (reduction.factor == 1.0) return;
  require(reduction.op == ReduceOp::sum || reduction.op == ReduceOp::avg,
          "a factor of {} is not supported with {}", reduction.factor, name(reduction.op));
  require(!is_integer(dtype), "a factor of {} is not supported with elements of {}",
          reduction.factor, name(dtype));
}

}  // namespace atoll_v1::atoll
