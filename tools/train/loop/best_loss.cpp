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
  if (!recorded.contains("kept")) {
    kept_ = loss_;
  } else if (number("kept")) {
    kept_ = recorded["kept"].get<double>();
  }
}

nlohmann::json BestLoss::recorded() const {
  if (!loss_) return nullptr;
  return {{"loss", *loss_},
          {"step", step_},
          {"since", since_},
          {"data", data_},
          {"kept", kept_ ? nlohmann::json(*kept_) : nlohmann::json(nullptr)}};
}

bool BestLoss::add(double loss, std::int64_t step) {
  ++since_;
  if (std::isnan(loss)) return false;
  if (!loss_ || loss < *loss_) {
    loss_ = loss;
    step_ = step;
    since_ = 0;
  }
  if (kept_ && loss >= *kept_) return false;
  kept_before_ = std::exchange(kept_, loss);
  return true;
}

}  // namespace train
