// Replaces endpoint_prometheus.cpp in a build without prometheus-cpp.
#include "fail.hpp"
#include "report/endpoint.hpp"

namespace train {

struct Endpoint::Gauges {};

Endpoint::Endpoint(const EndpointOptions&) {
  fail(ErrorCode::unsupported,
       "--metrics-port: this build has no endpoint; install prometheus-cpp-dev and build again, or "
       "read steps.jsonl");
}

Endpoint::~Endpoint() = default;
int Endpoint::port() const { return 0; }
void Endpoint::step(const StepRecord&, const SpeedBase&) {}

}  // namespace train
