#include "check.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <iterator>
#include <optional>
#include <set>
#include <stdexcept>
#include <type_traits>
#include <utility>

namespace conformance {
namespace {

constexpr std::size_t guard_bytes = 256;
constexpr std::byte guard_value{0xa5};
constexpr std::uint64_t printed_failures = 20;

// Mixes rank and index, so that neighbouring elements differ, and so do elements of different ranks
// at the same index.
std::uint64_t spread(int rank, std::uint64_t i) {
  return i * 7 + (i >> 5) * 3 + static_cast<std::uint64_t>(rank) * 31;
}

// Calls `use` with a value of the C++ type of `dtype`.
template <class Use>
auto with_type(DType dtype, const Use& use) {
  switch (dtype) {
    case DType::f32:
      return use(float{});
    case DType::f64:
      return use(double{});
    case DType::i32:
      return use(std::int32_t{});
    case DType::i64:
      return use(std::int64_t{});
    case DType::i8:
      return use(std::int8_t{});
    case DType::u16:
      return use(std::uint16_t{});
    case DType::u32:
      return use(std::uint32_t{});
    case DType::u64:
      return use(std::uint64_t{});
    case DType::i16:
      return use(std::int16_t{});
    case DType::bf16:
      return use(atoll::bfloat16{});
    case DType::f16:
      return use(atoll::float16{});
    case DType::u8:
    case DType::boolean:
    case DType::f8e4m3:  // operations only move the 8-bit floating-point types, as bit patterns
    case DType::f8e5m2:
      break;
  }
  return use(std::uint8_t{});
}

template <class T>
double number_of(T value) {
  if constexpr (std::is_arithmetic_v<T>)
    return static_cast<double>(value);
  else
    return static_cast<double>(atoll::to_float(value));
}

template <class T>
T value_of(double number) {
  if constexpr (std::is_arithmetic_v<T>)
    return static_cast<T>(number);
  else if constexpr (std::is_same_v<T, atoll::float16>)
    return atoll::to_float16(static_cast<float>(number));
  else
    return atoll::to_bfloat16(static_cast<float>(number));
}

// Rounds `value` to `digits` significant bits. Handles normal numbers only, because the suite uses
// no subnormal ones.
double round_to_digits(double value, int digits) {
  int exponent = 0;
  const double fraction = std::frexp(value, &exponent);
  return std::ldexp(std::nearbyint(std::ldexp(fraction, digits)), exponent - digits);
}

std::size_t with_guards(DType dtype, std::uint64_t count) {
  return count * atoll::size_of(dtype) + 2 * guard_bytes;
}

bool is_integer(DType dtype) { return atoll_abi::is_integer(static_cast<std::int32_t>(dtype)); }

}  // namespace

void Report::expect(bool held, const std::string& what) {
  ++checks_;
  if (held) return;
  if (++failures_ <= printed_failures) {
    fmt::print(stderr, "rank {}: FAILED {}\n", rank_, what);
    std::fflush(stderr);
  }
}

std::byte* Arena::take(std::size_t bytes, std::size_t alignment) {
  const auto place = [&] {
    const std::size_t multiple = (used_ + alignment - 1) / alignment;
    return (multiple | 1u) * alignment;
  };
  if (place() + bytes > memory_.size()) used_ = 0;
  const std::size_t first = place();
  if (first + bytes > memory_.size()) throw std::length_error("the arena is too small");
  used_ = first + bytes;
  return memory_.data() + first;
}

namespace {

// The device on which Elements of this thread are allocated, and a stream that is used only to copy
// their values.
struct Copies {
  atoll::Device device;
  atoll::Stream stream;
};
// Device and stream for copies of values. Empty if the CPU can access the memory directly.
thread_local std::optional<Copies> copies;

}  // namespace

ElementsOn::ElementsOn(const atoll::Device& device) {
  if (device.kind() == atoll::DeviceKind::cpu) return;
  copies.emplace(Copies{device, device.stream({.name = "elements"})});
}

ElementsOn::~ElementsOn() { copies.reset(); }

Bytes::Bytes(std::size_t count, std::byte* piece) : count_(count), piece_(piece) {
  if (copies || !piece_) here_.resize(count_);
  share_or_copy();
}

Bytes::Bytes(const Bytes& other)
    : count_(other.count_), piece_(nullptr), here_(other.here(), other.here() + other.count_) {
  share_or_copy();
}

void Bytes::share_or_copy() {
  if (!copies) shared_ = piece_ ? piece_ : here_.data();
}

std::byte* Bytes::on_device() {
  if (shared_) return shared_;
  push();
  is_new_there_ = true;
  return piece_ ? piece_ : static_cast<std::byte*>(own_.data());
}

const std::byte* Bytes::on_device() const {
  if (shared_) return shared_;
  push();
  return piece_ ? piece_ : static_cast<const std::byte*>(own_.data());
}

std::byte* Bytes::copy() {
  pull();
  is_new_here_ = true;
  return here_.data();
}

const std::byte* Bytes::copy() const {
  pull();
  return here_.data();
}

void Bytes::push() const {
  if (!piece_ && own_.bytes() == 0) own_ = copies->device.allocate(count_);
  if (!std::exchange(is_new_here_, false)) return;
  copies->stream.copy(piece_ ? piece_ : own_.data(), here_.data(), count_);
  copies->stream.synchronize();
}

void Bytes::pull() const {
  if (!std::exchange(is_new_there_, false)) return;
  copies->stream.copy(here_.data(), piece_ ? piece_ : own_.data(), count_);
  copies->stream.synchronize();
}

Elements::Elements(DType dtype, std::uint64_t count, Arena* arena)
    : dtype_(dtype), count_(count), bytes_(with_guards(dtype, count), [&] {
        return arena ? arena->take(with_guards(dtype, count), atoll::size_of(dtype)) : nullptr;
      }()) {
  std::fill_n(bytes_.here(), bytes_.size(), guard_value);
}

atoll::View Elements::view() { return {bytes_.on_device() + guard_bytes, count_, dtype_}; }

atoll::ConstView Elements::view() const {
  return {bytes_.on_device() + guard_bytes, count_, dtype_};
}

double Elements::get(std::uint64_t i) const {
  const std::byte* at = bytes_.here() + guard_bytes + i * atoll::size_of(dtype_);
  return with_type(dtype_, [&](auto value) {
    std::memcpy(&value, at, sizeof value);
    return number_of(value);
  });
}

void Elements::set(std::uint64_t i, double number) {
  std::byte* at = bytes_.here() + guard_bytes + i * atoll::size_of(dtype_);
  with_type(dtype_, [&](auto value) {
    value = value_of<decltype(value)>(number);
    std::memcpy(at, &value, sizeof value);
  });
}

bool Elements::guards_intact() const {
  const auto intact = [](std::byte value) { return value == guard_value; };
  const std::span all(bytes_.here(), bytes_.size());
  return std::ranges::all_of(all.first(guard_bytes), intact) &&
         std::ranges::all_of(all.last(guard_bytes), intact);
}

std::string Elements::describe(std::uint64_t i, double expected) const {
  return fmt::format("element {} is {}, expected {}", i, get(i), expected);
}

double contribution(DType dtype, ReduceOp op, int rank, std::uint64_t i) {
  const std::uint64_t value = spread(rank, i);
  const bool is_unsigned = dtype == DType::u16 || dtype == DType::u32 || dtype == DType::u64;
  const bool is_byte = atoll::size_of(dtype) == 1;
  if (dtype == DType::boolean) return static_cast<double>(value % 2);
  if (op == ReduceOp::product) {
    constexpr double factors[] = {1, 2, -1};  // products of few ranks stay below 2^16, also in f16
    const double factor = factors[value % 3];
    return is_unsigned || dtype == DType::u8 ? std::abs(factor) : factor;
  }
  if (is_byte) {
    const std::uint64_t range = op == ReduceOp::avg ? 11 : 201;
    const auto byte = static_cast<double>(value % range);
    return dtype == DType::i8 ? byte - static_cast<double>(range / 2) : byte;
  }
  if (is_unsigned) return static_cast<double>(value % 511);
  // At most eight significant bits, so exact in bf16.
  return static_cast<double>(value % 511) - 255;
}

namespace {

// Converts the exact sum of `ranks` contributions to the result of `op`: divides an average by
// `ranks` and rounds.
double finished(DType dtype, ReduceOp op, int ranks, double result) {
  if (op == ReduceOp::avg) {
    if (is_integer(dtype)) return std::trunc(result / ranks);
    if (dtype == DType::f64) return result / ranks;
    result = static_cast<double>(static_cast<float>(result) / static_cast<float>(ranks));
  }
  return rounded(dtype, result);
}

}  // namespace

double reduced(DType dtype, ReduceOp op, int ranks, std::uint64_t i) {
  double result = contribution(dtype, op, 0, i);
  for (int rank = 1; rank < ranks; ++rank) {
    const double other = contribution(dtype, op, rank, i);
    switch (op) {
      case ReduceOp::sum:
      case ReduceOp::avg:
        result += other;
        break;
      case ReduceOp::min:
        result = std::min(result, other);
        break;
      case ReduceOp::max:
        result = std::max(result, other);
        break;
      case ReduceOp::product:
        result *= other;
        break;
      case ReduceOp::band:
        result = static_cast<double>(static_cast<std::int64_t>(result) &
                                     static_cast<std::int64_t>(other));
        break;
      case ReduceOp::bor:
        result = static_cast<double>(static_cast<std::int64_t>(result) |
                                     static_cast<std::int64_t>(other));
        break;
      case ReduceOp::bxor:
        result = static_cast<double>(static_cast<std::int64_t>(result) ^
                                     static_cast<std::int64_t>(other));
        break;
    }
  }
  return finished(dtype, op, ranks, result);
}

double reduced(DType dtype, ReduceOp op, std::span<const double> factors, Products products,
               std::uint64_t i) {
  double result = 0;
  for (std::size_t rank = 0; rank < factors.size(); ++rank) {
    const double product = factors[rank] * contribution(dtype, op, static_cast<int>(rank), i);
    result += products == Products::rounded ? rounded(dtype, product) : product;
  }
  return finished(dtype, op, static_cast<int>(factors.size()), result);
}

double token(DType dtype, int rank, std::uint64_t i) {
  return contribution(dtype, ReduceOp::max, rank, i);
}

double rounded(DType dtype, double value) {
  switch (dtype) {
    case DType::u8:
      return static_cast<double>(static_cast<std::uint64_t>(value) % 256);
    case DType::i8:
      return static_cast<double>(static_cast<std::int8_t>(static_cast<std::int64_t>(value)));
    case DType::u16:
      return static_cast<double>(static_cast<std::uint16_t>(value));
    case DType::i16:
      return static_cast<double>(static_cast<std::int16_t>(value));
    case DType::boolean:
      return value > 0 ? 1 : 0;
    case DType::bf16:
      return round_to_digits(value, 8);
    case DType::f16:
      return round_to_digits(value, 11);
    case DType::f32:
    case DType::f64:
    case DType::i32:
    case DType::i64:
    case DType::u32:
    case DType::u64:
    case DType::f8e4m3:
    case DType::f8e5m2:
      return value;
  }
  return value;
}

namespace {

std::vector<std::uint64_t> all_counts(int n, bool is_rare) {
  const auto ranks = static_cast<std::uint64_t>(n);
  std::set<std::uint64_t> counts = {0, 1, ranks - 1, ranks, ranks + 1, 31};
  if (!is_rare) counts.insert({7, 127, 1009});
  return {counts.begin(), counts.end()};
}

}  // namespace

bool exists(ReduceOp op, DType dtype) {
  return atoll_abi::is_reducible(static_cast<std::int32_t>(dtype), static_cast<std::int32_t>(op));
}

std::vector<std::uint64_t> counts_around(int n, DType dtype) {
  return all_counts(n, is_rare(dtype));
}

std::vector<std::uint64_t> counts_around(int n, DType dtype, ReduceOp op) {
  if (!exists(op, dtype)) return {};
  const auto all = all_counts(n, is_rare(dtype, op));
  if (!pairwise_grid) return all;
  constexpr std::size_t ops = std::size(all_ops);
  std::vector<std::uint64_t> some;
  const std::size_t shift = static_cast<std::size_t>(dtype) + static_cast<std::size_t>(op);
  for (std::size_t i = 0; i < all.size(); ++i)
    if ((i + shift) % ops == 0) some.push_back(all[i]);
  return some;
}

std::string label(std::string_view operation, DType dtype, std::uint64_t count) {
  return fmt::format("{} {} x {}", operation, atoll::name(dtype), count);
}

std::string label(std::string_view operation, ReduceOp op, DType dtype, std::uint64_t count,
                  Place place) {
  return fmt::format("{} {} {} x {}{}", operation, atoll::name(op), atoll::name(dtype), count,
                     name(place));
}

}  // namespace conformance
