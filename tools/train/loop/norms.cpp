#include "loop/norms.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <string>
#include <utility>

namespace train {

namespace fsdp = atoll::fsdp;

NormLog::NormLog(atoll::World& world, fsdp::Engine& engine,
                 std::shared_ptr<muon::Arithmetic> arithmetic, std::int64_t every)
    : world_(world), engine_(engine), arithmetic_(std::move(arithmetic)), every_(every) {
  memory_ = engine.device().allocate(2 * engine.units().size() * sizeof(muon::Figures));
}

void NormLog::complete(StepRecord& record, atoll::Stream& compute) {
  const auto& units = engine_.units();
  // Elements 2 u and 2 u + 1 belong to the gradient and the weights of unit u.
  std::vector<std::vector<atoll::ConstView>> values(2 * units.size());
  for (const fsdp::Segment& segment : engine_.segments()) {
    if (segment.gradient.count == 0) continue;
    const auto unit = std::ranges::find(units, segment.unit, [](const auto& u) { return u.get(); });
    const auto first = 2 * static_cast<std::size_t>(unit - units.begin());
    values[first].emplace_back(segment.gradient);
    values[first + 1].emplace_back(segment.values);
  }
  auto* const figures = static_cast<muon::Figures*>(memory_.data());
  for (std::size_t i = 0; i < values.size(); ++i) {
    arithmetic_->sum_squares(compute, values[i], figures + i);
  }
  std::vector<muon::Figures> host(values.size());
  compute.copy(host.data(), figures, host.size() * sizeof(muon::Figures));
  compute.synchronize();
  std::string mine;
  for (const muon::Figures& of : host) mine += fmt::format("{} ", of.squares);
  // Each shard is on as many ranks as there are replicas.
  const double copies = engine_.sharding().replicate;
  std::vector<double> squares(values.size());
  for (const std::string& text : world_.exchange("train/norms", mine)) {
    const char* next = text.c_str();
    for (double& sum : squares) {
      char* end = nullptr;
      sum += std::strtod(next, &end) / copies;  // unlike streams, strtod reads "inf" and "nan"
      next = end;
    }
  }
  for (std::size_t u = 0; u < units.size(); ++u) {
    if (values[2 * u].empty()) continue;  // the unit is frozen, or has no part on this rank
    record.norms[std::string(units[u]->name())] = {std::sqrt(squares[2 * u]),
                                                   std::sqrt(squares[2 * u + 1])};
  }
}

}  // namespace train
