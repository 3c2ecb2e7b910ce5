#include "limit.hpp"

#include <algorithm>

namespace busbw {
namespace {

// For each edge of the ring that leaves a host, the host sends S to the next host. It receives as
// much, because the ring enters a host as often as it leaves the host.
std::map<int, double> ring_bytes(double total_bytes, std::span<const int> hosts) {
  std::map<int, double> sent;
  for (std::size_t i = 0; i < hosts.size(); ++i) {
    if (hosts[i] != hosts[(i + 1) % hosts.size()]) sent[hosts[i]] += total_bytes;
  }
  return sent;
}

}  // namespace

Traffic traffic_of(Collective collective, double total_bytes, int ranks, Place place) noexcept {
  using Pass = Traffic::Pass;
  const double slice = total_bytes / ranks;
  const bool in = place == Place::in;
  // A group of one rank moves no data in place.
  if (ranks == 1 && in && has_in_place(collective)) return {};
  switch (collective) {
    case Collective::all_reduce:
      return {Pass::sum, ranks, ranks, slice, place};
    case Collective::reduce_scatter:
    case Collective::reduce_scatter_v:
    case Collective::reduce:
      return {Pass::sum, ranks, 1, slice, place};
    case Collective::all_gather:
    case Collective::all_gather_v:
      return {Pass::copies, 1, in ? ranks - 1 : ranks, slice, place};
    case Collective::broadcast:
      return {Pass::copies, 1, ranks - 1, slice, Place::in};
    case Collective::gather:
    case Collective::scatter:
      return {Pass::copies, 1, 1, in ? slice * (ranks - 1) / ranks : slice, place};
    case Collective::all_to_all:
    case Collective::send_recv:
      return {Pass::copies, ranks, ranks, slice, Place::out};
  }
  return {};
}

std::map<int, double> wire_bytes(Collective collective, double total_bytes,
                                 std::span<const int> hosts, int root) {
  std::map<int, int> ranks;  // number of ranks on each host
  for (const int host : hosts) ++ranks[host];
  if (ranks.size() < 2) return {};
  if (collective == Collective::send_recv) return ring_bytes(total_bytes, hosts);
  const auto count = static_cast<double>(ranks.size());
  const int root_host = hosts[static_cast<std::size_t>(root)];
  std::map<int, double> bytes;
  for (const auto& [host, here] : ranks) {
    double own = 0;  // share of the tensor that the host's ranks hold
    for (std::size_t r = 0; r < hosts.size(); ++r) {
      if (hosts[r] != host) continue;
      own += share_of(collective, static_cast<int>(r), static_cast<int>(hosts.size()));
    }
    switch (collective) {
      case Collective::all_reduce:
        bytes[host] = 2 * total_bytes * (count - 1) / count;
        break;
      case Collective::all_gather:
      case Collective::all_gather_v:
      case Collective::reduce_scatter:
      case Collective::reduce_scatter_v:
        bytes[host] = total_bytes * std::max(own, 1 - own);
        break;
      case Collective::broadcast:
      case Collective::reduce:
      case Collective::send_recv:
        bytes[host] = total_bytes;
        break;
      case Collective::gather:
      case Collective::scatter:
        bytes[host] = total_bytes * (host == root_host ? 1 - own : own);
        break;
      case Collective::all_to_all:
        bytes[host] = total_bytes * here * (1 - own);
        break;
    }
  }
  return bytes;
}

bool joins_hosts(const atoll::TopologyNic& nic, std::string_view host_id) {
  return nic.host == host_id && !nic.is_virtual && (nic.state.empty() || nic.state == "active");
}

std::optional<double> host_gbyte_s(const atoll::Topology& topology, const std::string& host_id) {
  const auto usable = atoll::usable_gbyte_s(topology);
  std::optional<double> sum;
  for (std::size_t i = 0; i < usable.size(); ++i)
    if (joins_hosts(topology.nics[i], host_id) && usable[i]) sum = sum.value_or(0) + *usable[i];
  return sum;
}

Ceiling ceiling(Collective collective, double total_bytes, Place place, int root,
                const std::vector<std::vector<int>>& groups, std::span<const int> host_of,
                const Rates& rates) {
  const int ranks = static_cast<int>(groups.front().size());
  std::map<int, double> wire;
  for (const std::vector<int>& group : groups) {
    std::vector<int> hosts;
    for (const int rank : group) hosts.push_back(host_of[static_cast<std::size_t>(rank)]);
    for (const auto& [host, bytes] : wire_bytes(collective, total_bytes, hosts, root))
      wire[host] += bytes;
  }
  double link_seconds = 0;
  for (const auto& [host, bytes] : wire) {
    const auto index = static_cast<std::size_t>(host);
    const auto rate = index < rates.host_gbyte_s.size() ? rates.host_gbyte_s[index] : std::nullopt;
    if (!rate) return {std::nullopt, "the rate of the links between hosts is not known"};
    link_seconds = std::max(link_seconds, bytes / (*rate * 1e9));
  }
  const double moved = traffic_of(collective, total_bytes, ranks, place).bytes();
  const double memory_seconds = rates.memory_gbyte_s > 0 ? moved / (rates.memory_gbyte_s * 1e9) : 0;
  const double seconds = std::max(memory_seconds, link_seconds);
  if (seconds <= 0) return {std::nullopt, "the operation moves no data"};
  return {seconds, link_seconds > memory_seconds ? "links" : "memory"};
}

Ceiling ceiling_of_ring(Collective collective, Op op, atoll::DType dtype, double total_bytes,
                        int ranks, double gbyte_s) {
  if (ranks == 1) return {std::nullopt, "a single GPU sends nothing"};
  if (collective != Collective::all_reduce && collective != Collective::all_gather &&
      collective != Collective::reduce_scatter) {
    return {std::nullopt, "this collective uses no ring on GPUs"};
  }
  const bool divided = op == Op::avg && (dtype == atoll::DType::f32 || dtype == atoll::DType::f64);
  if (has_reduction(collective) && (size_of(dtype) == 2 || divided)) {
    return {std::nullopt, "the library builds this sum from other collectives, without a ring"};
  }
  if (gbyte_s <= 0) return {std::nullopt, "the rate of the links between the GPUs is not known"};
  Ceiling result = ceiling_of_busbw(collective, total_bytes, ranks, gbyte_s);
  if (result.seconds) result.by = by_ring;
  return result;
}

Ceiling ceiling_of_busbw(Collective collective, double total_bytes, int ranks, double gbyte_s) {
  const double seconds = total_bytes * bus_factor(collective, ranks) / (gbyte_s * 1e9);
  if (seconds <= 0) return {std::nullopt, "the operation moves no data"};
  return {seconds, "given"};
}

}  // namespace busbw
