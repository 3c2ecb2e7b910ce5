// Reduces several arrays in one pass. Highway compiles this file once per instruction set and
// chooses the best version for the processor at the first call.
//
// Vocabulary: a part is one of the arrays that are combined. The accumulator is the type of the
// sum: f32 for the 16-bit types, else the type of the elements. A node is a subtree of the
// adjacent-pair tree over the parts.
//
// A small node (1, 2, 4 or 8 parts, for usual sums also 3) is combined in registers, vector by
// vector. A larger node combines the results of its two halves, 1,024 elements at a time, in
// scratch memory that stays in the first-level cache. Every element is read once from each part and
// written once to each dst. If the parts form blocks, the tree over the blocks has one tree per
// block as its leaves.
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

#include "core/assert.hpp"
#include "device/cpu/reduce.hpp"
#include "device/element_type.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "device/cpu/reduce.cpp"
#include <hwy/cache_control.h>
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace atoll_v1::atoll::cpu {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// Elements that a large node combines at a time; several such pieces fit the first-level cache.
constexpr std::size_t block_elements = 1024;
constexpr std::size_t line = 64;

// Converts elements of T to vectors of accumulators and back.
template <class T>
struct Lanes {
  using Accumulator = T;
  using Tag = hn::ScalableTag<T>;
  using Vector = hn::Vec<Tag>;
  static std::size_t count() { return hn::Lanes(Tag()); }  // number of elements in a Vector
  static HWY_INLINE Vector load(const T* from) { return hn::LoadU(Tag(), from); }
  static HWY_INLINE Vector pack(Vector v) { return v; }  // no conversion, because sums have type T
  static HWY_INLINE void store(Vector v, T* to) { hn::StoreU(v, Tag(), to); }
  static HWY_INLINE void stream(Vector v, T* to) { hn::Stream(v, Tag(), to); }
  template <class Function, class... Vectors>
  static HWY_INLINE Vector apply(const Function& f, Vectors... v) {
    return f(v...);
  }
  // Accumulators in scratch memory have the same order as in the vector registers.
  static HWY_INLINE Vector load_sums(const T* from) { return load(from); }
  static HWY_INLINE void store_sums(Vector v, T* to) { store(v, to); }
};

// Two neighbouring bf16 elements share a 32-bit word. The lower and upper halves of the words are
// summed in two separate vectors, which needs no shuffles.
template <>
struct Lanes<bfloat16> {
  using Accumulator = float;
  using Tag = hn::ScalableTag<float>;
  using Words = hn::RebindToUnsigned<Tag>;
  struct Vector {
    hn::Vec<Tag> lower, upper;
  };
  static std::size_t count() { return 2 * hn::Lanes(Tag()); }
  static HWY_INLINE Vector load(const bfloat16* from) {
    const Words d;
    const auto words = hn::LoadU(d, reinterpret_cast<const std::uint32_t*>(from));
    return {hn::BitCast(Tag(), hn::ShiftLeft<16>(words)),
            hn::BitCast(Tag(), hn::And(words, hn::Set(d, 0xffff0000u)))};
  }
  // Rounds to nearest even; the result is in the upper half of each word. Any NaN here came from
  // bf16 or from arithmetic, so its lower half is zero and rounding does not change it.
  static HWY_INLINE hn::Vec<Words> rounded(hn::Vec<Tag> v) {
    const Words d;
    const auto raw = hn::BitCast(d, v);
    const auto odd = hn::And(hn::ShiftRight<16>(raw), hn::Set(d, 1));
    return hn::Add(raw, hn::Add(odd, hn::Set(d, 0x7fff)));
  }
  static HWY_INLINE hn::Vec<Words> pack(Vector v) {
    const Words d;
    return hn::Or(hn::ShiftRight<16>(rounded(v.lower)),
                  hn::And(rounded(v.upper), hn::Set(d, 0xffff0000u)));
  }
  static HWY_INLINE void store(hn::Vec<Words> packed, bfloat16* to) {
    hn::StoreU(packed, Words(), reinterpret_cast<std::uint32_t*>(to));
  }
  static HWY_INLINE void stream(hn::Vec<Words> packed, bfloat16* to) {
    hn::Stream(packed, Words(), reinterpret_cast<std::uint32_t*>(to));
  }
  template <class Function, class... Vectors>
  static HWY_INLINE Vector apply(const Function& f, Vectors... v) {
    return {f(v.lower...), f(v.upper...)};
  }
  static HWY_INLINE Vector load_sums(const float* from) {
    return {hn::LoadU(Tag(), from), hn::LoadU(Tag(), from + hn::Lanes(Tag()))};
  }
  static HWY_INLINE void store_sums(Vector v, float* to) {
    hn::StoreU(v.lower, Tag(), to);
    hn::StoreU(v.upper, Tag(), to + hn::Lanes(Tag()));
  }
};

template <>
struct Lanes<float16> : Lanes<float> {
  using Half = hn::Rebind<hwy::float16_t, Tag>;
  static HWY_INLINE Vector load(const float16* from) {
    return hn::PromoteTo(Tag(), hn::LoadU(Half(), reinterpret_cast<const hwy::float16_t*>(from)));
  }
  static HWY_INLINE hn::Vec<Half> pack(Vector v) { return hn::DemoteTo(Half(), v); }
  static HWY_INLINE void store(hn::Vec<Half> packed, float16* to) {
    hn::StoreU(packed, Half(), reinterpret_cast<hwy::float16_t*>(to));
  }
  static HWY_INLINE void stream(hn::Vec<Half> packed, float16* to) { store(packed, to); }
};

// Gradients are sums of f32 and bf16, so these sums get a loop for each usual number of parts and
// dsts. Other reductions share fewer loops, and so do all reductions for the baseline instruction
// set of x86, which few processors still need. This keeps the compile time of this file low.
constexpr bool is_baseline =
    HWY_ARCH_X86 && HWY_TARGET > HWY_AVX2;  // better instruction sets have smaller numbers
template <class T, ReduceOp op>
constexpr bool is_usual = !is_baseline && op == ReduceOp::sum &&
                          (std::is_same_v<T, float> || std::is_same_v<T, bfloat16>);

// Whether a node of this many parts is combined in registers.
constexpr bool in_registers(std::size_t parts, bool usual) {
  return parts <= 2 || (usual && parts == 3) || (!is_baseline && (parts == 4 || parts == 8));
}

template <class T, ReduceOp op>
HWY_INLINE typename Lanes<T>::Vector combine(typename Lanes<T>::Vector left,
                                             typename Lanes<T>::Vector right) {
  return Lanes<T>::apply(
      [](auto a, auto b) HWY_ATTR {
        if constexpr (op == ReduceOp::min) {
          return hn::IfThenElse(hn::Lt(b, a), b, a);
        } else if constexpr (op == ReduceOp::max) {
          return hn::IfThenElse(hn::Lt(a, b), b, a);
        } else {
          return hn::Add(a, b);  // integers wrap around on overflow
        }
      },
      left, right);
}

// Loads the parts of a small node (at most 8 arrays), from element `first` on.
template <class T, bool scaled, std::size_t n>
struct Inputs {
  using A = typename Lanes<T>::Accumulator;

  Inputs(const T* const* parts, const double* factors, std::size_t first) {
    for (std::size_t i = 0; i < n; ++i) {
      from[i] = parts[i] + first;
      if constexpr (scaled) {
        // Every NaN becomes the quiet NaN, whose lower half is zero, as rounded() requires.
        scale[i] = std::isnan(factors[i]) ? std::numeric_limits<A>::quiet_NaN()
                                          : static_cast<A>(factors[i]);
      }
    }
  }
  HWY_INLINE typename Lanes<T>::Vector load(std::size_t part, std::size_t at) const {
    const auto v = Lanes<T>::load(from[part] + at);
    if constexpr (scaled) {
      const auto by = hn::Set(typename Lanes<T>::Tag(), scale[part]);
      return Lanes<T>::apply([by](auto x) HWY_ATTR { return hn::Mul(x, by); }, v);
    } else {
      return v;
    }
  }

  std::array<const T*, n> from;
  std::array<A, scaled ? n : 0> scale;
};

// Combines one vector of each of the parts [lo, lo + n) in an unrolled tree.
template <class T, ReduceOp op, std::size_t lo, std::size_t n, class In>
HWY_INLINE typename Lanes<T>::Vector node(const In& in, std::size_t at) {
  if constexpr (n == 1) {
    return in.load(lo, at);
  } else {
    constexpr std::size_t left = std::bit_floor(n - 1);
    return combine<T, op>(node<T, op, lo, left>(in, at), node<T, op, lo + left, n - left>(in, at));
  }
}

// Destination of finished sums: they are divided by `divisor`, rounded and stored to every dst.
template <class T>
struct Output {
  void* const* dsts;
  std::size_t count;  // number of destinations (dsts)
  std::size_t first;  // index of the first element to write
  int divisor;        // divides the sums of an average; 1 means no division
  Stores stores;
};

enum class Choice {
  cached,
  streaming,
  at_run_time
};

// Stores the vectors of a loop to the destinations (dsts). If `fixed` is not 0, there are `fixed`
// dsts, and their addresses stay in registers; otherwise there may be any number of dsts.
template <class T, Choice choice, std::size_t fixed>
struct Sink {
  explicit Sink(const Output<T>& out_) : out(out_) {
    for (std::size_t d = 0; d < fixed; ++d) to[d] = static_cast<T*>(out.dsts[d]) + out.first;
  }
  HWY_INLINE typename Lanes<T>::Vector divide(typename Lanes<T>::Vector v) const {
    using A = typename Lanes<T>::Accumulator;
    if constexpr (std::is_floating_point_v<A>) {
      if (out.divisor != 1) {
        const auto by = hn::Set(typename Lanes<T>::Tag(), static_cast<A>(out.divisor));
        return Lanes<T>::apply([by](auto x) HWY_ATTR { return hn::Div(x, by); }, v);
      }
    }
    return v;
  }
  template <class Packed>
  HWY_INLINE void store(Packed packed, T* where) const {
    const bool streams = choice == Choice::at_run_time ? out.stores == Stores::streaming
                                                       : choice == Choice::streaming;
    if (streams) {
      Lanes<T>::stream(packed, where);
    } else {
      Lanes<T>::store(packed, where);
    }
  }
  HWY_INLINE void put(typename Lanes<T>::Vector v, std::size_t at) const {
    const auto packed = Lanes<T>::pack(divide(v));
    if constexpr (fixed > 0) {
      for (std::size_t d = 0; d < fixed; ++d) store(packed, to[d] + at);
    } else {
      for (std::size_t d = 0; d < out.count; ++d) {
        store(packed, static_cast<T*>(out.dsts[d]) + out.first + at);
      }
    }
  }

  Output<T> out;
  std::array<T*, fixed> to;
};

// Calls body(sink) with the sink for `out`. Sums that are `usual` (f32 and bf16) have specialised
// sinks for 1, 2 and 4 dsts.
template <bool usual, class T, class Body>
void with_sink(const Output<T>& out, const Body& body) {
  const auto with_fixed = [&]<Choice choice>() {
    if (out.count == 1) return body(Sink<T, choice, 1>(out));
    if (out.count == 2) return body(Sink<T, choice, 2>(out));
    body(Sink<T, choice, 4>(out));
  };
  if constexpr (usual) {
    if (out.count == 1 || out.count == 2 || out.count == 4) {
      return out.stores == Stores::streaming ? with_fixed.template operator()<Choice::streaming>()
                                             : with_fixed.template operator()<Choice::cached>();
    }
  }
  body(Sink<T, Choice::at_run_time, 0>(out));
}

// Stores the accumulators of an inner node of the tree to scratch memory, without rounding.
template <class T>
struct Partial {
  typename Lanes<T>::Accumulator* to;
  HWY_INLINE void put(typename Lanes<T>::Vector v, std::size_t at) const {
    Lanes<T>::store_sums(v, to + at);
  }
};

// Combines `count` elements of each part, from element `first` on. `count` must be a multiple of
// the vector length.
template <class T, ReduceOp op, bool scaled, std::size_t n, class To>
void node_loop(const T* const* parts, const double* factors, std::size_t first, std::size_t count,
               const To& sink) {
  const Inputs<T, scaled, n> in(parts, factors, first);
  const std::size_t lanes = Lanes<T>::count();
  for (std::size_t at = 0; at < count; at += lanes) sink.put(node<T, op, 0, n>(in, at), at);
}

// Executes one reduction with any number of parts and elements.
template <class T, ReduceOp op, bool scaled>
class Reducer {
  using A = typename Lanes<T>::Accumulator;

 public:
  explicit Reducer(const Reduction& r)
      : reduction_(r), parts_(reinterpret_cast<const T* const*>(r.parts.data())) {
    // If the parts form blocks, the reduction tree can have one more level.
    const auto levels = static_cast<std::size_t>(std::bit_width(r.parts.size())) + 1;
    if (!is_small(r.parts.size())) {
      scratch_ = std::make_unique_for_overwrite<A[]>((levels + 1) * block_elements);
    }
  }

  void run() {
    const std::size_t lanes = Lanes<T>::count();
    const std::size_t count = reduction_.count;
    std::size_t at = 0;
    const bool streaming = reduction_.stores == Stores::streaming && aligned_alike();
    if (streaming && head() > 0) at = odd_piece(0, head());
    const std::size_t whole = (count - at) / lanes * lanes;
    const std::span dsts = reduction_.dsts;
    const Stores stores = streaming ? Stores::streaming : Stores::cached;
    combine_into({dsts.data(), dsts.size(), at, divisor(), stores}, at, whole);
    if (streaming) hwy::FlushStream();
    at += whole;
    while (at < count) at += odd_piece(at, std::min(lanes, count - at));
  }

 private:
  static constexpr bool usual = is_usual<T, op>;
  static constexpr std::size_t few = 8;  // a tree over this many parts needs no allocation

  int divisor() const {
    if (reduction_.op != ReduceOp::avg) return 1;
    return reduction_.divisor > 0 ? reduction_.divisor : static_cast<int>(reduction_.parts.size());
  }

  static std::size_t misalignment(const void* dst) {
    return reinterpret_cast<std::uintptr_t>(dst) % line;
  }
  // Whether all dsts are aligned for non-temporal stores after the same number of elements.
  bool aligned_alike() const {
    const std::size_t first = misalignment(reduction_.dsts[0]);
    return first % sizeof(T) == 0 && std::ranges::all_of(reduction_.dsts, [&](const void* dst) {
             return misalignment(dst) == first;
           });
  }
  // Number of elements before the dsts are aligned to a cache line.
  std::size_t head() const {
    const std::size_t bytes = (line - misalignment(reduction_.dsts[0])) % line;
    return std::min<std::size_t>(bytes / sizeof(T), reduction_.count);
  }

  // Whether n parts form a single tree that is combined in registers.
  bool is_small(std::size_t n) const {
    return in_registers(n, usual) && (reduction_.block == 0 || n <= reduction_.block);
  }

  // Combines, in registers, the n parts that begin with part `lo`; requires in_registers(n).
  template <class To>
  void small_node(std::size_t lo, std::size_t n, std::size_t first, std::size_t count,
                  const To& sink) const {
    const T* const* parts = parts_ + lo;
    const double* factors = scaled ? reduction_.factors + lo : nullptr;
    if (n == 1) return node_loop<T, op, scaled, 1>(parts, factors, first, count, sink);
    if (n == 2) return node_loop<T, op, scaled, 2>(parts, factors, first, count, sink);
    if constexpr (usual) {
      if (n == 3) return node_loop<T, op, scaled, 3>(parts, factors, first, count, sink);
    }
    if constexpr (!is_baseline) {
      if (n == 4) return node_loop<T, op, scaled, 4>(parts, factors, first, count, sink);
      node_loop<T, op, scaled, 8>(parts, factors, first, count, sink);
    }
  }

  // Combines whole vectors of all parts, from element `first` on.
  void combine_into(const Output<T>& out, std::size_t first, std::size_t count) {
    const std::size_t n = reduction_.parts.size();
    if (is_small(n)) {
      with_sink<usual && !scaled>(out,
                                  [&](const auto& sink) { small_node(0, n, first, count, sink); });
    } else {
      const Sink<T, Choice::at_run_time, 0> sink(out);
      for (std::size_t at = 0; at < count; at += block_elements) {
        const std::size_t piece = std::min(block_elements, count - at);
        large_node(0, n, first + at, piece, 0);
        for (std::size_t i = 0; i < piece; i += Lanes<T>::count()) {
          sink.put(Lanes<T>::load_sums(scratch_.get() + i), at + i);
        }
      }
    }
    divide_integers(out, count);
  }

  // Combines the parts of a node of the tree, and writes the accumulators to the scratch block of
  // level `depth`.
  void large_node(std::size_t lo, std::size_t n, std::size_t first, std::size_t count,
                  std::size_t depth) {
    A* mine = scratch_.get() + depth * block_elements;
    if (is_small(n)) return small_node(lo, n, first, count, Partial<T>{mine});
    const std::size_t left = left_of(n, reduction_.block);
    large_node(lo, left, first, count, depth);
    large_node(lo + left, n - left, first, count, depth + 1);
    const A* right = mine + block_elements;
    for (std::size_t i = 0; i < count; i += Lanes<T>::count()) {
      Lanes<T>::store_sums(
          combine<T, op>(Lanes<T>::load_sums(mine + i), Lanes<T>::load_sums(right + i)), mine + i);
    }
  }

  // Integer averages truncate. Vector instructions cannot divide integers.
  static void divide_integers(const Output<T>& out, std::size_t count) {
    if constexpr (std::is_integral_v<T>) {
      if (out.divisor == 1) return;
      for (std::size_t d = 0; d < out.count; ++d) {
        T* to = static_cast<T*>(out.dsts[d]) + out.first;
        for (std::size_t i = 0; i < count; ++i) {
          to[i] = static_cast<T>(static_cast<std::int64_t>(to[i]) / out.divisor);
        }
      }
    }
  }

  // Reduces fewer elements than a vector has, with padded copies of the parts.
  std::size_t odd_piece(std::size_t first, std::size_t count) {
    constexpr std::size_t most = std::max<std::size_t>(line, HWY_MAX_BYTES) / sizeof(T);
    using Copy = std::array<T, most>;
    const std::size_t n = reduction_.parts.size();
    const std::size_t lanes = Lanes<T>::count();
    const std::size_t padded = (count + lanes - 1) / lanes * lanes;
    std::array<Copy, few> few_copies;
    std::array<const T*, few> few_pointers;
    std::vector<Copy> many_copies(n > few ? n : 0);
    std::vector<const T*> many_pointers(n > few ? n : 0);
    Copy* copies = n > few ? many_copies.data() : few_copies.data();
    const T** pointers = n > few ? many_pointers.data() : few_pointers.data();
    for (std::size_t p = 0; p < n; ++p) {
      copies[p].fill(T{});
      std::memcpy(copies[p].data(), parts_[p] + first, count * sizeof(T));
      pointers[p] = copies[p].data();
    }
    Copy out{};
    const T* const* whole = std::exchange(parts_, pointers);
    void* to = out.data();
    combine_into({&to, 1, 0, divisor(), Stores::cached}, 0, padded);
    parts_ = whole;
    for (void* dst : reduction_.dsts) {
      std::memcpy(static_cast<T*>(dst) + first, out.data(), count * sizeof(T));
    }
    return count;
  }

  const Reduction& reduction_;
  const T* const* parts_;
  std::unique_ptr<A[]> scratch_;  // one scratch block per level of the tree
};

template <class T>
void reduce_typed(const Reduction& r) {
  switch (r.op) {
    case ReduceOp::min:
      return Reducer<T, ReduceOp::min, false>(r).run();
    case ReduceOp::max:
      return Reducer<T, ReduceOp::max, false>(r).run();
    case ReduceOp::sum:
    case ReduceOp::avg:
      if constexpr (!std::is_integral_v<T>) {
        if (r.factors) return Reducer<T, ReduceOp::sum, true>(r).run();
      }
      return Reducer<T, ReduceOp::sum, false>(r).run();
    case ReduceOp::product:
    case ReduceOp::band:
    case ReduceOp::bor:
    case ReduceOp::bxor:
      return;  // reduce_into() calls reduce_plain() instead
  }
}

void reduce_any(const Reduction& r) {
  with_type(r.dtype, [&]<class T>(std::type_identity<T>) {
    if constexpr (!is_plain(dtype_of<T>)) reduce_typed<T>(r);
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace atoll_v1::atoll::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace atoll_v1::atoll::cpu {

HWY_EXPORT(reduce_any);

void reduce_into(const Reduction& reduction) {
  ATOLL_ASSERT(!reduction.parts.empty() && !reduction.dsts.empty(), "reduce: no parts");
  ATOLL_ASSERT(reduction.block == 0 || reduction.parts.size() % reduction.block == 0,
               "reduce: the number of parts must be a multiple of the block");
  if (reduction.op >= ReduceOp::product || is_plain(reduction.dtype)) {
    return reduce_plain(reduction);
  }
  HWY_DYNAMIC_DISPATCH(reduce_any)(reduction);
}

}  // namespace atoll_v1::atoll::cpu
#endif  // HWY_ONCE
