// Hosts of one job that should be alike, and are not.
#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <set>

#include "inspect/doctor/check.hpp"

namespace atoll_v1::atoll::doctor {
namespace {

struct Feature {
  std::string_view what;
  Severity severity;
  std::function<std::string(const HostView&)> of;  // "": unknown
};

std::string models_of(const Machine& machine, const HostView& view) {
  std::set<std::string_view> models;
  for (const std::size_t gpu : view.gpus)
    if (const std::string& model = machine.gpu(gpu).model; !model.empty()) models.insert(model);
  return fmt::format("{}", fmt::join(models, ", "));
}

std::string rates_of(const Machine& machine, const HostView& view) {
  std::set<double> rates;
  for (const std::size_t nic : view.nics)
    if (machine.is_rdma[nic] && machine.may_be_active[nic] && machine.nic(nic).rate_gbit_s)
      rates.insert(*machine.nic(nic).rate_gbit_s);
  return rates.empty() ? "" : fmt::format("{} Gbit/s", fmt::join(rates, ", "));
}

std::string nic_count(const Machine& machine, const HostView& view) {
  const auto count =
      std::ranges::count_if(view.nics, [&](std::size_t nic) { return machine.is_rdma[nic]; });
  return std::to_string(count);
}

std::vector<Feature> features_of(const Machine& machine) {
  const auto fact_of = [](std::string_view fact) {
    return [fact](const HostView& view) { return std::string(get_fact(view.host->facts, fact)); };
  };
  return {
      {"GPUs", Severity::warning,
       [](const HostView& view) { return std::to_string(view.gpus.size()); }},
      {"models", Severity::warning, [&](const HostView& view) { return models_of(machine, view); }},
      {"RDMA ports", Severity::warning,
       [&](const HostView& view) { return nic_count(machine, view); }},
      {"rates", Severity::warning, [&](const HostView& view) { return rates_of(machine, view); }},
      {"driver", Severity::warning, fact_of(fact::driver_version)},
      {"kernel", Severity::info, fact_of(fact::kernel_release)},
      {"cores", Severity::info,
       [](const HostView& view) {
         return view.host->host_cores > 0 ? std::to_string(view.host->host_cores) : "";
       }},
  };
}

}  // namespace

void hosts_differ(const Machine& machine, Verdict& verdict) {
  if (machine.hosts.size() < 2) return verdict.not_checked("only one host");
  for (const Feature& feature : features_of(machine)) {
    Census<std::string> census;
    std::vector<std::string> values;
    for (const HostView& view : machine.hosts) {
      values.push_back(feature.of(view));
      if (!values.back().empty()) census.add(values.back());
    }
    if (census.size() < 2) continue;
    verdict.looked();
    if (census.kinds() == 1) continue;
    const auto& [usual, count] = census.majority();
    for (std::size_t host = 0; host < values.size(); ++host) {
      if (values[host].empty() || values[host] == usual) continue;
      verdict.add(Subject(*machine.hosts[host].host),
                  {.severity = feature.severity,
                   .evidence = fmt::format("{}: {}, on {} {}", feature.what, values[host],
                                           plural(count, "other host"), usual),
                   .consequence = "a synchronous job runs at the pace of its slowest host",
                   .fix = "leave the host out, or make it like the others"});
    }
  }
}

}  // namespace atoll_v1::atoll::doctor
