#include "loop/publisher.hpp"

#include <cmath>
#include <list>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "report/clock.hpp"
#include "report/log.hpp"

namespace train {
namespace {

// `tags` keeps the texts of tags that are made here.
std::vector<tensorboard::Scalar> scalars_of(const StepRecord& step, const SpeedBase& base,
                                            std::list<std::string>& tags) {
  const Speed speed = speed_of(step, base);
  std::vector<tensorboard::Scalar> scalars;
  const auto add = [&](std::string_view tag, std::optional<double> value) {
    if (value) scalars.push_back({tag, *value});
  };
  add("train/loss", step.loss);
  add("train/learning_rate", step.learning_rate);
  add("train/grad_norm", step.grad_norm);
  add("eval/loss", step.eval_loss);
  add("eval/loss_average", step.eval_loss_average);
  add("train/gradient_noise_tokens", step.gradient_noise_tokens);
  for (const auto& [unit, norms] : step.norms) {
    add(tags.emplace_back("gradient_norm/" + unit), norms.gradient);
    add(tags.emplace_back("weight_norm/" + unit), norms.weight);
  }
  add("speed/tokens_per_s", speed.tokens_per_s);
  add("speed/mfu", speed.mfu);
  add("speed/step_s", step.seconds);
  add("speed/exposed_comm_fraction", speed.exposed_comm_fraction);
  add("speed/data_wait_s", speed.data_wait_s);
  if (speed.use) {
    add("machine/cpu", speed.use->cpu_machine);
    if (speed.use->gpus > 0) add("machine/gpu", speed.use->gpu_busy);
    add("machine/memory", speed.use->memory_used_fraction);
    add("machine/network_sent_per_s", speed.use->network_sent_per_s);
    add("machine/network_received_per_s", speed.use->network_received_per_s);
  }
  return scalars;
}

nlohmann::json json_of(const std::vector<tensorboard::Scalar>& scalars) {
  auto json = nlohmann::json::object();
  for (const auto& [tag, value] : scalars) {
    if (std::isfinite(value)) json[std::string(tag)] = value;
  }
  return json;
}

}  // namespace

Publisher::Publisher(const std::filesystem::path& tensorboard_folder,
                     const std::optional<TrackioOptions>& trackio,
                     const std::optional<EndpointOptions>& endpoint) {
  if (!tensorboard_folder.empty()) events_.emplace(tensorboard_folder, now_s());
  if (trackio) {
    trackio_.emplace(*trackio);
    log::info("rows for Trackio in {}; see them with: trackio show --project {}",
              trackio_->file().string(), trackio->project);
  }
  if (!endpoint) return;
  endpoint_ = std::make_unique<Endpoint>(*endpoint);
  log::info("figures for Prometheus at http://{}:{}/metrics", endpoint->address, endpoint_->port());
}

void Publisher::step(const StepRecord& step, const SpeedBase& base) {
  if (endpoint_) endpoint_->step(step, base);
  if (!events_ && !trackio_) return;
  std::list<std::string> tags;
  const auto scalars = scalars_of(step, base, tags);
  constexpr std::string_view failed =
      "{}: {}: writing failed (disk full?); the run goes on without it";
  if (events_ && !events_->add(now_s(), step.step, scalars)) {
    log::warn(failed, "--tensorboard", events_->file().string());
    events_.reset();
  }
  if (trackio_ && !trackio_->add(now_s(), step.step, json_of(scalars))) {
    log::warn(failed, "--trackio", trackio_->file().string());
    trackio_.reset();
  }
}

}  // namespace train
