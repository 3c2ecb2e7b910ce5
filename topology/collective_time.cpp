#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>

#include "affinity.hpp"
#include "atoll/tooling/fabric_model.hpp"

namespace atoll_v1::atoll {
namespace {

// Efficiency of all_gather and reduce_scatter between hosts, as a fraction of 48.5 GB/s for each
// NIC of 400 Gbit/s, by bytes of the tensor (hosts with 8 NICs) and number of hosts. Source: SimAI.
constexpr double nic_payload = 48.5 / 50;
constexpr std::array<double, 6> table_bytes = {16e6 * 1.048576,   64e6 * 1.048576,
                                               256e6 * 1.048576,  1024e6 * 1.048576,
                                               4096e6 * 1.048576, 16384e6 * 1.048576};
constexpr std::array<double, 7> table_hosts = {2, 4, 8, 16, 32, 64, 128};
constexpr std::array<std::array<double, 7>, 6> table = {{{.32, .24, .13, .05, .044, .021, .009},
                                                         {.50, .53, .39, .21, .106, .051, .044},
                                                         {.85, .77, .69, .57, .387, .209, .103},
                                                         {.92, .93, .90, .76, .74, .563, .315},
                                                         {.95, .95, .95, .92, .92, .755, .74},
                                                         {.96, .96, .96, .957, .957, .958, .92}}};
constexpr double nics_of_table = 8;
// TCP reaches at most about 60 % of the rate of the wire (issue 209 of NVIDIA/nccl-tests), and 4 to
// 6 GB/s of 12.5 at 100 Gbit/s (issue 450 of NVIDIA/nccl).
constexpr double tcp_efficiency = 0.5;
constexpr double tcp_latency = 10;  // latency of TCP as a multiple of that of RDMA, an estimate

// Returns where a value lies in a sorted list, as an index with a fraction: from 0 to size - 1,
// interpolated between the logarithms of two neighbours.
template <std::size_t n>
double position(const std::array<double, n>& sorted, double value) {
  if (value <= sorted.front()) return 0;
  if (value >= sorted.back()) return n - 1;
  const auto above = std::ranges::upper_bound(sorted, value);
  const double high = *above, low = *(above - 1);
  return static_cast<double>(above - sorted.begin() - 1) +
         std::log(value / low) / std::log(high / low);
}

// Returns the efficiency of the NICs at a size of the table, on hosts with 8 NICs.
double efficiency_of_row(std::size_t row, double hosts) {
  const double column = position(table_hosts, hosts);
  const auto c = std::min(static_cast<std::size_t>(column), table_hosts.size() - 2);
  const double part = column - static_cast<double>(c);
  return table[row][c] * (1 - part) + table[row][c + 1] * part;
}

// Returns the efficiency of the NICs for a tensor of `bytes` on hosts with 8 NICs. Times between
// the sizes of the table are interpolated on a scale of logarithms, so that more bytes never take
// less time. Below the table time is constant.
double rdma_efficiency(double bytes, double hosts) {
  // In the table, some sizes take less time than smaller sizes. They get the time of the smaller
  // size instead.
  const auto time_of_row = [&](std::size_t row) {
    double time = 0;
    for (std::size_t i = 0; i <= row; ++i)
      time = std::max(time, table_bytes[i] / efficiency_of_row(i, hosts));
    return time;
  };
  const double row = position(table_bytes, bytes);
  const auto r = std::min(static_cast<std::size_t>(row), table_bytes.size() - 2);
  const double part = row - static_cast<double>(r);
  if (bytes >= table_bytes.back()) return efficiency_of_row(table_bytes.size() - 1, hosts);
  const double time = time_of_row(r) * std::pow(time_of_row(r + 1) / time_of_row(r), part);
  return bytes / time;
}

// The cost of a collective by the ring algorithm.
struct Ring {
  double parts = 0;  // bytes that a rank sends, divided by those of the tensor
  double steps = 0;
  double rounds = 1;  // number of times that the data goes around the ring
};

Ring ring_of(std::string_view collective, double n) {
  if (collective == "all_reduce") return {2 * (n - 1) / n, 2 * (n - 1), 2};
  if (collective == "barrier") return {0, 2 * std::log2(n)};
  if (collective == "broadcast" || collective == "reduce" || collective == "send" ||
      collective == "recv") {
    return {1, n > 2 ? n - 1 : 1};
  }
  if (collective == "all_to_all") return {(n - 1) / n, 1};
  return {(n - 1) / n, n - 1};  // all_gather, reduce_scatter, gather, scatter
}

// Interpolates measured times of the same collective on a scale of logarithms. Beyond the largest
// size the rate is constant, and below the smallest size the time.
std::optional<double> measured_time(const FabricModel& model, const CollectiveShape& shape) {
  std::map<double, double> times;
  for (const MeasuredTime& entry : model.measured) {
    if (entry.collective != shape.collective || entry.ranks != shape.ranks ||
        entry.hosts != shape.hosts || entry.bytes == 0)
      continue;
    times[static_cast<double>(entry.bytes)] = entry.seconds;
  }
  if (times.empty()) return std::nullopt;
  const auto bytes = static_cast<double>(shape.bytes);
  const auto above = times.lower_bound(bytes);
  if (above == times.begin()) return above->second;
  const auto below = std::prev(above);
  if (above == times.end()) return below->second * bytes / below->first;
  const double part = std::log(bytes / below->first) / std::log(above->first / below->first);
  return below->second * std::pow(above->second / below->second, part);
}

CollectiveTime intra_host(const FabricModel& model, const CollectiveShape& shape,
                          const Ring& ring) {
  const auto bytes = static_cast<double>(shape.bytes);
  CollectiveTime time{.latency_s = model.launch_s + ring.steps * model.intra_step_s,
                      .transfer_s = ring.parts * bytes / (model.intra_gbyte_s * 1e9),
                      .intra = 1};
  constexpr double nvls_hop_s = 25e-6;
  constexpr int least_nvls_ranks = 3;  // two ranks exchange data without NVLS
  if (model.nvls_gbyte_s > 0 && shape.collective == "all_reduce" &&
      shape.ranks >= least_nvls_ranks) {
    const double latency = model.launch_s + nvls_hop_s;
    const double transfer = bytes / (model.nvls_gbyte_s * 1e9);
    if (latency + transfer < time.latency_s + time.transfer_s) {
      time.latency_s = latency;
      time.transfer_s = transfer;
    }
  }
  return time;
}

// What a ring over `per_host` ranks of each host uses of the NICs of a host.
struct Across {
  double wire = 0;  // GB/s of the NICs that the ring uses, without losses
  double part = 0;  // fraction of the host's NICs that the ring uses
};

Across nics_of(const FabricModel& model, double per_host) {
  const double lanes = std::max(1.0, std::min(per_host, static_cast<double>(model.nics)));
  const double part = lanes / model.nics;
  return {model.inter_gbyte_s * part, part};
}

double limited(const FabricModel& model, double rate, double part) {
  return model.most_gbyte_s > 0 ? std::min(rate, model.most_gbyte_s * part) : rate;
}

// Returns the time that the bytes take on the links, in seconds. The efficiency of RDMA is taken
// from a table of measurements, that of TCP is a constant.
double throughput_s(const FabricModel& model, const CollectiveShape& shape, const Ring& ring) {
  const double hosts = shape.hosts, per_host = static_cast<double>(shape.ranks) / hosts;
  const auto [wire, part] = nics_of(model, per_host);
  const auto bytes = static_cast<double>(shape.bytes);
  const bool rdma = model.fabric == Fabric::rdma;
  const double efficiency =
      rdma ? nic_payload * rdma_efficiency(bytes * nics_of_table / (part * model.nics), hosts)
           : tcp_efficiency;
  const double inter = limited(model, wire * efficiency, part);
  const double intra = per_host > 1 ? model.intra_gbyte_s : inter;
  double seconds = ring.parts * bytes / (std::min(inter, intra) * 1e9);
  if (rdma && hosts > table_hosts.back())
    seconds += (hosts - table_hosts.back()) * per_host * ring.rounds * model.inter_step_s;
  return seconds;
}

// The time of NCCL's algorithms whose latency grows little with the number of hosts: its
// low-latency protocol on a ring, its tree for all_reduce, and PAT for one rank of each host.
double latency_bound_s(const FabricModel& model, const CollectiveShape& shape, const Ring& ring) {
  constexpr double low_latency_step_s = 4e-6, low_latency_rate = 0.5;
  constexpr double hop_s = 14e-6, tree_rate = 0.85, pat_base_s = 8e-6, pat_rate = 0.75;
  if (model.fabric == Fabric::tcp) return std::numeric_limits<double>::infinity();
  const double per_host = static_cast<double>(shape.ranks) / shape.hosts;
  const auto [wire, part] = nics_of(model, per_host);
  const double inter = limited(model, wire * nic_payload, part);
  const double rate = (per_host > 1 ? std::min(inter, model.intra_gbyte_s) : inter) * 1e9;
  const double sent = ring.parts * static_cast<double>(shape.bytes);
  const double flat = ring.steps * low_latency_step_s + sent / (low_latency_rate * rate);
  const double depth = std::ceil(std::log2(shape.hosts));
  if (shape.collective == "all_reduce")
    return std::min(flat, 2 * depth * hop_s + sent / (tree_rate * rate));
  const bool has_pat = shape.collective == "all_gather" || shape.collective == "reduce_scatter";
  if (has_pat && shape.ranks == shape.hosts)
    return std::min(flat, pat_base_s + depth * hop_s + sent / (pat_rate * rate));
  return flat;
}

CollectiveTime inter_hosts(const FabricModel& model, const CollectiveShape& shape,
                           const Ring& ring) {
  const double per_host = static_cast<double>(shape.ranks) / shape.hosts;
  const auto [wire, part] = nics_of(model, per_host);
  double seconds = throughput_s(model, shape, ring);
  double latency = model.launch_s;
  if (model.fabric == Fabric::tcp) {
    // In a ring over several ranks of each host, most steps stay inside a host.
    const double steps_inter = ring.steps / per_host;
    latency += steps_inter * model.inter_step_s * tcp_latency +
               (ring.steps - steps_inter) * model.intra_step_s;
  }
  const double small = latency_bound_s(model, shape, ring);
  if (model.launch_s + small < latency + seconds) {
    latency = model.launch_s;
    seconds = small;
  }
  CollectiveTime time{.latency_s = latency, .transfer_s = seconds};
  const double rate = ring.parts * static_cast<double>(shape.bytes) / (seconds * 1e9);
  const bool rdma = model.fabric == Fabric::rdma;
  const double best = limited(model, wire * (rdma ? nic_payload : tcp_efficiency), part);
  time.intra = per_host > 1 ? std::min(1.0, rate / model.intra_gbyte_s) : 0;
  time.inter = std::min(1.0, rate / best) * part;
  return time;
}

}  // namespace

double nic_efficiency(int hosts) {
  constexpr std::size_t mb_256 = 2, mb_1024 = 3;
  return (efficiency_of_row(mb_256, hosts) + efficiency_of_row(mb_1024, hosts)) / 2;
}

double healthy_gbyte_s(const FabricModel& model) {
  constexpr double of_large = 0.95;  // efficiency in the table from 4 GB on and up to 16 hosts
  const bool is_rdma = model.fabric == Fabric::rdma;
  return model.inter_gbyte_s * (is_rdma ? nic_payload * of_large : tcp_efficiency);
}

CollectiveTime collective_time(const FabricModel& model, const CollectiveShape& shape) {
  if (shape.ranks <= 1) return {};
  const Ring ring = ring_of(shape.collective, shape.ranks);
  CollectiveTime time =
      shape.hosts <= 1 ? intra_host(model, shape, ring) : inter_hosts(model, shape, ring);
  // Collectives that share the NICs, such as the collectives of all rails of a host, use the NICs
  // together. If they need more than the NICs carry, each collective takes longer.
  time.inter *= shape.sharing;
  if (time.inter > 1) {
    time.transfer_s *= time.inter;
    time.intra /= time.inter;
    time.inter = 1;
  }
  if (auto seconds = measured_time(model, shape)) {
    // The upper limit of the fabric (most_gbyte_s) applies to measured times as well.
    if (shape.hosts > 1 && model.most_gbyte_s > 0) {
      const double part = nics_of(model, static_cast<double>(shape.ranks) / shape.hosts).part;
      const double sent = ring.parts * static_cast<double>(shape.bytes);
      const double sharing = std::max(1.0, part * shape.sharing);
      *seconds = std::max(*seconds, sharing * sent / (model.most_gbyte_s * part * 1e9));
    }
    time.latency_s = std::min(time.latency_s, *seconds);
    time.transfer_s = *seconds - time.latency_s;
  }
  return time;
}

CollectiveTime message_time(const FabricModel& model, const MessageShape& shape) {
  CollectiveTime time{.latency_s = model.launch_s + model.intra_step_s};
  double intra = 0, inter = 0;  // seconds of the transfers inside hosts and between hosts
  if (shape.intra_bytes > 0)
    intra = static_cast<double>(shape.intra_bytes) / (model.intra_gbyte_s * 1e9);
  if (shape.inter_bytes > 0) {
    const bool rdma = model.fabric == Fabric::rdma;
    time.latency_s = model.launch_s + model.inter_step_s * (rdma ? 1 : tcp_latency);
    const auto bytes = static_cast<double>(shape.inter_bytes);
    const double efficiency =
        rdma ? nic_payload * rdma_efficiency(bytes * nics_of_table, shape.hosts) : tcp_efficiency;
    // A rank uses one NIC. If the host has more ranks than NICs, several ranks share one.
    const double lanes = std::max(1.0, static_cast<double>(shape.sharing) / model.nics);
    const double nic =
        limited(model, model.inter_gbyte_s / model.nics * efficiency, 1.0 / model.nics);
    const double rate = nic / lanes;
    inter = bytes / (rate * 1e9);
  }
  time.transfer_s = std::max(intra, inter);
  if (time.transfer_s > 0) {
    time.intra = intra / time.transfer_s;
    time.inter = inter / time.transfer_s;
  }
  return time;
}

namespace {

// Calls visit(name, member) for each number of a model.
template <class Model, class Visit>
void each_number(Model& model, const Visit& visit) {
  visit("intra_gbyte_s", model.intra_gbyte_s);
  visit("intra_step_s", model.intra_step_s);
  visit("nvls_gbyte_s", model.nvls_gbyte_s);
  visit("inter_gbyte_s", model.inter_gbyte_s);
  visit("nics", model.nics);
  visit("inter_step_s", model.inter_step_s);
  visit("launch_s", model.launch_s);
  visit("most_gbyte_s", model.most_gbyte_s);
  visit("sum_bytes", model.sum_bytes);
  visit("compute_share", model.compute_share);
  visit("inter_compute_share", model.inter_compute_share);
}

}  // namespace

std::string FabricModel::to_text() const {
  nlohmann::json text = {{"tcp", fabric == Fabric::tcp}, {"measured", nlohmann::json::array()}};
  each_number(*this, [&](const char* name, auto value) { text[name] = value; });
  for (const MeasuredTime& entry : measured)
    text["measured"].push_back(
        {entry.collective, entry.ranks, entry.hosts, entry.bytes, entry.seconds});
  return text.dump();
}

FabricModel FabricModel::from_text(std::string_view text) {
  try {
    const auto json = nlohmann::json::parse(text);
    FabricModel model;
    each_number(model, [&](const char* name, auto& value) { json.at(name).get_to(value); });
    model.fabric = json.at("tcp") ? Fabric::tcp : Fabric::rdma;
    for (const auto& entry : json.at("measured")) {
      model.measured.push_back({entry.at(0), entry.at(1), entry.at(2), entry.at(3), entry.at(4)});
    }
    return model;
  } catch (const nlohmann::json::exception&) {
    throw Error(ErrorCode::bad_data, "a model of links: a value is missing or of another type");
  }
}

}  // namespace atoll_v1::atoll
