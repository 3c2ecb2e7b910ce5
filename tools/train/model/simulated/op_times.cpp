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

// The key of an operation whose time depends on the size of one view alone.
std::string key(const char* operation, const atoll::ConstView& view) {
  return fmt::format("{} {} {}", operation, view.count, atoll::name(view.dtype));
}
std::string key(const RmsNormForward& args) {
  return fmt::format("rms_norm {}x{} {}", args.x.count / static_cast<std::uint64_t>(args.width),
                     args.width, atoll::name(args.x.dtype));
}
std::string key(const RmsNormBackward& args) {
  return fmt::format("rms_norm_backward {}x{} {} {} {}",
                     args.x.count / static_cast<std::uint64_t>(args.width), args.width,
                     atoll::name(args.x.dtype), name(args.dx_mode), name(args.dweight_mode));
}
std::string key(const Rope& args) { return key("rope", args.x); }
std::string key(const AttentionForward& args) {
  return "attention " + shape(args.shape, args.q.dtype);
}
std::string key(const AttentionBackward& args) {
  return "attention_backward " + shape(args.shape, args.q.dtype);
}
std::string key(const Scale& args) { return key("scale", args.x); }
std::string key(const AddBias& args) { return key("add_bias", args.y); }
std::string key(const BiasBackward& args) { return key("bias_backward", args.dy); }
std::string key(const SwigluForward& args) { return key("swiglu", args.out); }
std::string key(const SwigluBackward& args) { return key("swiglu_backward", args.gate); }
std::string key(const EmbeddingForward& args) { return key("embedding", args.out); }
std::string key(const EmbeddingBackward& args) {
  return fmt::format("embedding_backward {} of {}x{} {}", args.tokens.count, args.vocab, args.width,
                     name(args.mode));
}
std::string key(const CrossEntropy& args) {
  return fmt::format("cross_entropy {}x{} {}{}", args.labels.count, args.vocab,
                     atoll::name(args.logits.dtype), args.dlogits.count > 0 ? " gradient" : "");
}

}  // namespace

std::string key_of(const Product& p, bool has_residual) {
  return fmt::format("product {}x{}x{} {}{} {} {} {}{}", p.m, p.n, p.k, letter(p.a), letter(p.b),
                     atoll::name(p.in), atoll::name(p.out), name(p.mode),
                     has_residual ? " residual" : "");
}

std::string key_of(const Operation& operation) {
  return std::visit([](const auto& args) { return key(args); }, operation);
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
  void compute(atoll::Stream& stream, const Operation& operation) override {
    sample(stream, key_of(operation), [&] { inner_.compute(stream, operation); });
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

  Ops& inner_;
  std::vector<Sample> samples_;
};

}  // namespace

std::unique_ptr<MeasuredOps> measure(Ops& inner) { return std::make_unique<Measured>(inner); }

}  // namespace train::simulated
