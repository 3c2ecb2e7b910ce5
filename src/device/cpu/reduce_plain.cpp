// Reduces several arrays with plain loops: products, operators of bits, and the integer types that
// are seldom reduced. Vector code for them as in reduce.cpp would double the compile time of that
// file.
//
// Each piece of 1,024 elements is combined in scratch memory, one array of accumulators per level
// of the adjacent-pair tree, and then written to every dst.
#include <algorithm>
#include <bit>
#include <cstdint>
#include <type_traits>
#include <vector>

#include "device/cpu/reduce.hpp"
#include "device/element_type.hpp"

namespace atoll_v1::atoll::cpu {
namespace {

constexpr std::size_t piece_elements = 1024;

template <ReduceOp op, class A>
A combine(A a, A b) {
  if constexpr (op == ReduceOp::min) {
    return b < a ? b : a;
  } else if constexpr (op == ReduceOp::max) {
    return a < b ? b : a;
  } else if constexpr (op == ReduceOp::band) {
    return static_cast<A>(a & b);
  } else if constexpr (op == ReduceOp::bor) {
    return static_cast<A>(a | b);
  } else if constexpr (op == ReduceOp::bxor) {
    return static_cast<A>(a ^ b);
  } else if constexpr (std::is_integral_v<A>) {
    // The low bits of a sum or product depend only on the low bits of its operands, so 64-bit
    // unsigned arithmetic, which may wrap around, is right for every integer type.
    const auto x = static_cast<std::uint64_t>(a), y = static_cast<std::uint64_t>(b);
    return static_cast<A>(op == ReduceOp::product ? x * y : x + y);
  } else {
    static_assert(op == ReduceOp::product, "vector code sums floating-point numbers");
    return a * b;
  }
}

// Divides an integer and truncates.
template <class A>
A divided(A sum, int divisor) {
  using Wide = std::conditional_t<std::is_signed_v<A>, std::int64_t, std::uint64_t>;
  return static_cast<A>(static_cast<Wide>(sum) / static_cast<Wide>(divisor));
}

template <class T, ReduceOp op>
class PlainReducer {
  using A = Accumulator<T>;

 public:
  explicit PlainReducer(const Reduction& r)
      : reduction_(r),
        // If the parts form blocks, the tree can have one more level.
        scratch_((static_cast<std::size_t>(std::bit_width(r.parts.size())) + 2) * piece_elements) {}

  void run() {
    for (std::uint64_t first = 0; first < reduction_.count; first += piece_elements) {
      const auto count = std::min<std::size_t>(piece_elements, reduction_.count - first);
      node(0, reduction_.parts.size(), first, count, 0);
      if constexpr (op == ReduceOp::avg) divide(count);
      for (void* dst : reduction_.dsts) {
        T* const to = static_cast<T*>(dst) + first;
        for (std::size_t i = 0; i < count; ++i) to[i] = narrow<T>(scratch_[i]);
      }
    }
  }

 private:
  // Combines the n parts from `lo` on, and writes the accumulators to the scratch array of level
  // `depth`.
  void node(std::size_t lo, std::size_t n, std::uint64_t first, std::size_t count,
            std::size_t depth) {
    A* const mine = scratch_.data() + depth * piece_elements;
    if (n == 1) {
      const T* const part = static_cast<const T*>(reduction_.parts[lo]) + first;
      for (std::size_t i = 0; i < count; ++i) mine[i] = widen(part[i]);
      return;
    }
    const std::size_t left = left_of(n, reduction_.block);
    node(lo, left, first, count, depth);
    node(lo + left, n - left, first, count, depth + 1);
    const A* const right = mine + piece_elements;
    for (std::size_t i = 0; i < count; ++i) mine[i] = combine<op>(mine[i], right[i]);
  }

  void divide(std::size_t count) {
    const int divisor =
        reduction_.divisor > 0 ? reduction_.divisor : static_cast<int>(reduction_.parts.size());
    for (std::size_t i = 0; i < count; ++i) scratch_[i] = divided(scratch_[i], divisor);
  }

  const Reduction& reduction_;
  std::vector<A> scratch_;
};

template <class T>
void reduce_typed(const Reduction& r) {
  if (r.op == ReduceOp::product) return PlainReducer<T, ReduceOp::product>(r).run();
  if constexpr (std::is_integral_v<T>) {
    if (r.op == ReduceOp::band) return PlainReducer<T, ReduceOp::band>(r).run();
    if (r.op == ReduceOp::bor) return PlainReducer<T, ReduceOp::bor>(r).run();
    if (r.op == ReduceOp::bxor) return PlainReducer<T, ReduceOp::bxor>(r).run();
  }
  if constexpr (is_plain(dtype_of<T>)) {
    switch (r.op) {
      case ReduceOp::sum:
        return PlainReducer<T, ReduceOp::sum>(r).run();
      case ReduceOp::avg:
        return PlainReducer<T, ReduceOp::avg>(r).run();
      case ReduceOp::min:
        return PlainReducer<T, ReduceOp::min>(r).run();
      case ReduceOp::max:
        return PlainReducer<T, ReduceOp::max>(r).run();
      case ReduceOp::product:
      case ReduceOp::band:
      case ReduceOp::bor:
      case ReduceOp::bxor:
        return;
    }
  }
}

}  // namespace

void reduce_plain(const Reduction& reduction) {
  with_type(reduction.dtype, [&]<class T>(std::type_identity<T>) { reduce_typed<T>(reduction); });
}

}  // namespace atoll_v1::atoll::cpu
