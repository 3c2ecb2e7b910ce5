// Loads, stores and loops over f32 and bf16 arrays for SIMD kernels. Highway's foreach_target
// includes this file once per target, hence no #pragma once.
#if defined(TRAIN_MODEL_CPU_SIMD_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef TRAIN_MODEL_CPU_SIMD_INL_H
#undef TRAIN_MODEL_CPU_SIMD_INL_H
#else
#define TRAIN_MODEL_CPU_SIMD_INL_H
#endif

#include <hwy/highway.h>

#include <cstddef>
#include <cstdint>

#include "atoll/view.hpp"

HWY_BEFORE_NAMESPACE();
namespace train::cpu {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

using Floats = HWY_FULL(float);
using OneFloat = hn::CappedTag<float, 1>;

// Calls body(zero), where zero has the element type of `dtype`: float or bfloat16.
template <class Body>
void with_type(atoll::DType dtype, const Body& body) {
  if (dtype == atoll::DType::bf16) {
    body(atoll::bfloat16{});
  } else {
    body(0.0F);
  }
}

template <class D>
HWY_INLINE hn::Vec<D> load(D d, const float* from) {
  return hn::LoadU(d, from);
}

template <class D>
HWY_INLINE hn::Vec<D> load(D d, const atoll::bfloat16* from) {
  const hn::Rebind<std::uint16_t, D> d16;
  const hn::Rebind<std::uint32_t, D> d32;
  const auto bits = hn::LoadU(d16, reinterpret_cast<const std::uint16_t*>(from));
  return hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(d32, bits)));
}

template <class D>
HWY_INLINE void store(D d, hn::Vec<D> value, float* to) {
  hn::StoreU(value, d, to);
}

// Rounds to nearest even, like to_bfloat16. NaN becomes a quiet NaN and never infinity.
template <class D>
HWY_INLINE void store(D /*d*/, hn::Vec<D> value, atoll::bfloat16* to) {
  const hn::Rebind<std::uint16_t, D> d16;
  const hn::Rebind<std::uint32_t, D> d32;
  const hn::Rebind<std::int32_t, D> di32;
  const auto bits = hn::BitCast(d32, value);
  const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(d32, 1));
  const auto rounded = hn::Add(bits, hn::Add(odd, hn::Set(d32, 0x7FFF)));
  const auto nan = hn::RebindMask(d32, hn::IsNaN(value));
  const auto quiet = hn::Or(bits, hn::Set(d32, 0x400000));
  const auto high = hn::ShiftRight<16>(hn::IfThenElse(nan, quiet, rounded));
  hn::StoreU(hn::DemoteTo(d16, hn::BitCast(di32, high)), d16, reinterpret_cast<std::uint16_t*>(to));
}

// Calls body(tag, i) for whole vectors of [first, last), then for single elements.
template <class Body>
HWY_INLINE void for_lanes(std::size_t first, std::size_t last, const Body& body) {
  const Floats d;
  const std::size_t lanes = hn::Lanes(d);
  std::size_t i = first;
  for (; i + lanes <= last; i += lanes) body(d, i);
  for (; i < last; ++i) body(OneFloat(), i);
}

// Sums the vectors that term(tag, i) returns over [0, n).
template <class Term>
HWY_INLINE float sum_lanes(std::size_t n, const Term& term) {
  const Floats d;
  const OneFloat one;
  const std::size_t lanes = hn::Lanes(d);
  auto even = hn::Zero(d);
  auto odd = hn::Zero(d);
  std::size_t i = 0;
  for (; i + 2 * lanes <= n; i += 2 * lanes) {
    even = hn::Add(even, term(d, i));
    odd = hn::Add(odd, term(d, i + lanes));
  }
  if (i + lanes <= n) {
    even = hn::Add(even, term(d, i));
    i += lanes;
  }
  float rest = 0;
  for (; i < n; ++i) rest += hn::GetLane(term(one, i));
  return hn::GetLane(hn::SumOfLanes(d, hn::Add(even, odd))) + rest;
}

// e^x for x <= 88, accurate to 2 units in the last place: 2^n e^r with |r| <= ln(2) / 2, and a
// polynomial for e^r through the Chebyshev points (error 3e-9). x below -64 gives e^-64, which is
// negligible beside the 1 in every softmax but not subnormal. NaN stays NaN, because Max then
// returns its second operand. Highway's Exp takes twice the time and turns NaN into 0.
template <class D>
HWY_INLINE hn::Vec<D> exponential(D d, hn::Vec<D> x) {
  const hn::RebindToSigned<D> di;
  const auto bounded = hn::Max(hn::Set(d, -64.0F), x);
  // Adding 1.5 * 2^23 rounds to an integer and leaves it in the low bits.
  const auto magic = hn::Set(d, 12582912.0F);
  const auto shifted = hn::MulAdd(bounded, hn::Set(d, 1.44269504F), magic);
  const auto n = hn::Sub(shifted, magic);
  auto r = hn::NegMulAdd(n, hn::Set(d, 0.693359375F), bounded);  // subtracts n ln 2 in two parts
  r = hn::NegMulAdd(n, hn::Set(d, -2.12194440e-4F), r);
  auto p = hn::Set(d, 1.394116076e-3F);
  p = hn::MulAdd(p, r, hn::Set(d, 8.375168288e-3F));
  p = hn::MulAdd(p, r, hn::Set(d, 4.1666352268e-2F));
  p = hn::MulAdd(p, r, hn::Set(d, 1.6666415011e-1F));
  p = hn::MulAdd(p, r, hn::Set(d, 5.0000000473e-1F));
  p = hn::MulAdd(p, r, hn::Set(d, 1.0F));
  p = hn::MulAdd(p, r, hn::Set(d, 1.0F));
  const auto power = hn::Add(hn::ShiftLeft<23>(hn::BitCast(di, shifted)), hn::Set(di, 127 << 23));
  return hn::Mul(p, hn::BitCast(d, power));
}

}  // namespace HWY_NAMESPACE
}  // namespace train::cpu
HWY_AFTER_NAMESPACE();

#endif
