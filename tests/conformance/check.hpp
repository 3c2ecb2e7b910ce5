// What the checks of the suite share: a count of what held and what did not, buffers of any element
// type with guards around them, and the values that ranks contribute.
#pragma once

#include <atomic>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "atoll/communicator.hpp"

namespace conformance {

using atoll::DType;
using atoll::ReduceOp;

inline constexpr DType all_dtypes[] = {DType::f32, DType::bf16, DType::f16, DType::f64,
                                       DType::i32, DType::i64,  DType::u8};
inline constexpr ReduceOp all_ops[] = {ReduceOp::sum, ReduceOp::avg, ReduceOp::min, ReduceOp::max};

constexpr bool is_16_bit(DType dtype) { return dtype == DType::bf16 || dtype == DType::f16; }

// Of one rank. Prints the first failures as they come.
class Report {
 public:
  explicit Report(int rank) : rank_(rank) {}
  void expect(bool held, const std::string& what);
  std::uint64_t checks() const { return checks_; }
  std::uint64_t failures() const { return failures_; }

 private:
  int rank_;
  std::uint64_t checks_ = 0;
  std::uint64_t failures_ = 0;
};

// Memory that buffers of the suite are cut from, one after the other, each beginning at another
// alignment; starts again at its end, so only the last few pieces are good at a time.
class Arena {
 public:
  explicit Arena(std::span<std::byte> memory) : memory_(memory) {}
  // `bytes` at a multiple of `alignment`, odd if it can be.
  std::byte* take(std::size_t bytes, std::size_t alignment);
  // At its beginning again.
  void restart() { used_ = 0; }

 private:
  std::span<std::byte> memory_;
  std::size_t used_ = 0;
};

// Makes Elements of this thread memory of `device`, as long as it lives; without one they are the
// host's.
class ElementsOn {
 public:
  explicit ElementsOn(const atoll::Device& device);
  ~ElementsOn();
  ElementsOn(const ElementsOn&) = delete;
  ElementsOn& operator=(const ElementsOn&) = delete;
};

// Bytes that the CPU reads and writes, and operations of the device as well. Where the CPU cannot
// reach memory of the device it has a copy, which goes there when somebody asks for the address,
// and is renewed when somebody asks for a value after that: not while an operation is under way.
class Bytes {
 public:
  // In memory of its own, or at `piece`, if that is not NULL.
  Bytes(std::size_t count, std::byte* piece);
  Bytes(const Bytes& other);  // its values, in memory of its own
  Bytes(Bytes&&) noexcept = default;
  Bytes& operator=(Bytes&&) noexcept = default;

  std::byte* on_device();  // to be written to, perhaps
  const std::byte* on_device() const;
  // Called for every element: nothing but a look at a member where there is no copy.
  std::byte* here() { return shared_ ? shared_ : copy(); }
  const std::byte* here() const { return shared_ ? shared_ : copy(); }
  std::size_t size() const { return count_; }

 private:
  void share_or_copy();
  std::byte* copy();
  const std::byte* copy() const;
  void push() const;
  void pull() const;

  std::size_t count_;
  std::byte* piece_;             // of the device
  std::byte* shared_ = nullptr;  // what both reach; NULL where there is a copy
  mutable atoll::Buffer own_;    // of the device, where there is no piece and it is a GPU's
  mutable std::vector<std::byte> here_;
  mutable bool is_new_here_ = true, is_new_there_ = false;
};

// `count` elements between two guards that nobody may write to. Values go in and out as double,
// which holds everything the suite uses exactly.
class Elements {
 public:
  // In memory of its own, or in a piece of the arena, if there is one.
  Elements(DType dtype, std::uint64_t count, Arena* arena = nullptr);
  DType dtype() const { return dtype_; }
  std::uint64_t count() const { return count_; }
  atoll::View view();
  atoll::ConstView view() const;
  double get(std::uint64_t i) const;
  void set(std::uint64_t i, double value);
  bool guards_intact() const;

  template <class Value>  // double value(std::uint64_t i)
  Elements& fill(const Value& value) {
    for (std::uint64_t i = 0; i < count_; ++i) set(i, value(i));
    return *this;
  }
  // The first element that is not value(i), or further from it than `slack`, and what it is; ""
  // when all are right.
  template <class Value>
  std::string difference(const Value& value, double slack = 0) const {
    for (std::uint64_t i = 0; i < count_; ++i) {
      const double expected = value(i);
      const double got = get(i);
      if (got != expected && !(std::abs(got - expected) <= slack)) return describe(i, expected);
    }
    return guards_intact() ? "" : "wrote outside of the buffer";
  }

 private:
  std::string describe(std::uint64_t i, double expected) const;

  DType dtype_;
  std::uint64_t count_;
  Bytes bytes_;  // with the guards
};

// What `rank` contributes at index i: small integers, so that sums are exact in every type but the
// 16-bit ones, where they need one rounding and would show a second one. Sums of u8 wrap, except
// those of averages, where the sum must fit.
double contribution(DType dtype, ReduceOp op, int rank, std::uint64_t i);
// What a reduction over `ranks` ranks must give at index i.
double reduced(DType dtype, ReduceOp op, int ranks, std::uint64_t i);
// The same of sum and avg with factors by rank, which must leave sums of such products exact in the
// type that sums.
enum class Products {
  exact,
  rounded  // to the type of the elements
};
double reduced(DType dtype, ReduceOp op, std::span<const double> factors, Products products,
               std::uint64_t i);
// Any element of the type, for operations that only move it.
double token(DType dtype, int rank, std::uint64_t i);

// `value` rounded once to the type, to nearest even; computed apart from the library's conversions.
double rounded(DType dtype, double value);

// 0, 1, n - 1, n, n + 1 and some primes: where an algorithm that cuts counts by n goes wrong.
std::vector<std::uint64_t> counts_around(int n);
inline constexpr std::uint64_t large_count = (1u << 20) + 7;
// A little more than 1 MiB.
constexpr std::uint64_t mebibyte_of(DType dtype) { return (1u << 20) / atoll::size_of(dtype) + 5; }

constexpr std::uint64_t unsigned_of(int value) { return static_cast<std::uint64_t>(value); }

// "all_reduce sum bf16 x 7 in place", for messages.
enum class Place {
  in,
  out
};
// In place on some ranks: none of them knows where the others' data are.
constexpr Place place_by_rank(int rank) { return rank % 2 == 0 ? Place::in : Place::out; }
constexpr std::string_view name(Place place) { return place == Place::in ? " in place" : ""; }
std::string label(std::string_view operation, DType dtype, std::uint64_t count);
std::string label(std::string_view operation, ReduceOp op, DType dtype, std::uint64_t count,
                  Place place);

}  // namespace conformance
