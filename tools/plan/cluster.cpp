#include "plan/cluster.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>
#include <optional>
#include <regex>

#include "atoll/mesh_plan.hpp"
#include "atoll/tooling/load.hpp"
#include "atoll/topology.hpp"
#include "cli/cli.hpp"
#include "fail.hpp"

namespace plan {
namespace {

// Returns the text in lower case (ASCII).
std::string lower(std::string text) {
  std::ranges::transform(text, text.begin(), [](unsigned char c) { return std::tolower(c); });
  return text;
}

bool has(const std::string& text, std::string_view word) {
  return text.find(word) != std::string::npos;
}

// Bus bandwidths inside a host in GB/s, for large messages. `nvlink` is that of a ring over its
// GPUs. A GB200 counts as a B200, whose links it has. `nvls` is the rate of all_reduce in the
// switches, in bytes of the tensor: the busbw of 8 H200 (473 GB/s at 8 GiB) and of 8 B200 (846 at
// 16 GiB), divided by 1.75, which is 2 (n - 1) / n.
struct Inside {
  std::string_view gpu;
  double links;  // GB/s of all links by the data sheet, in one direction
  double nvlink;
  double nvls;
  std::string_view source;
};
constexpr std::string_view of_h200 =
    "all_gather of 8 H200 (GoogleCloudPlatform/cluster-toolkit, examples)";
constexpr std::array<Inside, 8> boards = {
    {{"v100", 150, 128, 0, "estimate: 85 % of its links"},
     {"a100", 300, 229, 0, "all_reduce of A100 (VIA-Research/vTrain, trace/a100)"},
     {"a800", 200, 153, 0, "estimate: the share of its links that an A100 reaches"},
     {"h800", 200, 160, 0, "estimate: the share of its links that an H200 reaches"},
     {"h100", 450, 361, 270, of_h200},
     {"h200", 450, 361, 270, of_h200},
     {"b200", 900, 723, 483, "all_reduce of 8 B200 at 1 GiB"},
     {"mi300x", 448, 300, 0, "estimate: two thirds of its links"}}};

// A ring of GPUs over PCIe 4.0 or 5.0 reaches 20 to 28 GB/s (NVIDIA/nccl 1639).
// Volta has PCIe 3.0.
constexpr double pcie_gbyte_s = 22, pcie_3_gbyte_s = 10;
// Two H100 PCIe with NVLink bridges reach 116 GB/s (NVIDIA/nccl 1161). Larger groups go over PCIe.
constexpr double bridge_gbyte_s = 116;
// Two H100 NVL have three bridges with 300 GB/s in one direction, and up to four H200 NVL have 450
// (data sheets); 80 % by estimate.
constexpr double h100_nvl_gbyte_s = 240, h200_nvl_gbyte_s = 360;

// GB/s inside a host; `nvls` is 0 without switches that add up tensors.
struct Rates {
  double ring = pcie_gbyte_s;
  double nvls = 0;
  std::string source = "a ring over PCIe 4.0 or 5.0 (NVIDIA/nccl 1639)";
};

// `links_gbyte_s` is the rate of the links in the topology; 0 without one.
std::optional<Rates> intra_rates_of(const std::string& gpu, const std::string& intra, int ranks,
                                    double links_gbyte_s) {
  const auto board = std::ranges::find_if(boards, [&](const Inside& b) { return has(gpu, b.gpu); });
  static const std::regex number("([0-9]{1,5}(?:\\.[0-9]+)?) ?(gb/s)?");
  if (std::smatch match; std::regex_match(intra, match, number))
    return Rates{std::stod(match[1]), 0, "--intra"};
  Rates nvlink;
  if (board != boards.end()) {
    // Boards of four GPUs have no switches.
    const bool has_switches = ranks > 4 || has(intra, "nvswitch");
    nvlink = {board->nvlink, has_switches ? board->nvls : 0, std::string(board->source)};
  }
  const bool is_h200 = has(gpu, "h200");
  const bool is_nvl = has(gpu, "nvl") && (is_h200 || has(gpu, "h100"));  // cards with bridges
  if (is_nvl) nvlink = {};
  if (is_nvl && ranks <= (is_h200 ? 4 : 2))
    nvlink = {is_h200 ? h200_nvl_gbyte_s : h100_nvl_gbyte_s, 0, "estimate: 80 % of its bridges"};
  if (intra.empty()) return has(gpu, "pcie") ? Rates{} : nvlink;
  if (has(intra, "no ")) return std::nullopt;
  if (has(intra, "bridge") && !is_nvl)
    return ranks <= 2 ? Rates{bridge_gbyte_s, 0, "two H100 PCIe (NVIDIA/nccl 1161)"} : Rates{};
  if (has(intra, "bridge")) return nvlink;
  if (has(intra, "pcie") || has(intra, "pix") || has(intra, "phb"))
    return has(gpu, "v100") ? Rates{pcie_3_gbyte_s, 0, "estimate for PCIe 3.0"} : Rates{};
  const std::array<std::string_view, 5> words = {"nvswitch", "nvlink", "sxm", "xgmi", "infinity"};
  const bool names_links =
      std::ranges::any_of(words, [&](std::string_view word) { return has(intra, word); });
  // Without an entry in `boards`, the rate of the links is unknown. A PCIe card has links only if
  // bridges join it to another, which the topology then shows.
  const bool has_links = board != boards.end() && (!has(gpu, "pcie") || links_gbyte_s > 0);
  return names_links && has_links ? std::optional(nvlink) : std::nullopt;
}

// Returns the rates over the links that a topology has. A ring reaches the same share of them as on
// the GPU's usual board. Switches add up tensors only if the GPU has all links of that board.
Rates over_links(Rates usual, const std::string& gpu, double links_gbyte_s) {
  const auto board = std::ranges::find_if(boards, [&](const Inside& b) { return has(gpu, b.gpu); });
  const bool is_pcie = board == boards.end() || usual.ring < board->nvlink;
  if (links_gbyte_s <= 0 || is_pcie || links_gbyte_s >= board->links) return usual;
  return {usual.ring * links_gbyte_s / board->links, 0,
          fmt::format("{:g} of {:g} GB/s of the links of: {}", links_gbyte_s, board->links,
                      usual.source)};
}

// The rates of InfiniBand by generation, in Gbit/s for four lanes.
struct Generation {
  std::string_view name;
  double gbit_s;
};
constexpr std::array<Generation, 6> generations = {
    {{"xdr", 800}, {"ndr", 400}, {"hdr", 200}, {"edr", 100}, {"fdr", 56}, {"qdr", 40}}};

struct Network {
  double gbit_s = 0;  // Gbit/s of one NIC
  int nics = 1;
  bool tcp = false;
};

// Removes the first text that a pattern finds. Returns the groups of the pattern; none if it finds
// nothing.
std::vector<std::string> take(std::string& text, const std::regex& pattern) {
  std::smatch match;
  if (!std::regex_search(text, match, pattern)) return {};
  std::vector<std::string> groups;
  for (const auto& group : match) groups.push_back(group.str());
  text = match.prefix().str() + " " + match.suffix().str();
  return groups;
}

// In a text such as "8x50GB/s" a large B means bytes; other rates are bits.
std::optional<Network> network_of(const std::string& text) {
  std::string inter = lower(text);
  for (const std::string_view times : {"\u00d7", "*"}) {
    for (std::size_t at = inter.find(times); at != inter.npos; at = inter.find(times))
      inter.replace(at, times.size(), "x");
  }
  constexpr int most_nics = 72;  // the NICs of a GB200 rack
  Network network;
  network.tcp = has(inter, "tcp") || has(inter, "socket") || has(inter, "gbe") ||
                (has(inter, "ethernet") && !has(inter, "roce"));
  static const std::regex several("(^|[ ,;:(/])([0-9]{1,3}) ?(?:x(?!dr)|(?=xdr))");
  if (const auto found = take(inter, several); !found.empty()) network.nics = std::stoi(found[2]);
  // "400g", "400 Gb/s" and "3.2t" are rates; the number in "ndr200" is the rate of a split port.
  static const std::regex rate("([0-9]{1,5}(?:\\.[0-9]+)?) ?(t|g)");
  static const std::regex part("[exhnf]dr ?([0-9]{2,4})");
  if (const auto found = take(inter, rate); !found.empty()) {
    static const std::regex bytes("[0-9] ?[GTgt]B");
    network.gbit_s = std::stod(found[1]) * (found[2] == "t" ? 1000 : 1) *
                     (std::regex_search(text, bytes) ? 8 : 1);
  } else if (const auto of_port = take(inter, part); !of_port.empty()) {
    network.gbit_s = std::stod(of_port[1]);
  } else {
    for (const Generation& generation : generations) {
      if (has(inter, generation.name)) network.gbit_s = generation.gbit_s;
    }
  }
  // A number before an x that is no count: "1000x400G".
  static const std::regex odd_count("[0-9.-] ?x(?!dr)");
  if (network.gbit_s <= 0 || network.nics < 1 || network.nics > most_nics ||
      std::regex_search(inter, odd_count))
    return std::nullopt;
  // No NIC has more than 800 Gbit/s, so "3.2T" is the rate of a host.
  if (network.nics == 1 && network.gbit_s > 800) {
    network.nics = static_cast<int>(std::lround(network.gbit_s / 400));
    network.gbit_s /= network.nics;
  }
  return network;
}

// A GPU uses several NICs if the host has more NICs than GPUs, up to the rate of a PCIe 5.0 slot of
// 16 lanes. The NICs of a GPU count as one NIC.
Network joined_nics(Network network, int gpus) {
  constexpr double slot_gbit_s = 400;  // the slot serves a NIC of 400 Gbit/s
  const int most = std::max(1, static_cast<int>(slot_gbit_s / network.gbit_s));
  const int each = std::clamp(network.nics / gpus, 1, most);
  network.nics /= each;
  network.gbit_s *= each;
  return network;
}

// The memory in a name such as "NVIDIA A100-SXM4-40GB"; 0 if it has none.
std::uint64_t memory_in(const std::string& gpu) {
  std::smatch match;
  static const std::regex size("([0-9]{2,3}) ?gb");
  // In the name of a GH200, the size is that of the CPU's memory.
  if (!std::regex_search(gpu, match, size) || has(gpu, "gh200")) return 0;
  // Programs get about 1.2 % less than the name says.
  return static_cast<std::uint64_t>(0.988 * std::stod(match[1]) * (std::uint64_t{1} << 30));
}

// Returns GB/s of a ring over the GPUs of a host, by the links of the topology; 0 if the topology
// does not show the links.
double ring_of_host(const atoll::Topology& topology, const std::string& host) {
  std::vector<atoll::RankSite> sites;
  std::vector<int> ring;
  for (const atoll::TopologyGpu& gpu : topology.gpus) {
    if (gpu.host != host) continue;
    ring.push_back(static_cast<int>(sites.size()));
    sites.push_back({.host = host, .gpu = gpu.id});
  }
  if (ring.size() < 2) return 0;
  const atoll::GroupRate rate = atoll::group_rate(topology, sites, ring);
  // group_rate() returns 80 % of the rate of the links.
  return rate.is_assumed ? 0 : rate.gbyte_s / 0.8;
}

// The GPU of the table, or one whose figures `text` gives in full. Given figures take precedence.
atoll::ComputeModel compute_of(const ClusterText& text) {
  const bool known = has_model(text.gpu);
  if (!known && (text.peak_tflops == 0 || text.memory_gib == 0 || text.memory_gbyte_s == 0)) {
    const auto names = atoll::compute_model_names();
    const auto longer = std::ranges::find_if(names, [&](const std::string& name) {
      return !text.gpu.empty() && lower(name).starts_with(lower(text.gpu));
    });
    const std::string near = longer != names.end() ? *longer : cli::nearest(text.gpu, names);
    train::fail(atoll::ErrorCode::not_found,
                "unknown GPU \"{}\"{}; known are {}; any other GPU needs --peak, --memory and "
                "--bandwidth",
                text.gpu, near.empty() ? "" : fmt::format(" (did you mean {}?)", near),
                fmt::join(names, ", "));
  }
  atoll::ComputeModel model = atoll::find_compute_model(known ? text.gpu : "H100");
  if (!known) {
    model.name = text.gpu.empty() ? "a GPU without a name" : text.gpu;
    model.source = "efficiencies of an H100, by estimate";
  }
  if (text.peak_tflops > 0) {
    model.peak_fp8 *= text.peak_tflops * 1e12 / model.peak_bf16;
    model.peak_bf16 = model.peak_f32 = text.peak_tflops * 1e12;
    model.source += "; --peak";
  }
  if (text.memory_gib > 0) {
    model.memory_bytes = static_cast<std::uint64_t>(text.memory_gib * (std::uint64_t{1} << 30));
    model.source += "; --memory";
  }
  if (text.memory_gbyte_s > 0) {
    model.memory_gbyte_s = 0.9 * text.memory_gbyte_s;  // the share that kernels reach, by estimate
    model.source += "; 90 % of --bandwidth";
  }
  return model;
}

// Sets the links inside a host. `gpu` and `intra` are in lower case.
void set_inside(KnownCluster& known, const ClusterText& text, const std::string& gpu,
                const std::string& intra) {
  Cluster& cluster = known.cluster;
  auto inside = intra_rates_of(gpu, intra, text.ranks_per_host, text.links_gbyte_s);
  if (!inside && text.links_gbyte_s > 0)
    inside = Rates{0.8 * text.links_gbyte_s, 0, "estimate: 80 % of the links of the topology"};
  if (!inside) known.unknown.push_back(fmt::format("intra \"{}\"", text.intra));
  const Rates rates = over_links(inside.value_or(*intra_rates_of(gpu, "", text.ranks_per_host, 0)),
                                 gpu, text.links_gbyte_s);
  cluster.fabric.intra_gbyte_s = rates.ring;
  cluster.fabric.nvls_gbyte_s = rates.nvls;
  cluster.inside_source = rates.source;
  if (intra.empty() && !has_model(gpu)) cluster.inside_source += ", by assumption: --intra sets it";
}

void set_between(KnownCluster& known, const ClusterText& text) {
  Cluster& cluster = known.cluster;
  const std::string& inter = text.inter;
  const Network usual{.gbit_s = 400, .nics = 8};
  const auto network = inter.empty() ? usual : network_of(inter);
  if (!network) known.unknown.push_back(fmt::format("inter \"{}\"", text.inter));
  const Network used = joined_nics(network ? *network : usual, text.ranks_per_host);
  cluster.fabric.inter_gbyte_s = used.nics * used.gbit_s / 8;
  cluster.fabric.nics = used.nics;
  cluster.fabric.fabric = used.tcp ? atoll::Fabric::tcp : atoll::Fabric::rdma;
  cluster.between_source = fmt::format(
      "{}; {}", inter.empty() ? "8x400G by assumption" : text.inter_source + ": " + text.inter,
      used.tcp ? "half of it over TCP, by estimate"
               : "efficiencies by size (SimAI, NSDI'25; aliyun/SimAI, inputs/ratio)");
}

}  // namespace

bool has_model(const std::string& gpu) {
  try {
    (void)atoll::find_compute_model(gpu);
    return true;
  } catch (const atoll::Error&) {
    return false;
  }
}

ClusterText read_topology(const std::string& what) {
  const atoll::Topology topology =
      what == "here" ? atoll::Topology::discover_local() : atoll::load_topology(what);
  train::require(!topology.gpus.empty(),
                 "--topology {}: the machine has no GPUs: for ranks on CPUs use --gpu CPU "
                 "--gpus-per-host RANKS instead",
                 what);
  ClusterText text;
  const auto islands = atoll::find_islands(topology);
  // Hosts whose GPUs share one NVLink fabric, as those of a rack of GB200, count as one host.
  const int joined = static_cast<int>(std::max<std::size_t>(1, islands.front().hosts.size()));
  text.hosts = static_cast<int>(topology.hosts.size()) / joined;
  const std::string& first = topology.gpus.front().host;
  const auto on_host = [&](const auto& device) { return device.host == first; };
  text.ranks_per_host = joined * static_cast<int>(std::ranges::count_if(topology.gpus, on_host));
  train::require(static_cast<int>(topology.gpus.size()) == text.hosts * text.ranks_per_host,
                 "--topology {}: its hosts have different numbers of GPUs", what);
  text.gpu = topology.gpus.front().model;
  // If no source shows the links, the links of the GPU's usual board stand in.
  const atoll::IslandState state = islands.front().state;
  if (state == atoll::IslandState::known) text.intra = "NVLink";
  if (state == atoll::IslandState::none) text.intra = "PCIe";
  text.links_gbyte_s = ring_of_host(topology, first);
  int nics = 0;
  double rate = 0;
  for (const atoll::TopologyNic& nic : topology.nics) {
    const bool up = nic.state.empty() || nic.state == "active";
    if (!on_host(nic) || nic.is_virtual || !up || !nic.rate_gbit_s) continue;
    if (*nic.rate_gbit_s < rate) continue;
    if (*nic.rate_gbit_s > rate) nics = 0;  // counts only the fastest NICs as links between hosts
    rate = *nic.rate_gbit_s;
    ++nics;
  }
  if (nics > 0) text.inter = fmt::format("{}x{:g}G", joined * nics, rate);
  text.inter_source = "--topology " + what;
  return text;
}

KnownCluster cluster_of(const ClusterText& text) {
  KnownCluster known;
  Cluster& cluster = known.cluster;
  cluster.hosts = text.hosts;
  cluster.ranks_per_host = text.ranks_per_host;
  cluster.compute = compute_of(text);
  const std::string gpu = lower(text.gpu), intra = lower(text.intra);
  const auto of_model = static_cast<double>(cluster.compute.memory_bytes);
  if (const std::uint64_t memory = memory_in(gpu);
      std::abs(static_cast<double>(memory) / of_model - 1) > 0.05 && memory > 0 &&
      text.memory_gib == 0)
    cluster.compute.memory_bytes = memory;
  if (cluster.is_cpu()) {
    // The ranks of a host share its memory.
    cluster.compute.memory_bytes /= static_cast<std::uint64_t>(std::max(1, text.ranks_per_host));
    assume_links_of_cpus(cluster);
  }
  cluster.fabric.most_gbyte_s = text.busbw;
  if (!cluster.is_cpu() || !intra.empty()) set_inside(known, text, gpu, intra);
  if (!cluster.is_cpu() || !text.inter.empty()) set_between(known, text);
  return known;
}

void assume_links_of_cpus(Cluster& cluster) {
  // A collective computes on the cores of its rank, and between hosts mostly waits for the wire.
  // Inside a host it copies each byte four times.
  cluster.fabric = {};
  cluster.fabric.compute_share = 1;
  cluster.fabric.inter_compute_share = 0.2;
  cluster.fabric.fabric = atoll::Fabric::tcp;
  cluster.fabric.intra_gbyte_s = cluster.compute.memory_gbyte_s / 4;
  cluster.fabric.inter_gbyte_s = 1;
  cluster.inside_source = "estimate: a quarter of the rate of a copy";
  cluster.between_source = "estimate: 8 Gbit/s over TCP";
}

}  // namespace plan
