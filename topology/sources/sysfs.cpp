// The ports of the RDMA adapters as the kernel shows them under /sys/class/infiniband. hwloc knows
// neither rate nor link layer of a port.
#include <algorithm>
#include <cctype>
#include <charconv>
#include <filesystem>
#include <fstream>

#include "sources/source.hpp"

namespace atoll_v1::atoll::topology_sources {
namespace {

namespace fs = std::filesystem;

// The first line of a small file, in lower case; "" when it cannot be read.
std::string first_line(const fs::path& path) {
  std::ifstream file(path);
  std::string line(256, '\0');
  file.read(line.data(), static_cast<std::streamsize>(line.size()));
  line.resize(static_cast<std::size_t>(std::max<std::streamsize>(file.gcount(), 0)));
  line.resize(std::min(line.size(), line.find('\n')));
  std::ranges::transform(line, line.begin(),
                         [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return line;
}

// "400 gb/sec (4x ndr)" -> 400
std::optional<double> parse_rate(const std::string& text) {
  double rate = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), rate);
  const std::string_view unit(end, text.data() + text.size());
  if (error != std::errc() || !unit.starts_with(" gb/sec") || rate <= 0) return std::nullopt;
  return rate;
}

// "4: active" -> "active"
std::string parse_state(const std::string& text) {
  const auto colon = text.find(": ");
  return colon == std::string::npos ? text : text.substr(colon + 2);
}

void look_at_port(const fs::path& port, TopologyNic& nic) {
  if (std::string layer = first_line(port / "link_layer"); !layer.empty()) nic.layer = layer;
  if (std::string state = first_line(port / "state"); !state.empty())
    nic.state = parse_state(state);
  // A port that is down reports the slowest rate of its kind, which says nothing about the adapter.
  if (nic.state != "active") return;
  if (auto rate = parse_rate(first_line(port / "rate"))) {
    nic.rate_gbit_s = rate;
    nic.evidence = "sysfs";
  }
}

void look(const LiveRequest& request, Topology& topology) {
  for (TopologyNic& nic : topology.nics) {
    if (nic.host != request.host_id) continue;
    const auto colon = nic.name.find(':');  // "mlx4_0:2" is the second port
    const std::string adapter = nic.name.substr(0, colon);
    const std::string port = colon == std::string::npos ? "1" : nic.name.substr(colon + 1);
    look_at_port(fs::path(request.sysfs) / "class/infiniband" / adapter / "ports" / port, nic);
  }
}

}  // namespace

const LiveSource sysfs{"sysfs", look};

}  // namespace atoll_v1::atoll::topology_sources
