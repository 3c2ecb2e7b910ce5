#include "tensors.hpp"

#include <ATen/core/grad_mode.h>
#include <atoll/plugin.h>
#include <torch/version.h>

namespace atoll_torch {
namespace {

std::optional<int32_t> dtype_of(c10::ScalarType type) {
  switch (type) {
    case at::kFloat:
    case at::kComplexFloat:
      return ATOLL_F32;
    case at::kDouble:
    case at::kComplexDouble:
      return ATOLL_F64;
    case at::kHalf:
    case at::kComplexHalf:
      return ATOLL_F16;
    case at::kBFloat16:
      return ATOLL_BF16;
    case at::kInt:
      return ATOLL_I32;
    case at::kLong:
      return ATOLL_I64;
    case at::kShort:
      return ATOLL_I16;
    case at::kChar:
      return ATOLL_I8;
    case at::kByte:
      return ATOLL_U8;
    case at::kUInt16:
      return ATOLL_U16;
    case at::kUInt32:
      return ATOLL_U32;
    case at::kUInt64:
      return ATOLL_U64;
    case at::kBool:
      return ATOLL_BOOL;
    default:
      return std::nullopt;
  }
}

}  // namespace

Elements moved(const at::Tensor& tensor) {
  const auto count = static_cast<uint64_t>(tensor.numel());
  if (const auto dtype = dtype_of(tensor.scalar_type()))
    return {*dtype, tensor.is_complex() ? 2 * count : count};
  return {ATOLL_U8, count * static_cast<uint64_t>(tensor.element_size())};
}

Elements reduced(const at::Tensor& tensor, const c10d::ReduceOp& op) {
  TORCH_CHECK(dtype_of(tensor.scalar_type()), "atoll cannot reduce tensors of type ",
              tensor.scalar_type());
  const bool adds = op.op_ == c10d::ReduceOp::SUM || op.op_ == c10d::ReduceOp::AVG ||
                    op.op_ == c10d::ReduceOp::PREMUL_SUM;
  TORCH_CHECK(adds || !tensor.is_complex(), "atoll: complex tensors have sums and averages only");
  return moved(tensor);
}

Reduction reduction_of(const c10d::ReduceOp& op) {
  switch (op.op_) {
    case c10d::ReduceOp::SUM:
      return {ATOLL_SUM};
    case c10d::ReduceOp::AVG:
      return {ATOLL_AVG};
    case c10d::ReduceOp::PRODUCT:
      return {ATOLL_PRODUCT};
    case c10d::ReduceOp::MIN:
      return {ATOLL_MIN};
    case c10d::ReduceOp::MAX:
      return {ATOLL_MAX};
    case c10d::ReduceOp::BAND:
      return {ATOLL_BAND};
    case c10d::ReduceOp::BOR:
      return {ATOLL_BOR};
    case c10d::ReduceOp::BXOR:
      return {ATOLL_BXOR};
    case c10d::ReduceOp::PREMUL_SUM: {
      const auto* factor = dynamic_cast<const c10d::NCCLPreMulSumSupplement*>(op.supplement_.get());
      TORCH_CHECK(factor != nullptr, "atoll: PREMUL_SUM without a factor");
      return {ATOLL_SUM, factor->tensor_factor.defined() ? factor->tensor_factor.item<double>()
                                                         : factor->double_factor};
    }
    default:
      TORCH_CHECK(false, "atoll: unknown ReduceOp");
  }
}

at::Tensor dense(const at::Tensor& tensor) {
  TORCH_CHECK(tensor.layout() == at::kStrided, "atoll: sparse tensors are not supported");
  return is_dense(tensor) ? tensor : tensor.contiguous();
}

bool overlap(const at::Tensor& a, const at::Tensor& b) {
  const auto* begin_a = static_cast<const char*>(a.const_data_ptr());
  const auto* begin_b = static_cast<const char*>(b.const_data_ptr());
  return begin_a < begin_b + b.nbytes() && begin_b < begin_a + a.nbytes();
}

Packed pack(const std::vector<at::Tensor>& tensors, bool copied) {
  TORCH_CHECK(!tensors.empty(), "atoll: an empty list of tensors");
  const at::Tensor& first = tensors.front();
  Packed result;
  int64_t elements = 0;
  bool adjacent = true;
  const char* next = static_cast<const char*>(first.const_data_ptr());
  for (const at::Tensor& tensor : tensors) {
    TORCH_CHECK(tensor.scalar_type() == first.scalar_type(),
                "atoll: tensors of one list have types ", first.scalar_type(), " and ",
                tensor.scalar_type());
    result.counts.push_back(moved(tensor).count);
    result.even = result.even && result.counts.back() == result.counts.front();
    adjacent = adjacent && tensor.is_contiguous() && tensor.const_data_ptr() == next &&
               tensor.storage().is_alias_of(first.storage());
    next += tensor.nbytes();
    elements += tensor.numel();
  }
  if (adjacent) {
    const at::NoGradGuard no_grad;
    result.flat = at::empty({0}, first.options())
                      .set_(first.storage(), first.storage_offset(), {elements}, {1});
    return result;
  }
  result.is_copy = true;
  result.flat = at::empty({elements}, first.options());
  if (copied) {
    int64_t at = 0;
    for (const at::Tensor& tensor : tensors) {
      result.flat.narrow(0, at, tensor.numel()).copy_(tensor.reshape({-1}));
      at += tensor.numel();
    }
  }
  return result;
}

void unpack(const at::Tensor& flat, const std::vector<at::Tensor>& tensors) {
  int64_t at = 0;
  for (at::Tensor tensor : tensors) {
    tensor.copy_(flat.narrow(0, at, tensor.numel()).view(tensor.sizes()));
    at += tensor.numel();
  }
}

}  // namespace atoll_torch
