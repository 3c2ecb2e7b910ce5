// Tensors as atoll sees them: an address, a number of elements and a dtype.
#pragma once

#include <ATen/ATen.h>
#include <torch/csrc/distributed/c10d/Types.hpp>

#include <cstdint>
#include <optional>
#include <vector>

namespace atoll_torch {

struct Elements {
  int32_t dtype = 0;
  uint64_t count = 0;
};
// Elements of a tensor for operations that only move data. Complex numbers are two numbers each,
// and types that atoll does not know are bytes.
Elements moved(const at::Tensor& tensor);
// Elements of a tensor that is reduced; throws for types that atoll cannot reduce.
Elements reduced(const at::Tensor& tensor, const c10d::ReduceOp& op);

struct Reduction {
  int32_t op = 0;
  std::optional<double> factor{};
};
Reduction reduction_of(const c10d::ReduceOp& op);

// Returns true if the elements lie in memory without gaps, in any order of the dimensions.
inline bool is_dense(const at::Tensor& tensor) { return tensor.is_non_overlapping_and_dense(); }
// Returns the tensor itself if it is dense, and else a contiguous copy.
at::Tensor dense(const at::Tensor& tensor);
// Returns true if the memory of both overlaps.
bool overlap(const at::Tensor& a, const at::Tensor& b);

// The tensors as one: themselves if they follow each other in one memory, and else new memory,
// which has a copy of them if `copied`.
struct Packed {
  at::Tensor flat;
  bool is_copy = false;
  std::vector<uint64_t> counts{};  // elements of each tensor, as moved() counts them
  bool even = true;                // all counts are equal
};
Packed pack(const std::vector<at::Tensor>& tensors, bool copied);
// Copies the flat memory back into the tensors.
void unpack(const at::Tensor& flat, const std::vector<at::Tensor>& tensors);

}  // namespace atoll_torch
