#include <fmt/format.h>
#include <prometheus/counter.h>
#include <prometheus/exposer.h>
#include <prometheus/gauge.h>
#include <prometheus/registry.h>

#include <chrono>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "fail.hpp"
#include "report/endpoint.hpp"

namespace train {
namespace {

// A client that connects and sends nothing blocks a thread until the timeout of requests. So
// several threads serve requests, and the timeout is below Prometheus' scrape timeout of 10 s.
constexpr std::size_t serving_threads = 4;
constexpr const char* request_ms = "2000";

// Seconds since 1970, in UTC.
double now_s() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

}  // namespace

struct Endpoint::Gauges {
  std::map<std::string, std::string> labels;
  std::shared_ptr<prometheus::Registry> registry = std::make_shared<prometheus::Registry>();
  std::unique_ptr<prometheus::Exposer> exposer;
  std::map<std::string, prometheus::Gauge*> gauges;
  prometheus::Counter* nonfinite = nullptr;

  // Unknown figures are not served, so that alerts on a low value of them do not fire.
  void set(const std::string& name, const char* help, std::optional<double> value) {
    if (!value) return;
    auto& gauge = gauges[name];
    if (gauge == nullptr) {
      gauge = &prometheus::BuildGauge().Name(name).Help(help).Register(*registry).Add(labels);
    }
    gauge->Set(*value);
  }
};

Endpoint::Endpoint(const EndpointOptions& options) : gauges_(std::make_unique<Gauges>()) {
  gauges_->labels = {{"run", options.run_name}, {"model", options.model}};
  const bool ipv6 = options.address.find(':') != std::string::npos;
  const std::string where = ipv6 ? fmt::format("[{}]:{}", options.address, options.port)
                                 : fmt::format("{}:{}", options.address, options.port);
  try {
    gauges_->exposer = std::make_unique<prometheus::Exposer>(std::vector<std::string>{
        "listening_ports", where, "num_threads", std::to_string(serving_threads),
        "request_timeout_ms", request_ms});
  } catch (const std::exception&) {  // the exception gives no reason
    fail(ErrorCode::io,
         "--metrics-port: cannot listen at {}; another program may use the port: choose another, "
         "and an address of this machine for --metrics-address",
         where);
  }
  gauges_->nonfinite = &prometheus::BuildCounter()
                            .Name("training_nonfinite_steps_total")
                            .Help("Steps whose loss or gradient norm was infinite or NaN")
                            .Register(*gauges_->registry)
                            .Add(gauges_->labels);
  gauges_->set("training_steps_planned", "Steps of the whole run",
               static_cast<double>(options.total_steps));
  gauges_->set("training_last_step_timestamp_seconds", "When the last step ended", now_s());
  gauges_->exposer->RegisterCollectable(gauges_->registry);
}

Endpoint::~Endpoint() = default;

int Endpoint::port() const { return gauges_->exposer->GetListeningPorts().front(); }

void Endpoint::step(const StepRecord& step, const SpeedBase& base) {
  const Speed speed = speed_of(step, base);
  if (step.nonfinite) gauges_->nonfinite->Increment();
  Gauges& g = *gauges_;
  g.set("training_step", "Number of the last step", static_cast<double>(step.step));
  g.set("training_last_step_timestamp_seconds", "When the last step ended", now_s());
  g.set("training_loss", "Mean loss of the last step", step.loss);
  g.set("training_eval_loss", "Mean loss of the last evaluation", step.eval_loss);
  g.set("training_learning_rate", "Learning rate of the last step", step.learning_rate);
  g.set("training_grad_norm", "Gradient norm of the last step", step.grad_norm);
  g.set("training_step_seconds", "Duration of the last step", step.seconds);
  g.set("training_mfu", "Model FLOPs utilization of the last step; 1 is the peak", speed.mfu);
  g.set("training_tokens_per_second", "Tokens over all ranks, without padding", speed.tokens_per_s);
  g.set("training_exposed_communication_ratio",
        "Share of the last step in which compute waited for communication",
        speed.exposed_comm_fraction);
}

}  // namespace train
