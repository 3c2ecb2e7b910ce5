// Parses the Transports that a backend reports, and combines the Transports of all ranks.
#include <fmt/ranges.h>

#include <algorithm>
#include <string_view>

#include "atoll/communicator.hpp"
#include "atoll/world.hpp"
#include "comm/communicator_impl.hpp"
#include "core/parse.hpp"
#include "store/store.hpp"

namespace atoll_v1::atoll {
namespace {

Transports parse(std::string_view text) {
  Transports result;
  for (const std::string_view line : split(text, '\n')) {
    const std::size_t equals = line.find('=');
    if (equals == std::string_view::npos) continue;
    const std::string_view name = line.substr(0, equals), value = line.substr(equals + 1);
    if (name == "network") result.networks.emplace_back(value);
    if (name == "gdr") result.gpudirect_rdma = value == "yes";
    if (name == "gdr") result.partly = value == "some";
    if (name == "nvls") result.nvls = value == "yes";
    if (name == "copy_engines") result.copy_engines = value == "yes";
    if (name == "device_bytes") result.device_bytes = number_from<std::uint64_t>(value);
    if (name == "unknown") result.unknown = value;
  }
  return result;
}

// Encodes transports as the text that parse() reads.
std::string encode(const Transports& transports) {
  std::string text;
  for (const std::string& network : transports.networks) text += "network=" + network + '\n';
  if (transports.gpudirect_rdma) {
    text += *transports.gpudirect_rdma ? "gdr=yes\n"
            : transports.partly        ? "gdr=some\n"
                                       : "gdr=no\n";
  }
  if (transports.nvls) text += *transports.nvls ? "nvls=yes\n" : "nvls=no\n";
  if (transports.copy_engines) {
    text += *transports.copy_engines ? "copy_engines=yes\n" : "copy_engines=no\n";
  }
  if (transports.device_bytes) text += fmt::format("device_bytes={}\n", *transports.device_bytes);
  if (!transports.unknown.empty()) text += "unknown=" + transports.unknown + '\n';
  return text;
}

std::vector<Transports> exchange(World& world, const Transports& mine) {
  std::vector<Transports> all;
  for (const std::string& text :
       world.exchange(store::titled("the transports of the ranks", "transports"), encode(mine))) {
    all.push_back(parse(text));
  }
  return all;
}

Transports together(const std::vector<Transports>& all) {
  Transports result;
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    const Transports& one = all[rank];
    for (const std::string& network : one.networks) {
      if (std::ranges::find(result.networks, network) == result.networks.end()) {
        result.networks.push_back(network);
      }
    }
    if (one.gpudirect_rdma) {
      const bool differs = result.gpudirect_rdma && *result.gpudirect_rdma != *one.gpudirect_rdma;
      result.partly = result.partly || one.partly || differs;
      result.gpudirect_rdma = result.gpudirect_rdma.value_or(true) && *one.gpudirect_rdma;
    }
    if (one.nvls) result.nvls = result.nvls.value_or(true) && *one.nvls;
    if (one.copy_engines) {
      result.copy_engines = result.copy_engines.value_or(true) && *one.copy_engines;
    }
    if (one.device_bytes) {
      result.device_bytes = std::max(result.device_bytes.value_or(0), *one.device_bytes);
    }
    if (!one.unknown.empty() && result.unknown.empty()) {
      result.unknown = fmt::format("rank {}: {}", rank, one.unknown);
    }
  }
  return result;
}

}  // namespace

std::string Transports::to_string() const {
  const auto memory = [&] {
    return device_bytes ? fmt::format(", communicators hold {:.2f} GB of GPU memory",
                                      static_cast<double>(*device_bytes) * 1e-9)
                        : std::string();
  };
  if (!unknown.empty()) return "not known: " + unknown + memory();
  std::string text =
      networks.empty() ? "no network in use" : fmt::format("network {}", fmt::join(networks, ", "));
  if (gpudirect_rdma) {
    text += *gpudirect_rdma ? " with GPUDirect RDMA"
            : partly        ? " with GPUDirect RDMA on some connections"
                            : " without GPUDirect RDMA";
  }
  if (nvls) text += *nvls ? ", NVLS available" : ", no NVLS";
  if (copy_engines) text += *copy_engines ? ", gather: copy engine" : ", gather: SM";
  return text + memory();
}

Transports gather_transports(World& world, const Transports& mine) {
  return together(exchange(world, mine));
}

void require_gpudirect_rdma(World& world, const Transports& mine) {
  const auto all = exchange(world, mine);
  if (world.hosts().size() == 1) return;
  const auto refuse = [](const std::string& why) {
    throw Error(ErrorCode::unsupported, "GPUDirect RDMA is required: " + why);
  };
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    const Transports& one = all[rank];
    if (!one.unknown.empty())
      refuse(fmt::format("rank {} does not know its transports: {}", rank, one.unknown));
    if (one.gpudirect_rdma.value_or(true)) continue;
    refuse(fmt::format(
        "rank {} reaches other hosts by {} {}: check nvidia-peermem or dma-buf in the kernel, an "
        "InfiniBand or RoCE NIC close to the GPU (see atoll-topo), and NCCL_NET_GDR_LEVEL",
        rank, fmt::join(one.networks, ", "),
        one.partly ? "with GPUDirect RDMA on some connections only" : "without GPUDirect RDMA"));
  }
  if (together(all).networks.empty())
    refuse("no rank is known to have a connection to another host");
}

Transports Communicator::transports() const {
  const Plugin& plugin = impl_->group->plugin();
  atoll_comm* const comm = impl_->group->handle();
  const auto ask = plugin.table.transports;
  if (const char* const text = ask ? ask(comm) : nullptr) return parse(text);
  Transports nothing;
  nothing.unknown = ask ? fmt::format("backend {} failed to report its transports: {}", plugin.name,
                                      last_error(plugin, comm))
                        : fmt::format("backend {} does not report its transports", plugin.name);
  return nothing;
}

}  // namespace atoll_v1::atoll
