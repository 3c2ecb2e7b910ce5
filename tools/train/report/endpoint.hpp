// An HTTP endpoint with the figures of the run, which Prometheus reads. It needs prometheus-cpp;
// without it the constructor throws Error(unsupported).
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "report/metrics.hpp"

namespace train {

struct EndpointOptions {
  std::string address = "127.0.0.1";  // other addresses let other machines read the figures
  int port = 0;                       // 0: any free port
  std::string run_name;
  std::string model;
  std::int64_t total_steps = 0;
};

class Endpoint {
 public:
  // Listens at http://ADDRESS:PORT/metrics. Throws Error(io) that names --metrics-port if the
  // address cannot be used, for example because another program listens there.
  explicit Endpoint(const EndpointOptions& options);
  Endpoint(const Endpoint&) = delete;
  Endpoint& operator=(const Endpoint&) = delete;
  ~Endpoint();

  int port() const;
  void step(const StepRecord& step, const SpeedBase& base);

 private:
  struct Gauges;
  std::unique_ptr<Gauges> gauges_;
};

}  // namespace train
