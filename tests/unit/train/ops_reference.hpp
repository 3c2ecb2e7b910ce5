// Reference versions of the model's operations in f64, numerical gradients, and tensors for tests.
#pragma once

#include <cstdint>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "atoll/device.hpp"
#include "model/cpu/cpu_ops.hpp"

namespace train::reference {

using Values = std::vector<double>;

Values random_values(std::mt19937_64& random, std::int64_t count, double deviation = 1.0);
// Returns the values rounded to this dtype.
Values rounded(const Values& values, atoll::DType dtype);

// Returns |actual - expected| / |expected| with the norms of vectors, or infinity if the sizes
// differ or a value is not finite.
double relative_error(const Values& actual, const Values& expected);

// Returns the allowed relative error of an operation that has exact inputs and writes outputs of
// this dtype.
constexpr double tolerance(atoll::DType dtype) noexcept {
  return dtype == atoll::DType::bf16 ? 4e-3 : 3e-6;
}

// Returns the gradient of loss(x), computed by central differences at every element of x.
Values numerical_gradient(const std::function<double(const Values&)>& loss, const Values& x);
double dot(const Values& a, const Values& b);

// Returns y [tokens, out] = x [tokens, in] * transpose(w [out, in]).
Values linear(LinearShape shape, const Values& x, const Values& w);
Values rms_norm(std::int64_t width, double eps, const Values& x, const Values& weight);
// Returns x after rotary embedding, where row r of x has position r % seq.
Values rope(std::int64_t seq, std::int64_t heads, std::int64_t head_dim, double theta,
            const Values& x);
Values attention(const AttentionShape& shape, const Values& q, const Values& k, const Values& v);
Values swiglu(const Values& gate, const Values& up);
double cross_entropy(std::int64_t vocab, const std::vector<std::int32_t>& labels,
                     const Values& logits);

// A tensor with initial values in the memory of the CPU device.
class Tensor {
 public:
  Tensor(const Values& values, atoll::DType dtype);
  explicit Tensor(const std::vector<std::int32_t>& ids);
  // Returns a tensor that is filled with NaN, so that missing writes are noticed.
  static Tensor unset(std::int64_t count, atoll::DType dtype);

  atoll::View view() const { return buffer_.view(dtype_).part(0, count_); }
  Values values() const;
  bool same_bits(const Tensor& other) const;

 private:
  Tensor(std::uint64_t count, atoll::DType dtype);
  std::uint64_t count_;
  atoll::DType dtype_;
  atoll::Buffer buffer_;
};

inline Values plus(Values a, const Values& b) {
  for (std::size_t i = 0; i < a.size(); ++i) a[i] += b[i];
  return a;
}

// The model's operations and a stream. done() waits for the stream and rethrows the stream's error.
struct Bench {
  explicit Bench(int threads = 1, cpu::Bf16Arithmetic bf16 = cpu::Bf16Arithmetic::automatic)
      : made(cpu::make_ops({.threads = threads, .bf16 = bf16})),
        ops(*made),
        stream(atoll::Device::cpu().stream()) {}
  void done() { stream.synchronize(); }
  std::unique_ptr<Ops> made;
  Ops& ops;
  atoll::Stream stream;
};

inline constexpr atoll::DType compute_dtypes[] = {atoll::DType::f32, atoll::DType::bf16};

}  // namespace train::reference
