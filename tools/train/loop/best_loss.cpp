#include "loop/best_loss.hpp"

#include <cmath>
#include <nlohmann/json.hpp>

namespace train {

void BestLoss::resume(const nlohmann::json& recorded, std::int64_t done) {
  const auto number = [&](const char* key) {
    return recorded.is_object() && recorded.contains(key) && recorded[key].is_number();
  };
  if (!number("loss") || !number("step") || !number("since")) return;
  if (recorded.value("data", "") != data_ || recorded["step"].get<std::int64_t>() > done) return;
  loss_ = recorded["loss"].get<double>();
  step_ = recorded["step"].get<std::int64_t>();
  since_ = recorded["since"].get<std::int64_t>();
}

nlohmann::json BestLoss::recorded() const {
  if (!loss_) return nullptr;
  return {{"loss", *loss_}, {"step", step_}, {"since", since_}, {"data", data_}};
}

bool BestLoss::add(double loss, std::int64_t step) {
  ++since_;
  if (std::isnan(loss) || (loss_ && loss >= *loss_)) return false;
  loss_ = loss;
  step_ = step;
  since_ = 0;
  return true;
}

}  // namespace train
