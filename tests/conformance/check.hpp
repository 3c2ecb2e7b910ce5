// Utilities that all checks share: a counter of passed and failed expectations, buffers of any
// element type with guard bytes around them, and the values that ranks contribute.
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

inline constexpr DType all_dtypes[] = {DType::f32,     DType::bf16,   DType::f16,   DType::f64,
                                       DType::i32,     DType::i64,    DType::u8,    DType::i8,
                                       DType::u16,     DType::u32,    DType::u64,   DType::i16,
                                       DType::boolean, DType::f8e4m3, DType::f8e5m2};
inline constexpr std::span reducible_dtypes = std::span(all_dtypes).first<13>();
inline constexpr ReduceOp all_ops[] = {ReduceOp::sum, ReduceOp::avg,     ReduceOp::min,
                                       ReduceOp::max, ReduceOp::product, ReduceOp::band,
                                       ReduceOp::bor, ReduceOp::bxor};

constexpr bool is_16_bit(DType dtype) { return dtype == DType::bf16 || dtype == DType::f16; }

// Counts the checked expectations of one rank, and prints the first few that fail.
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

// Cuts buffers from one block of memory, one after another and at varying alignments. When the
// block is used up, the arena starts again at its beginning, so only the most recent buffers are
// valid.
class Arena {
 public:
  explicit Arena(std::span<std::byte> memory) : memory_(memory) {}
  // Returns `bytes` bytes at an odd multiple of `alignment`.
  std::byte* take(std::size_t bytes, std::size_t alignment);
  void restart() { used_ = 0; }

 private:
  std::span<std::byte> memory_;
  std::size_t used_ = 0;
};

// While an ElementsOn exists, Elements that its thread creates are allocated on `device` instead of
// the host.
class ElementsOn {
 public:
  explicit ElementsOn(const atoll::Device& device);
  ~ElementsOn();
  ElementsOn(const ElementsOn&) = delete;
  ElementsOn& operator=(const ElementsOn&) = delete;
};

// Memory that both the CPU and operations of a device can use. If the CPU cannot access device
// memory, Bytes keeps a copy on the host: on_device() sends that copy to the device, and the next
// read of a value fetches the data back. Values must not be read while an operation is in flight.
class Bytes {
 public:
  // Uses the memory at `piece`, or allocates memory if `piece` is null.
  Bytes(std::size_t count, std::byte* piece);
  Bytes(const Bytes& other);  // allocates memory and copies the values
  Bytes(Bytes&&) noexcept = default;
  Bytes& operator=(Bytes&&) noexcept = default;

  std::byte* on_device();  // returns memory that an operation may read and write
  const std::byte* on_device() const;
  // Returns the memory in which the CPU reads and writes the values. Tests call this for every
  // element, so it must be fast: if CPU and device share memory, it only reads a member.
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
  std::byte* piece_;  // memory that the caller of the constructor passed; null if it passed none
  // Memory that both the CPU and the device can access; null if the device has separate memory.
  std::byte* shared_ = nullptr;
  // Memory that this object allocated; empty if the caller gave the memory.
  mutable atoll::Buffer own_;
  mutable std::vector<std::byte> here_;
  mutable bool is_new_here_ = true, is_new_there_ = false;
};

// An array of `count` elements between two guards that no operation may overwrite. Values are
// passed as double, which represents every value of the suite exactly.
class Elements {
 public:
  // Takes memory from `arena`, or allocates memory if `arena` is null.
  Elements(DType dtype, std::uint64_t count, Arena* arena = nullptr);
  DType dtype() const { return dtype_; }
  std::uint64_t count() const { return count_; }
  atoll::View view();
  atoll::ConstView view() const;
  double get(std::uint64_t i) const;
  void set(std::uint64_t i, double value);
  bool guards_intact() const;

  template <class Value>  // callable as double value(std::uint64_t i)
  Elements& fill(const Value& value) {
    for (std::uint64_t i = 0; i < count_; ++i) set(i, value(i));
    return *this;
  }
  // Describes the first element that differs from value(i) by more than `slack`, or a damaged
  // guard. Returns "" if all elements and guards are right.
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
  Bytes bytes_;  // memory of the elements and their guards
};

// Returns the value that `rank` contributes at index i. All contributions are small integers, so
// sums and products are exact except for sums of the 16-bit types. The expected 16-bit sum is
// rounded once, so a second rounding gives a wrong result. Sums of 8-bit integers wrap around,
// except in averages, for which the values are small enough.
double contribution(DType dtype, ReduceOp op, int rank, std::uint64_t i);
// Returns the correct result of a reduction over `ranks` ranks at index i.
double reduced(DType dtype, ReduceOp op, int ranks, std::uint64_t i);
// How the reference result of a sum with factors treats the product of a contribution and its
// factor.
enum class Products {
  exact,
  rounded  // each product is rounded to the element type before the sum
};
double reduced(DType dtype, ReduceOp op, std::span<const double> factors, Products products,
               std::uint64_t i);
// Returns an arbitrary value of the type, for operations that only move data.
double token(DType dtype, int rank, std::uint64_t i);

// Rounds `value` once to the type, to nearest even. Does not use the conversions of the library,
// which the suite checks.
double rounded(DType dtype, double value);

// Returns true for the types and the op for which the suite tries fewer counts, to save time: the
// code that divides data among ranks is the same for all types of a size, and for all ops.
constexpr bool is_rare(DType dtype, ReduceOp op = ReduceOp::sum) {
  return dtype > DType::u8 || op >= ReduceOp::product;
}
bool exists(ReduceOp op, DType dtype);
// Returns 0, 1, n - 1, n, n + 1 and some primes. Code that divides a count by n tends to fail at
// these counts.
std::vector<std::uint64_t> counts_around(int n, DType dtype);
// The same for a reduction; empty if the op does not exist for the dtype. With pairwise_grid, an
// eighth of these counts, so that each pair of a dtype, an op and a count is tested, but not each
// triple.
std::vector<std::uint64_t> counts_around(int n, DType dtype, ReduceOp op);
inline bool pairwise_grid = false;  // set before the first check
inline constexpr std::uint64_t large_count = (1u << 20) + 7;
// Returns the number of elements that occupy a little more than 1 MiB.
constexpr std::uint64_t mebibyte_of(DType dtype) { return (1u << 20) / atoll::size_of(dtype) + 5; }

constexpr std::uint64_t unsigned_of(int value) { return static_cast<std::uint64_t>(value); }

// Whether an operation runs in place. label() adds this to the name of a check, as in "all_reduce
// sum bf16 x 7 in place".
enum class Place {
  in,
  out
};
// Lets even ranks run in place and odd ranks out of place, because ranks may choose independently.
constexpr Place place_by_rank(int rank) { return rank % 2 == 0 ? Place::in : Place::out; }
constexpr std::string_view name(Place place) { return place == Place::in ? " in place" : ""; }
std::string label(std::string_view operation, DType dtype, std::uint64_t count);
std::string label(std::string_view operation, ReduceOp op, DType dtype, std::uint64_t count,
                  Place place);

}  // namespace conformance
