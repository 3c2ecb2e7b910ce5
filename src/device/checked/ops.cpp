#include "device/checked/ops.hpp"

#include <initializer_list>
#include <memory>
#include <string_view>

namespace atoll_v1::atoll::checked {
namespace {

void tell(Stream& stream, std::string_view kernel, std::initializer_list<ConstView> reads,
          std::initializer_list<ConstView> writes) {
  for (const ConstView& view : reads) stream.use(view, Access::read, kernel);
  for (const ConstView& view : writes) stream.use(view, Access::write, kernel);
}

ConstView one(const double* value) { return {value, value ? std::uint64_t{1} : 0, DType::f64}; }

class CheckedOps final : public DeviceOps {
 public:
  explicit CheckedOps(DeviceOps& inner) : inner_(inner) {}

  void cast(Stream& stream, View dst, ConstView src) override {
    tell(stream, "cast", {src}, {dst});
    inner_.cast(stream, dst, src);
  }
  void add(Stream& stream, View dst, ConstView src) override {
    tell(stream, "add", {src}, {dst});
    inner_.add(stream, dst, src);
  }
  void scale(Stream& stream, View dst, ConstView src, double factor) override {
    tell(stream, "scale", {src}, {dst});
    inner_.scale(stream, dst, src, factor);
  }
  void reduce(Stream& stream, View dst, ConstView parts, ReduceOp op, int block) override {
    tell(stream, "reduce", {parts}, {dst});
    inner_.reduce(stream, dst, parts, op, block);
  }
  void sum_squares(Stream& stream, View out, ConstView src) override {
    tell(stream, "sum_squares", {src}, {out});
    inner_.sum_squares(stream, out, src);
  }
  void clip_factor(Stream& stream, View result, ConstView blocks, ClipRule rule) override {
    tell(stream, "clip_factor", {blocks}, {result});
    inner_.clip_factor(stream, result, blocks, rule);
  }
  void adamw(Stream& stream, const AdamWStep& step) override {
    tell(stream, "adamw", {step.gradient, one(step.steps), one(step.scale)},
         {step.weights, step.moment1, step.moment2, step.weights_low});
    inner_.adamw(stream, step);
  }
  void sgd(Stream& stream, const SgdStep& step) override {
    tell(stream, "sgd", {step.gradient, one(step.scale)}, {step.weights, step.weights_low});
    inner_.sgd(stream, step);
  }
  void fill_normal(Stream& stream, View dst, const NormalFill& fill) override {
    tell(stream, "fill_normal", {}, {dst});
    inner_.fill_normal(stream, dst, fill);
  }

 private:
  DeviceOps& inner_;
};

}  // namespace

std::unique_ptr<DeviceOps> checked_ops(DeviceOps& inner) {
  return std::make_unique<CheckedOps>(inner);
}

}  // namespace atoll_v1::atoll::checked
