#include "types.hpp"

#include <array>
#include <cstring>
#include <limits>
#include <string>
#include <type_traits>

#include "sdk/backend.hpp"

namespace atoll_mpi {
namespace {

template <class T>
void divide_typed(void* dst, std::uint64_t count, std::int32_t n) {
  // Integers are divided in 64 bits, because n may exceed the range of a small integer type.
  using Integer = std::conditional_t<std::is_signed_v<T>, std::int64_t, std::uint64_t>;
  using Wide = std::conditional_t<std::is_integral_v<T>, Integer, T>;
  T* values = static_cast<T*>(dst);
  for (std::uint64_t i = 0; i < count; ++i) {
    values[i] = static_cast<T>(static_cast<Wide>(values[i]) / static_cast<Wide>(n));
  }
}

template <class T>
void multiply_typed(void* dst, const void* src, std::uint64_t count, T factor) {
  const T* from = static_cast<const T*>(src);
  T* to = static_cast<T*>(dst);
  for (std::uint64_t i = 0; i < count; ++i) to[i] = factor * from[i];
}

[[noreturn]] void unknown(const char* what, std::int32_t value) {
  throw Error(ATOLL_UNSUPPORTED, std::string(what) + " " + std::to_string(value) +
                                     " is not supported by the mpi backend");
}

}  // namespace

MPI_Datatype reduction_type(std::int32_t dtype) {
  // The MPI types, in the order of the enumerators of atoll_dtype.
  const std::array types{MPI_FLOAT,         MPI_DATATYPE_NULL, MPI_DATATYPE_NULL, MPI_DOUBLE,
                         MPI_INT32_T,       MPI_INT64_T,       MPI_UINT8_T,       MPI_INT8_T,
                         MPI_UINT16_T,      MPI_UINT32_T,      MPI_UINT64_T,      MPI_DATATYPE_NULL,
                         MPI_DATATYPE_NULL, MPI_INT16_T,       MPI_UINT8_T};
  static_assert(types.size() == atoll_abi::dtypes.size());
  const bool known = atoll_abi::within(types, dtype);
  const MPI_Datatype type = known ? types[static_cast<std::size_t>(dtype)] : MPI_DATATYPE_NULL;
  if (type == MPI_DATATYPE_NULL) unknown("a reduction of element type", dtype);
  return type;
}

MPI_Op reduction_op(const Session& session, std::int32_t dtype, std::int32_t op) {
  // Both arrays of MPI operators are in the order of the enumerators of atoll_reduce_op.
  const auto& integers = session.integer_operators();
  const std::array own{integers.sum,     integers.sum, integers.min, integers.max,
                       integers.product, MPI_BAND,     MPI_BOR,      MPI_BXOR};
  const std::array builtin{MPI_SUM,  MPI_SUM,  MPI_MIN, MPI_MAX,
                           MPI_PROD, MPI_BAND, MPI_BOR, MPI_BXOR};
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
  switch (dtype) {
    case ATOLL_F32:
      return divide_typed<float>(dst, count, n);
    case ATOLL_F64:
      return divide_typed<double>(dst, count, n);
    case ATOLL_I32:
      return divide_typed<std::int32_t>(dst, count, n);
    case ATOLL_I64:
      return divide_typed<std::int64_t>(dst, count, n);
    case ATOLL_U8:
      return divide_typed<std::uint8_t>(dst, count, n);
    case ATOLL_I8:
      return divide_typed<std::int8_t>(dst, count, n);
    case ATOLL_U16:
      return divide_typed<std::uint16_t>(dst, count, n);
    case ATOLL_U32:
      return divide_typed<std::uint32_t>(dst, count, n);
    case ATOLL_U64:
      return divide_typed<std::uint64_t>(dst, count, n);
    case ATOLL_I16:
      return divide_typed<std::int16_t>(dst, count, n);
  }
  unknown("an average of element type", dtype);
}

std::byte* scale(std::byte* dst, const std::byte* src, std::uint64_t count,
                 const atoll_operation& operation) {
  if (!scaled(operation)) {
    if (dst != src) std::memcpy(dst, src, count * dtype_size(operation.dtype));
  } else if (operation.dtype == ATOLL_F32) {
    multiply_typed(dst, src, count, static_cast<float>(operation.factor));
  } else {
    multiply_typed(dst, src, count, operation.factor);
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
