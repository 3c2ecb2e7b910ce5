// A wrapper around Ops that waits after every call and records the processor time of all threads
// for each operation. On a busy machine, processor time is more reliable than elapsed time.
#pragma once

#include <ctime>
#include <map>
#include <string_view>

#include "model/ops.hpp"

namespace train::bench {

// Returns the processor time in seconds of all threads of this process.
inline double processor_seconds() {
  timespec now{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

class TimedOps final : public Ops {
 public:
  explicit TimedOps(Ops& ops) : ops_(ops) {}
  // Returns the processor seconds that each operation has used since reset().
  const std::map<std::string_view, double>& times() const noexcept { return times_; }
  void reset() { times_.clear(); }

  void multiply(atoll::Stream& s, const Product& product, atoll::ConstView a, atoll::ConstView b,
                atoll::View c, atoll::ConstView residual) override {
    time(name_of(product, residual.count != 0), s,
         [&] { ops_.multiply(s, product, a, b, c, residual); });
  }
  void run(atoll::Stream& s, const RmsNormForward& args) override {
    time("rms_norm_forward", s, [&] { ops_.rms_norm_forward(s, args); });
  }
  void run(atoll::Stream& s, const RmsNormBackward& args) override {
    time("rms_norm_backward", s, [&] { ops_.rms_norm_backward(s, args); });
  }
  void run_scale(atoll::Stream& s, atoll::View x, float factor) override {
    time("scale", s, [&] { ops_.scale(s, x, factor); });
  }
  void run_add_bias(atoll::Stream& s, atoll::ConstView bias, atoll::View y) override {
    time("add_bias", s, [&] { ops_.add_bias(s, bias, y); });
  }
  void run(atoll::Stream& s, const BiasBackward& args) override {
    time("bias_backward", s, [&] { ops_.bias_backward(s, args); });
  }
  void run(atoll::Stream& s, const Rope& args) override {
    time("rope", s, [&] { ops_.rope(s, args); });
  }
  void run(atoll::Stream& s, const AttentionForward& args) override {
    time("attention_forward", s, [&] { ops_.attention_forward(s, args); });
  }
  void run(atoll::Stream& s, const AttentionBackward& args) override {
    time("attention_backward", s, [&] { ops_.attention_backward(s, args); });
  }
  void run_swiglu_forward(atoll::Stream& s, atoll::ConstView gate, atoll::ConstView up,
                          atoll::View out) override {
    time("swiglu_forward", s, [&] { ops_.swiglu_forward(s, gate, up, out); });
  }
  void run(atoll::Stream& s, const SwigluBackward& args) override {
    time("swiglu_backward", s, [&] { ops_.swiglu_backward(s, args); });
  }
  void run_embedding_forward(atoll::Stream& s, atoll::ConstView tokens, atoll::ConstView table,
                             atoll::View out, std::int64_t width) override {
    time("embedding_forward", s, [&] { ops_.embedding_forward(s, tokens, table, out, width); });
  }
  void run(atoll::Stream& s, const EmbeddingBackward& args) override {
    time("embedding_backward", s, [&] { ops_.embedding_backward(s, args); });
  }
  void run(atoll::Stream& s, const CrossEntropy& args) override {
    time("cross_entropy", s, [&] { ops_.cross_entropy(s, args); });
  }
  void check_ids(atoll::Stream& s) override { ops_.check_ids(s); }

 private:
  static std::string_view name_of(const Product& product, bool adds) {
    constexpr std::int64_t head_columns = 16384;
    if (adds) return "linear_forward + residual";
    if (product.b == Operand::transposed) {
      return product.n >= head_columns ? "head linear_forward" : "linear_forward";
    }
    if (product.a == Operand::plain) {
      return product.k >= head_columns ? "head linear_dgrad" : "linear_dgrad";
    }
    return product.m >= head_columns ? "head linear_wgrad" : "linear_wgrad";
  }

  template <class Call>
  void time(std::string_view name, atoll::Stream& stream, const Call& call) {
    const double start = processor_seconds();
    call();
    stream.synchronize();
    times_[name] += processor_seconds() - start;
  }

  Ops& ops_;
  std::map<std::string_view, double> times_;
};

}  // namespace train::bench
