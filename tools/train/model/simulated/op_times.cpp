#include "model/simulated/op_times.hpp"

#include <fmt/format.h>

#include <numeric>
#include <vector>

namespace train::simulated {
namespace {

char letter(Operand operand) { return operand == Operand::plain ? 'n' : 't'; }

const char* name(WriteMode mode) {
  switch (mode) {
    case WriteMode::overwrite:
      return "overwrite";
    case WriteMode::accumulate:
      return "accumulate";
    case WriteMode::none:
      break;
  }
  return "none";
}

std::string shape(const AttentionShape& s, atoll::DType dtype) {
  return fmt::format("{}x{} heads {}/{}x{} window {} {}", s.rows, s.seq, s.heads, s.kv_heads,
                     s.head_dim, s.window, atoll::name(dtype));
}

}  // namespace

std::string key_of(const Product& p, bool has_residual) {
  return fmt::format("product {}x{}x{} {}{} {} {} {}{}", p.m, p.n, p.k, letter(p.a), letter(p.b),
                     atoll::name(p.in), atoll::name(p.out), name(p.mode),
                     has_residual ? " residual" : "");
}
std::string key_of(const BiasBackward& args) { return key_of("bias_backward", args.dy); }
std::string key_of(const RmsNormForward& args) {
  return fmt::format("rms_norm {}x{} {}", args.x.count / static_cast<std::uint64_t>(args.width),
                     args.width, atoll::name(args.x.dtype));
}
std::string key_of(const RmsNormBackward& args) {
  return fmt::format("rms_norm_backward {}x{} {} {} {}",
                     args.x.count / static_cast<std::uint64_t>(args.width), args.width,
                     atoll::name(args.x.dtype), name(args.dx_mode), name(args.dweight_mode));
}
std::string key_of(const Rope& args) { return key_of("rope", args.x); }
std::string key_of(const AttentionForward& args) {
  return "attention " + shape(args.shape, args.q.dtype);
}
std::string key_of(const AttentionBackward& args) {
  return "attention_backward " + shape(args.shape, args.q.dtype);
}
std::string key_of(const SwigluBackward& args) { return key_of("swiglu_backward", args.gate); }
std::string key_of(const EmbeddingBackward& args) {
  return fmt::format("embedding_backward {} of {}x{} {}", args.tokens.count, args.vocab, args.width,
                     name(args.mode));
}
std::string key_of(const CrossEntropy& args) {
  return fmt::format("cross_entropy {}x{} {}{}", args.labels.count, args.vocab,
                     atoll::name(args.logits.dtype), args.dlogits.count > 0 ? " gradient" : "");
}
std::string key_of(const char* operation, const atoll::ConstView& view) {
  return fmt::format("{} {} {}", operation, view.count, atoll::name(view.dtype));
}

namespace {

class Measured final : public MeasuredOps {
 public:
  explicit Measured(Ops& inner) : inner_(inner) {}

  OpTimes take(atoll::Stream& stream) override {
    stream.synchronize();
    std::map<std::string, std::vector<double>> all;
    for (const Sample& sample : samples_) {
      const auto begin = sample.begin.ns(), end = sample.end.ns();
      if (begin && end) all[sample.key].push_back(static_cast<double>(*end - *begin) * 1e-9);
    }
    samples_.clear();
    OpTimes means;
    for (const auto& [key, seconds] : all) {
      means[key] =
          std::reduce(seconds.begin(), seconds.end()) / static_cast<double>(seconds.size());
    }
    return means;
  }

  std::uint64_t device_bytes() const override { return inner_.device_bytes(); }
  void reserve(atoll::Stream& stream, const LargestShapes& shapes) override {
    inner_.reserve(stream, shapes);
  }
  void check_ids(atoll::Stream& stream) override { inner_.check_ids(stream); }
  void multiply(atoll::Stream& stream, const Product& product, atoll::ConstView a,
                atoll::ConstView b, atoll::View c, atoll::ConstView residual) override {
    sample(stream, key_of(product, residual.count > 0),
           [&] { inner_.multiply(stream, product, a, b, c, residual); });
  }

 private:
  struct Sample {
    std::string key;
    atoll::Stamp begin, end;
  };

  template <class Work>
  void sample(atoll::Stream& stream, std::string key, const Work& work) {
    const atoll::Stamp begin = stream.stamp();
    work();
    samples_.push_back({std::move(key), begin, stream.stamp()});
  }

  void run(atoll::Stream& stream, const BiasBackward& args) override {
    sample(stream, key_of(args), [&] { inner_.bias_backward(stream, args); });
  }
  void run(atoll::Stream& stream, const RmsNormForward& args) override {
    sample(stream, key_of(args), [&] { inner_.rms_norm_forward(stream, args); });
  }
  void run(atoll::Stream& stream, const RmsNormBackward& args) override {
    sample(stream, key_of(args), [&] { inner_.rms_norm_backward(stream, args); });
  }
  void run(atoll::Stream& stream, const Rope& args) override {
    sample(stream, key_of(args), [&] { inner_.rope(stream, args); });
  }
  void run(atoll::Stream& stream, const AttentionForward& args) override {
    sample(stream, key_of(args), [&] { inner_.attention_forward(stream, args); });
  }
  void run(atoll::Stream& stream, const AttentionBackward& args) override {
    sample(stream, key_of(args), [&] { inner_.attention_backward(stream, args); });
  }
  void run(atoll::Stream& stream, const SwigluBackward& args) override {
    sample(stream, key_of(args), [&] { inner_.swiglu_backward(stream, args); });
  }
  void run(atoll::Stream& stream, const EmbeddingBackward& args) override {
    sample(stream, key_of(args), [&] { inner_.embedding_backward(stream, args); });
  }
  void run(atoll::Stream& stream, const CrossEntropy& args) override {
    sample(stream, key_of(args), [&] { inner_.cross_entropy(stream, args); });
  }
  void run_scale(atoll::Stream& stream, atoll::View x, float factor) override {
    sample(stream, key_of("scale", x), [&] { inner_.scale(stream, x, factor); });
  }
  void run_add_bias(atoll::Stream& stream, atoll::ConstView bias, atoll::View y) override {
    sample(stream, key_of("add_bias", y), [&] { inner_.add_bias(stream, bias, y); });
  }
  void run_swiglu_forward(atoll::Stream& stream, atoll::ConstView gate, atoll::ConstView up,
                          atoll::View out) override {
    sample(stream, key_of("swiglu", out), [&] { inner_.swiglu_forward(stream, gate, up, out); });
  }
  void run_embedding_forward(atoll::Stream& stream, atoll::ConstView tokens, atoll::ConstView table,
                             atoll::View out, std::int64_t width) override {
    sample(stream, key_of("embedding", out),
           [&] { inner_.embedding_forward(stream, tokens, table, out, width); });
  }

  Ops& inner_;
  std::vector<Sample> samples_;
};

}  // namespace

std::unique_ptr<MeasuredOps> measure(Ops& inner) { return std::make_unique<Measured>(inner); }

}  // namespace train::simulated
