// Passes each step on to TensorBoard, Trackio and Prometheus. Exists only on rank 0.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "report/endpoint.hpp"
#include "report/metrics.hpp"
#include "report/tensorboard.hpp"
#include "report/trackio.hpp"

namespace train {

class Publisher {
 public:
  // An empty folder writes no event file; without their options there are no rows for Trackio and
  // no endpoint. Throws Error(io or unsupported) that names the flag.
  Publisher(const std::filesystem::path& tensorboard_folder,
            const std::optional<TrackioOptions>& trackio,
            const std::optional<EndpointOptions>& endpoint);

  // Never fails: a full disk ends the event file and the rows with one warning each.
  void step(const StepRecord& step, const SpeedBase& base);

 private:
  std::optional<tensorboard::EventFile> events_;
  std::optional<TrackioRun> trackio_;
  std::unique_ptr<Endpoint> endpoint_;
};

}  // namespace train
