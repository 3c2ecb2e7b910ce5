#include "types.hpp"

#include <array>
#include <cstring>
#include <limits>
#include <string>

#include "device/cpu/reduce.hpp"
#include "sdk/backend.hpp"

namespace atoll_mpi {
namespace {

using atoll_v1::atoll::DType;
using atoll_v1::atoll::ReduceOp;
namespace cpu = atoll_v1::atoll::cpu;

[[noreturn]] void unknown(const char* what, std::int32_t value) {
  throw Error(ATOLL_UNSUPPORTED, std::string(what) + " " + std::to_string(value) +
                                     " is not supported by the mpi backend");
}

}  // namespace

MPI_Datatype reduction_type(std::int32_t dtype) {
  // The MPI types, in the order of the enumerators of atoll_dtype.
  const std::array types{MPI_FLOAT,        MPI_DATATYPE_NULL, MPI_DATATYPE_NULL, MPI_DOUBLE,
                         MPI_INT32_T,      MPI_INT64_T,       MPI_UINT8_T,       MPI_INT8_T,
                         MPI_UINT16_T,     MPI_UINT32_T,      MPI_UINT64_T,      MPI_DATATYPE_NULL,
                         MPI_DATATYPE_NULL};
  static_assert(types.size() == atoll_abi::dtypes.size());
  const bool known = atoll_abi::within(types, dtype);
  const MPI_Datatype type = known ? types[static_cast<std::size_t>(dtype)] : MPI_DATATYPE_NULL;
  if (type == MPI_DATATYPE_NULL) unknown("a reduction of element type", dtype);
  return type;
}

MPI_Op reduction_op(const Session& session, std::int32_t dtype, std::int32_t op) {
  // Both arrays of MPI operators are in the order of the enumerators of atoll_reduce_op.
  const auto& integers = session.integer_operators();
  const std::array own{integers.sum, integers.sum, integers.min, integers.max, integers.product};
  const std::array builtin{MPI_SUM, MPI_SUM, MPI_MIN, MPI_MAX, MPI_PROD};
  static_assert(builtin.size() == atoll_abi::ops.size());
  if (!atoll_abi::within(builtin, op)) unknown("reduction", op);
  const bool has_own = atoll_abi::is_integer(dtype) && dtype != ATOLL_I32 && dtype != ATOLL_I64;
  return (has_own ? own : builtin)[static_cast<std::size_t>(op)];
}

bool scaled(const atoll_operation& operation) noexcept {
  return reduces(operation.kind) && operation.factor != 1.0 &&
         (operation.op == ATOLL_SUM || operation.op == ATOLL_AVG) &&
         (operation.dtype == ATOLL_F32 || operation.dtype == ATOLL_F64);
}

void divide(void* dst, std::uint64_t count, std::int32_t dtype, std::int32_t n) {
  const void* const part = dst;
  cpu::reduce_into({.dsts = {&dst, 1},
                    .parts = {&part, 1},
                    .count = count,
                    .dtype = static_cast<DType>(dtype),
                    .op = ReduceOp::avg,
                    .divisor = n});
}

std::byte* scale(std::byte* dst, const std::byte* src, std::uint64_t count,
                 const atoll_operation& operation) {
  if (scaled(operation)) {
    void* const to = dst;
    const void* const part = src;
    cpu::reduce_into({.dsts = {&to, 1},
                      .parts = {&part, 1},
                      .factors = &operation.factor,
                      .count = count,
                      .dtype = static_cast<DType>(operation.dtype)});
  } else if (dst != src) {
    std::memcpy(dst, src, count * dtype_size(operation.dtype));
  }
  return dst;
}

Block::Block(Session& session, std::uint64_t bytes)
    : session_(session), count_(static_cast<int>(bytes)) {
  constexpr std::uint64_t most = std::numeric_limits<int>::max();
  if (bytes <= most) return;
  // Bytes per row of the derived type. For up to 2 PiB the number of rows fits into an int.
  constexpr int row = 1 << 20;
  count_ = 1;
  const auto lock = session_.lock();
  MPI_Datatype one_row = MPI_DATATYPE_NULL;
  MPI_Datatype rows = MPI_DATATYPE_NULL;
  check(MPI_Type_contiguous(row, MPI_BYTE, &one_row), "MPI_Type_contiguous");
  check(MPI_Type_contiguous(static_cast<int>(bytes / row), one_row, &rows), "MPI_Type_contiguous");
  const std::array<int, 2> lengths{1, static_cast<int>(bytes % row)};
  const std::array<MPI_Aint, 2> starts{0, static_cast<MPI_Aint>(bytes - bytes % row)};
  const std::array<MPI_Datatype, 2> types{rows, MPI_BYTE};
  check(MPI_Type_create_struct(2, lengths.data(), starts.data(), types.data(), &type_),
        "MPI_Type_create_struct");
  check(MPI_Type_commit(&type_), "MPI_Type_commit");
  MPI_Type_free(&rows);
  MPI_Type_free(&one_row);
}

Block::~Block() {
  if (type_ == MPI_BYTE) return;
  const auto lock = session_.lock();
  MPI_Type_free(&type_);  // MPI keeps the type alive while operations in flight use it
}

}  // namespace atoll_mpi
