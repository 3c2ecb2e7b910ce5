// What a backend tells of its connections.
#include <fmt/ranges.h>

#include <string_view>

#include "atoll/communicator.hpp"
#include "atoll/world.hpp"
#include "comm/communicator_impl.hpp"

namespace atoll_v1::atoll {
namespace {

std::optional<bool> yes_or_no(std::string_view value) {
  if (value == "yes") return true;
  return false;  // "no", and "some": not all
}

Transports parse(std::string_view text) {
  Transports result;
  while (!text.empty()) {
    const std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(line.size() + 1, text.size()));
    const std::size_t equals = line.find('=');
    if (equals == std::string_view::npos) continue;
    const std::string_view name = line.substr(0, equals), value = line.substr(equals + 1);
    if (name == "network") result.networks.emplace_back(value);
    if (name == "gdr") result.gpudirect_rdma = yes_or_no(value);
    if (name == "nvls") result.nvls = yes_or_no(value);
    if (name == "unknown") result.unknown = value;
  }
  return result;
}

}  // namespace

std::string Transports::to_string() const {
  if (!unknown.empty()) return "not known: " + unknown;
  std::string text =
      networks.empty() ? "no network in use" : fmt::format("network {}", fmt::join(networks, ", "));
  if (gpudirect_rdma) text += *gpudirect_rdma ? " with GPUDirect RDMA" : " without GPUDirect RDMA";
  if (nvls) text += *nvls ? ", NVLS" : ", no NVLS";
  return text;
}

std::string Transports::why_no_gpudirect_rdma(const World& world) const {
  if (gpudirect_rdma.value_or(false) || world.hosts().size() == 1) return "";
  if (!unknown.empty()) return "whether it has GPUDirect RDMA is not known: " + unknown;
  if (networks.empty()) return "it has connected to no other host, so far as NCCL's log says";
  return fmt::format(
      "it reaches other hosts by {} without GPUDirect RDMA: nvidia-peermem or a kernel with "
      "dma-buf, an "
      "InfiniBand or RoCE NIC close to the GPU (atoll-topo shows), and NCCL_NET_GDR_LEVEL decide",
      fmt::join(networks, ", "));
}

Transports Communicator::transports() const {
  const auto ask = impl_->plugin->table.transports;
  if (ask) return parse(ask(impl_->comm));
  Transports nothing;
  nothing.unknown = fmt::format("the backend {} does not tell", impl_->plugin->name);
  return nothing;
}

void require_gpudirect_rdma(World& world, const Transports& mine) {
  const auto reasons = world.exchange("atoll/gpudirect_rdma", mine.why_no_gpudirect_rdma(world));
  for (std::size_t rank = 0; rank < reasons.size(); ++rank) {
    if (reasons[rank].empty()) continue;
    throw Error(ErrorCode::unsupported,
                fmt::format("GPUDirect RDMA is required: rank {}: {}", rank, reasons[rank]));
  }
}

}  // namespace atoll_v1::atoll
