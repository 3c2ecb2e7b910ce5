// Ops for host streams. Each call is one task on the stream's worker thread, which runs the kernels
// of this folder on `threads` OpenMP threads.
#pragma once

#include <memory>

#include "model/cpu/matmul.hpp"
#include "model/ops.hpp"

namespace train::cpu {

struct CpuOpsOptions {
  int threads = 1;  // use the host's cores / its ranks: more would compete for cores
  Bf16Arithmetic bf16 = Bf16Arithmetic::automatic;
};

// Must outlive work on the streams that it served. Scratch memory grows to the largest shape and is
// kept.
class CpuOps final : public Ops {
 public:
  explicit CpuOps(CpuOpsOptions options);
  ~CpuOps() override;

  void linear_forward(atoll::Stream& stream, LinearShape shape, atoll::ConstView x,
                      atoll::ConstView weight, atoll::View y) override;
  void linear_residual_forward(atoll::Stream& stream, LinearShape shape, atoll::ConstView x,
                               atoll::ConstView weight, atoll::ConstView residual,
                               atoll::View y) override;
  void linear_dgrad(atoll::Stream& stream, LinearShape shape, atoll::ConstView dy,
                    atoll::ConstView weight, atoll::View dx, WriteMode mode) override;
  void linear_wgrad(atoll::Stream& stream, LinearShape shape, atoll::ConstView dy,
                    atoll::ConstView x, atoll::View dweight, WriteMode mode) override;
  void rms_norm_forward(atoll::Stream& stream, const RmsNormForward& args) override;
  void rms_norm_backward(atoll::Stream& stream, const RmsNormBackward& args) override;
  void rope_table(atoll::Stream& stream, atoll::View table, std::int64_t head_dim,
                  double theta) override;
  void rope(atoll::Stream& stream, const Rope& args) override;
  void attention_forward(atoll::Stream& stream, const AttentionForward& args) override;
  void attention_backward(atoll::Stream& stream, const AttentionBackward& args) override;
  void swiglu_forward(atoll::Stream& stream, atoll::ConstView gate, atoll::ConstView up,
                      atoll::View out) override;
  void swiglu_backward(atoll::Stream& stream, const SwigluBackward& args) override;
  void embedding_forward(atoll::Stream& stream, atoll::ConstView tokens, atoll::ConstView table,
                         atoll::View out, std::int64_t width) override;
  void embedding_backward(atoll::Stream& stream, const EmbeddingBackward& args) override;
  void cross_entropy(atoll::Stream& stream, const CrossEntropy& args) override;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace train::cpu
