#include "link.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "atoll/error.hpp"
#include "atoll/rank_device.hpp"
#include "atoll/topology.hpp"
#include "collective.hpp"
#include "ports.hpp"

namespace busbw {
namespace {

const atoll::HostInfo& host_of(const atoll::World& world, int rank) {
  const auto& place = world.placements()[static_cast<std::size_t>(rank)];
  return world.hosts()[static_cast<std::size_t>(place.host)];
}

// Bandwidth of the slower port, as far as the topology knows the ports.
std::optional<double> port_gbyte_s(const atoll::World& world, const atoll::LinkTest& test,
                                   const atoll::Topology& topology) {
  const auto rates = atoll::usable_gbyte_s(topology);
  std::optional<double> slowest;
  for (std::size_t side = 0; side < test.ranks.size(); ++side) {
    const auto& host = host_of(world, test.ranks[side]);
    for (std::size_t i = 0; i < topology.nics.size(); ++i) {
      const auto& nic = topology.nics[i];
      if (nic.host != host.id || nic.name != test.ports[side] || !rates[i]) continue;
      slowest = std::min(slowest.value_or(*rates[i]), *rates[i]);
    }
  }
  return slowest;
}

}  // namespace

atoll::LinkTest plan_link(const atoll::World& world, const Options& options) {
  if (world.size() < 2) {
    throw atoll::Error(atoll::ErrorCode::invalid_argument,
                       "--link needs two ranks: start one on each host (mpirun -n 2)");
  }
  atoll::LinkTest test;
  const auto& places = world.placements();
  const auto elsewhere = std::ranges::find_if(
      places, [&](const atoll::Placement& place) { return place.host != places.front().host; });
  test.ranks = {0, elsewhere == places.end() ? 1 : elsewhere->rank};
  const auto comma = options.link.find(',');
  test.ports[0] = options.link.substr(0, comma);
  test.ports[1] = comma == std::string::npos ? test.ports[0] : options.link.substr(comma + 1);
  test.sizes =
      sweep_sizes(options.min_bytes, options.max_bytes, options.step_bytes, options.step_factor);
  test.iterations = options.iterations;
  if (options.timeout_s > 0) test.timeout = std::chrono::seconds(options.timeout_s);
  return test;
}

std::string link_lines(const atoll::World& world, const MeasuredLink& link) {
  const auto& [test, report, port_gbyte_s, findings] = link;
  std::string text = fmt::format(
      "# Raw RDMA writes with the backend {}; 1 GB/s = 1e9 bytes per second\n", report.backend);
  for (std::size_t side = 0; side < test.ranks.size(); ++side) {
    text += fmt::format("# {:<4} rank {} on {}: {}\n", side == 0 ? "from" : "to", test.ranks[side],
                        host_of(world, test.ranks[side]).name, report.ports[side]);
  }
  text += port_gbyte_s ? fmt::format("# The slower port carries {:.4g} GB/s.\n", *port_gbyte_s)
                       : "# The topology does not know the rate of these ports.\n";
  text += fmt::format("#{:>11} {:>9} {:>9} {:>9} {:>12} {:>12} {:>12}\n", "bytes", "GB/s", "Gbit/s",
                      "% of port", "M writes/s", "latency us", "p99 us");
  for (const auto& rate : report.rates) {
    const auto share =
        port_gbyte_s ? fmt::format("{:.1f}", 100 * rate.gbyte_s / *port_gbyte_s) : "-";
    text += fmt::format(" {:>11} {:>9.4g} {:>9.4g} {:>9} {:>12.4g} {:>12.2f} {:>12.2f}\n",
                        rate.bytes, rate.gbyte_s, 8 * rate.gbyte_s, share,
                        rate.gbyte_s * 1e3 / static_cast<double>(rate.bytes), rate.latency_us,
                        rate.latency_p99_us);
  }
  return text;
}

MeasuredLink measure_link(atoll::World& world, const Options& options) {
  MeasuredLink link{plan_link(world, options), {}, {}, {}};
  if (options.device == "cuda") {
    link.test.device =
        atoll::choose_rank_device(world, {.wanted = "cuda", .communicates = false}).device;
  }
  const auto topology = atoll::Topology::discover(world);
  link.port_gbyte_s = port_gbyte_s(world, link.test, topology);
  link.report = atoll::test_link(world, link.test);
  if (world.rank() == 0) fmt::print("{}", link_lines(world, link));
  link.findings = judge_ports(world, topology);
  return link;
}

}  // namespace busbw
