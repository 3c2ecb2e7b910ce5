// Checks that plugin.h compiles in C++20 without other headers, that its layout is unchanged, and
// that the values of the C++ enums equal those of plugin.h.
#include "atoll/plugin.h"
// plugin.h comes first and alone, so that it must compile without other headers.
#include <doctest/doctest.h>

#include "atoll/device.hpp"
#include "atoll/error.hpp"
#include "atoll/view.hpp"
#include "layout.h"

namespace {

using atoll::DType;
using atoll::ErrorCode;
using atoll::ReduceOp;

template <class Enum>
constexpr int number(Enum value) {
  return static_cast<int>(value);
}

}  // namespace

TEST_CASE("element types have the numbers of the ABI") {
  CHECK(number(DType::f32) == ATOLL_F32);
  CHECK(number(DType::bf16) == ATOLL_BF16);
  CHECK(number(DType::f16) == ATOLL_F16);
  CHECK(number(DType::f64) == ATOLL_F64);
  CHECK(number(DType::i32) == ATOLL_I32);
  CHECK(number(DType::i64) == ATOLL_I64);
  CHECK(number(DType::u8) == ATOLL_U8);
  CHECK(number(DType::i8) == ATOLL_I8);
  CHECK(number(DType::u16) == ATOLL_U16);
  CHECK(number(DType::u32) == ATOLL_U32);
  CHECK(number(DType::u64) == ATOLL_U64);
  CHECK(number(DType::f8e4m3) == ATOLL_F8E4M3);
  CHECK(number(DType::f8e5m2) == ATOLL_F8E5M2);
  CHECK(number(DType::i16) == ATOLL_I16);
  CHECK(number(DType::boolean) == ATOLL_BOOL);
}

TEST_CASE("reductions have the numbers of the ABI") {
  CHECK(number(ReduceOp::sum) == ATOLL_SUM);
  CHECK(number(ReduceOp::avg) == ATOLL_AVG);
  CHECK(number(ReduceOp::min) == ATOLL_MIN);
  CHECK(number(ReduceOp::max) == ATOLL_MAX);
  CHECK(number(ReduceOp::product) == ATOLL_PRODUCT);
  CHECK(number(ReduceOp::band) == ATOLL_BAND);
  CHECK(number(ReduceOp::bor) == ATOLL_BOR);
  CHECK(number(ReduceOp::bxor) == ATOLL_BXOR);
}

TEST_CASE("kinds of device have the numbers of the ABI's memory") {
  CHECK(number(atoll::DeviceKind::cpu) == ATOLL_MEMORY_CPU);
  CHECK(number(atoll::DeviceKind::cuda) == ATOLL_MEMORY_CUDA);
  CHECK(number(atoll::DeviceKind::simulated) == ATOLL_MEMORY_SIMULATED);
}

TEST_CASE("error codes have the numbers of the ABI") {
  CHECK(number(ErrorCode::invalid_argument) == ATOLL_INVALID_ARGUMENT);
  CHECK(number(ErrorCode::not_found) == ATOLL_NOT_FOUND);
  CHECK(number(ErrorCode::unsupported) == ATOLL_UNSUPPORTED);
  CHECK(number(ErrorCode::timeout) == ATOLL_TIMEOUT);
  CHECK(number(ErrorCode::peer_lost) == ATOLL_PEER_LOST);
  CHECK(number(ErrorCode::aborted) == ATOLL_ABORTED);
  CHECK(number(ErrorCode::mismatch) == ATOLL_MISMATCH);
  CHECK(number(ErrorCode::io) == ATOLL_IO);
  CHECK(number(ErrorCode::out_of_memory) == ATOLL_OUT_OF_MEMORY);
  CHECK(number(ErrorCode::bad_data) == ATOLL_BAD_DATA);
  CHECK(number(ErrorCode::backend) == ATOLL_BACKEND);
  CHECK(number(ErrorCode::internal) == ATOLL_INTERNAL);
}
