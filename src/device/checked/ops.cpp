#include "device/checked/ops.hpp"

#include <initializer_list>
#include <string_view>

namespace atoll_v1::atoll::checked {
namespace {

void tell(Stream& stream, std::string_view kernel, std::initializer_list<ConstView> reads,
          std::initializer_list<ConstView> writes) {
  for (const ConstView& view : reads) stream.use(view, Access::read, kernel);
  for (const ConstView& view : writes) stream.use(view, Access::write, kernel);
}

ConstView one(const double* value) { return {value, value ? std::uint64_t{1} : 0, DType::f64}; }

}  // namespace

void CheckedOps::cast(Stream& stream, View dst, ConstView src) {
  tell(stream, "cast", {src}, {dst});
  inner_.cast(stream, dst, src);
}

void CheckedOps::add(Stream& stream, View dst, ConstView src) {
  tell(stream, "add", {src}, {dst});
  inner_.add(stream, dst, src);
}

void CheckedOps::scale(Stream& stream, View dst, ConstView src, double factor) {
  tell(stream, "scale", {src}, {dst});
  inner_.scale(stream, dst, src, factor);
}

void CheckedOps::reduce(Stream& stream, View dst, ConstView parts, ReduceOp op, int block) {
  tell(stream, "reduce", {parts}, {dst});
  inner_.reduce(stream, dst, parts, op, block);
}

void CheckedOps::sum_squares(Stream& stream, View out, ConstView src) {
  tell(stream, "sum_squares", {src}, {out});
  inner_.sum_squares(stream, out, src);
}

void CheckedOps::clip_factor(Stream& stream, View result, ConstView blocks, ClipRule rule) {
  tell(stream, "clip_factor", {blocks}, {result});
  inner_.clip_factor(stream, result, blocks, rule);
}

void CheckedOps::adamw(Stream& stream, const AdamWStep& step) {
  tell(stream, "adamw", {step.gradient, one(step.steps), one(step.scale)},
       {step.weights, step.moment1, step.moment2, step.weights_low});
  inner_.adamw(stream, step);
}

void CheckedOps::sgd(Stream& stream, const SgdStep& step) {
  tell(stream, "sgd", {step.gradient, one(step.scale)}, {step.weights, step.weights_low});
  inner_.sgd(stream, step);
}

void CheckedOps::fill_normal(Stream& stream, View dst, const NormalFill& fill) {
  tell(stream, "fill_normal", {}, {dst});
  inner_.fill_normal(stream, dst, fill);
}

}  // namespace atoll_v1::atoll::checked
