// Imports NCCL's topology file (NCCL_TOPO_DUMP_FILE, NCCL_TOPO_FILE) and RCCL's variant of it.
//
// The file is a tree. <system> contains a <cpu> for each NUMA node of one or more hosts. A <cpu>
// contains nested <pci> elements: bridges, then devices. A <pci> with a <gpu> is a GPU. A <pci>
// with a <nic> is an adapter, and the ports of the adapter are <net> elements. Links are <nvlink>
// or <xgmi> elements below <gpu>, with the bus id of the other end.
//
// Pitfalls:
// - A <pci> with several <gpu> is one GPU with partitions (MIG, CPX), which share its links.
// - Vendors publish templates, which NCCL completes on the live machine. Templates may have only
//   bus ids and classes, so a GPU that is known only by its class proves nothing about links.
// - Dumps contain only devices that the job used, so GPUs at the end of links may be missing.
// - A network interface without a PCI device is below the first <cpu> of the rank that wrote the
//   file. If the interface is below several <cpu> elements, its place is unknown.
// - The outermost <pci> of a branch is the upstream port of a switch, or the device itself. The
//   file does not show the root complex above this element.
#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <set>

#include "facts.hpp"
#include "gpu_models.hpp"
#include "inspect/importers/importer.hpp"
#include "inspect/importers/nccl_tree.hpp"
#include "inspect/importers/xml_document.hpp"
#include "rdma_name.hpp"
#include "sources/hwloc_cpu_set.hpp"
#include "sources/pci_address.hpp"

namespace atoll_v1::atoll::importers {

using namespace topology_sources;
namespace {

using nccl::LinkEnd;

constexpr std::size_t most_parts = 65'536;  // maximum number of hosts, of GPUs and of NICs
constexpr long long most_numa_nodes = 65'536;
constexpr long long most_index = 1'000'000;
constexpr std::size_t most_partitions = 64;  // largest number of partitions of one GPU
constexpr std::string_view bad_count = "the number of links is not between 1 and 1024";

// The numbers of links from one GPU to switches.
struct SwitchLinks {
  std::string gpu;
  std::string type;
  int own = 0;     // number of links to switches of the GPU's host
  int hidden = 0;  // number of links to switches that several hosts may share
};

class HostReader {
 public:
  HostReader(const XmlDocument& document, std::string_view origin, Topology& topology,
             std::string id)
      : document_(document), origin_(origin), topology_(topology), id_(std::move(id)) {}

  // Reads one host into the topology, except its links to switches, which are returned. The caller
  // adds these links, because they depend on the other hosts.
  std::vector<SwitchLinks> read(const nccl::HostElements& elements) {
    for (const pugi::xml_node cpu : elements.cpus) {
      numa_ = nccl::integer_in(cpu, "numaid", {0, most_numa_nodes}).value_or(-1);
      if (numa_ >= 0) numa_nodes_.insert(numa_);
      // A CPU mask such as "0000ffff,000000ff" has a form that CpuSet can parse. A malformed mask
      // adds nothing.
      const std::string_view mask = cpu.attribute("affinity").value();
      if (mask.find_first_not_of("0123456789abcdefABCDEF,") == std::string_view::npos)
        threads_ |= CpuSet::parse(mask).value_or(CpuSet());
      for (const pugi::xml_node child : cpu.children()) {
        if (std::string_view(child.name()) == "pci") add_pci(child);
        if (std::string_view(child.name()) == "nic") add_nets(child, pugi::xml_node());
      }
    }
    number_gpus();
    for (std::size_t i = 0; i < gpus_.size(); ++i) add_links(i);
    join_pairs();
    add_host(elements);
    for (Found& found : gpus_) topology_.gpus.push_back(std::move(found.gpu));
    return std::move(switches_);
  }

 private:
  struct Found {
    TopologyGpu gpu;
    pugi::xml_node pci;
    bool says_links = false;  // true if the <gpu> shows links, or proves that the GPU has none
    bool is_linked = false;
  };
  struct Net {
    std::size_t nic = 0;  // position of the NIC in the topology
    long long port = 0;
    pugi::xml_node node;
  };
  // The number of links between two GPUs, as each of the two GPU elements states it; 0 when an
  // element states no number.
  struct Pair {
    int from_first = 0, from_second = 0;
    std::string type;
  };

  void add_pci(pugi::xml_node pci) {
    const std::string busid = normal_busid(pci.attribute("busid").value());
    if (busid.empty()) document_.fail(pci, "<pci>: the attribute busid is not a bus id");
    if (std::ranges::find(way_, busid) != way_.end())
      document_.fail(pci, fmt::format("<pci>: {} is nested inside itself", busid));
    if (way_.empty()) root_ = root_above(busid);
    const bool is_gpu = nccl::is_gpu(pci);
    if (!nccl::add_element(elements_, busid, pci))
      document_.fail(pci, fmt::format("<pci>: two GPUs of one host have the bus id {}", busid));
    const bool has_nets = pci.child("nic").child("net");
    const bool is_unnamed_nic = !has_nets && !pci.child("pci") && !pci.child("gpu") &&
                                nccl::is_network(nccl::class_of(pci));
    if (is_gpu) add_gpu(pci, busid);
    if (is_unnamed_nic) add_nic(pci, pci, nccl::unnamed_nic(busid));
    for (const pugi::xml_node nic : pci.children("nic")) add_nets(nic, pci);
    way_.push_back(busid);
    for (const pugi::xml_node child : pci.children("pci")) add_pci(child);
    way_.pop_back();
  }

  // Returns the name of the root complex above an outermost <pci>, which the file omits. Devices
  // below different outermost <pci> elements meet only in the CPU, so each of these elements gets
  // a separate root complex. The name is made from the bus, or from the whole bus id when another
  // root complex has the same name.
  std::string root_above(const std::string& busid) {
    const auto found = roots_.find(busid);
    if (found != roots_.end()) return found->second;
    const std::string address = nccl::short_busid(busid);
    std::string root = "pci" + address.substr(0, address.rfind(':'));
    if (!root_names_.insert(root).second) root = "pci" + address;
    return roots_[busid] = root;
  }

  std::string pci_path() const {
    std::string path = root_;
    for (const std::string& bridge : way_) path += '/' + bridge;
    return path;
  }

  void add_gpu(pugi::xml_node pci, const std::string& busid) {
    if (topology_.gpus.size() + gpus_.size() == most_parts)
      document_.fail(pci, fmt::format("the file has more than {} GPUs", most_parts));
    Found found{.gpu = {.id = "", .host = id_, .busid = busid, .uuid = "", .model = ""},
                .pci = pci};
    TopologyGpu& gpu = found.gpu;
    gpu.numa = numa_;
    gpu.pci_path = pci_path();
    nccl::add_pci_facts(pci, gpu.facts);
    gpu.model = model_of_pci_device(get_fact(gpu.facts, fact::pci_device));
    add_partitions(pci, gpu);
    if (const pugi::xml_node element = pci.child("gpu")) {
      gpu.index = nccl::integer_in(element, "dev", {0, most_index}).value_or(-1);
      nccl::add_gdr(element, gpu.facts);
      const std::string gcn = nccl::gcn_of(element);
      set_fact(gpu.facts, fact::gcn, gcn);
      // For AMD GPUs, RCCL writes the number of compute units into the attribute `sm`.
      const auto sm = nccl::integer_in(element, "sm", {10, 999});
      if (sm && gcn.empty() && nccl::vendor_of(pci) != nccl::amd)
        set_fact(gpu.facts, fact::sm, std::to_string(*sm));
    }
    gpus_.push_back(std::move(found));
  }

  // The file has no UUIDs, so a partition is called by its number: "dev1".
  void add_partitions(pugi::xml_node pci, TopologyGpu& gpu) const {
    if (!pci.child("gpu").next_sibling("gpu")) return;
    for (const pugi::xml_node element : pci.children("gpu")) {
      if (gpu.partitions.size() == most_partitions)
        document_.fail(element,
                       fmt::format("the GPU has more than {} partitions", most_partitions));
      const int number = static_cast<int>(gpu.partitions.size());
      std::string name =
          fmt::format("dev{}", nccl::integer_in(element, "dev", {0, most_index}).value_or(number));
      if (std::ranges::find(gpu.partitions, name) != gpu.partitions.end())
        name += fmt::format(".{}", number);
      gpu.partitions.push_back(std::move(name));
    }
  }

  // Returns the <gpu> of a <pci> that shows the most links; the first one if none shows more.
  static pugi::xml_node most_linked(pugi::xml_node pci) {
    const auto links = [](pugi::xml_node gpu) {
      return std::ranges::count_if(gpu.children(), nccl::is_link);
    };
    pugi::xml_node most = pci.child("gpu");
    for (const pugi::xml_node gpu : pci.children("gpu"))
      if (links(gpu) > links(most)) most = gpu;
    return most;
  }

  void add_nets(pugi::xml_node nic, pugi::xml_node pci) {
    for (const pugi::xml_node net : nic.children("net")) {
      std::string name = net.attribute("name").value();
      if (!nccl::is_plain(name))
        document_.fail(net, "<net>: the name is too long or has bytes that cannot be printed");
      if (name.empty() && pci)
        name = nccl::unnamed_nic(normal_busid(pci.attribute("busid").value()));
      if (name.empty())
        document_.fail(net, "<net>: the element has neither a name nor a PCI device");
      add_nic(net, pci, name);
    }
  }

  // Adds a NIC. If the file has no <net> for the adapter, `net` is the <pci> element.
  void add_nic(pugi::xml_node net, pugi::xml_node pci, std::string name) {
    const long long port = XmlDocument::integer(net, "port").value_or(0);
    auto known = nets_.find(name);
    if (known != nets_.end() && known->second.port != port) {
      name += fmt::format(":{}", port);
      known = nets_.find(name);
    }
    TopologyNic nic = make_nic(net, pci, name);
    if (known != nets_.end()) {
      TopologyNic& first = topology_.nics[known->second.nic];
      if (first.numa != nic.numa) first.numa = -1;
      if (first.busid != nic.busid) first.busid.clear();
      if (first.pci_path != nic.pci_path) first.pci_path.clear();
      return;
    }
    if (topology_.nics.size() == most_parts)
      document_.fail(net, fmt::format("the file has more than {} NICs", most_parts));
    nets_[name] = {topology_.nics.size(), port, net};
    topology_.nics.push_back(std::move(nic));
  }

  TopologyNic make_nic(pugi::xml_node net, pugi::xml_node pci, const std::string& name) const {
    TopologyNic nic{.id = id_ + '/' + name,
                    .host = id_,
                    .name = name,
                    .busid = "",
                    .adapter = nccl::guid_of(net.attribute("guid").value()),
                    .layer = nccl::layer_of(pci, name),
                    .state = "",
                    .rate_gbit_s = std::nullopt,
                    .evidence = ""};
    nic.rate_gbit_s = nccl::gbit_s_of(net);
    if (nic.rate_gbit_s) nic.evidence = nccl::document_format;
    nic.numa = numa_;
    nic.is_virtual = !pci && nccl::is_virtual_name(name);
    if (pci) {
      nic.busid = normal_busid(pci.attribute("busid").value());
      nic.pci_path = pci_path();
      nccl::add_pci_facts(pci, nic.facts);
    }
    nccl::add_gdr(net, nic.facts);
    if (nic.layer.empty() && nccl::is_rdma_port(net)) {
      nic.layer = layer_of_rdma_name(name);
      if (nic.layer.empty()) set_fact(nic.facts, fact::rdma, "yes");
    }
    return nic;
  }

  // Gives each GPU an id with the number from the file. If the numbers in the file are not unique,
  // GPUs are numbered in the order of their bus ids.
  void number_gpus() {
    std::ranges::sort(gpus_, {},
                      [](const Found& found) -> const std::string& { return found.gpu.busid; });
    std::set<int> numbers;
    for (const Found& found : gpus_) numbers.insert(found.gpu.index);
    const bool are_told_apart = numbers.size() == gpus_.size() && !numbers.contains(-1);
    if (are_told_apart)
      std::ranges::sort(gpus_, {}, [](const Found& found) { return found.gpu.index; });
    for (std::size_t i = 0; i < gpus_.size(); ++i) {
      TopologyGpu& gpu = gpus_[i].gpu;
      gpu.id = fmt::format("{}/gpu{}", id_, are_told_apart ? gpu.index : static_cast<int>(i));
      by_busid_[gpu.busid] = i;
      if (const auto net = nets_.find(gpu.id.substr(id_.size() + 1)); net != nets_.end())
        document_.fail(net->second.node, "<net>: the name is also the name of a GPU");
    }
  }

  int count_of(pugi::xml_node link) const {
    const auto count = nccl::integer_in(link, "count", {1, nccl::most_links});
    if (!count) document_.fail(link, bad_count);
    return *count;
  }

  void add_count(int& sum, int count, pugi::xml_node link) const {
    sum += count;
    if (sum > nccl::most_links) document_.fail(link, bad_count);
  }

  // Adds the links of a GPU. If the GPU has no <gpu> element, or only links to itself, the file
  // proves nothing about its links.
  void add_links(std::size_t gpu) {
    Found& found = gpus_[gpu];
    const pugi::xml_node element = most_linked(found.pci);
    SwitchLinks on_switches{.gpu = found.gpu.id, .type = ""};
    int processor = 0, all = 0;
    bool points_at_itself = false;
    std::map<std::string, int> unseen;
    for (const pugi::xml_node link : element.children()) {
      if (!nccl::is_link(link)) continue;
      const int count = count_of(link);
      const LinkEnd end = nccl::link_end(link, elements_);
      points_at_itself = points_at_itself || end == LinkEnd::itself;
      if (end == LinkEnd::itself) continue;
      add_count(all, count, link);
      on_switches.type = nccl::type_of_link(link);
      const std::string target = normal_busid(link.attribute("target").value());
      if (end == LinkEnd::gpu) {
        add_to_pair(gpu, by_busid_.at(target), link, count);
      } else if (end == LinkEnd::unseen_gpu) {
        if (target.empty()) document_.fail(link, "the target of a link is not a bus id");
        unseen[target] += count;
      } else {
        (end == LinkEnd::processor       ? processor
         : end == LinkEnd::hidden_switch ? on_switches.hidden
                                         : on_switches.own) += count;
      }
    }
    found.is_linked = found.is_linked || all > 0;
    found.says_links = element && (all > 0 || !points_at_itself);
    if (all > 0 && !points_at_itself && on_switches.type == "nvlink")
      set_fact(found.gpu.facts, fact::nvlink_active, std::to_string(all));
    if (processor > 0) add_link(found.gpu.id, id_ + "/cpu", "nvlink_cpu", processor);
    for (const auto& [target, count] : unseen)
      add_link(found.gpu.id, fmt::format("{}/{}{}", id_, nccl::unseen_prefix, target),
               on_switches.type + "_unseen", count);
    if (on_switches.own + on_switches.hidden > 0) switches_.push_back(std::move(on_switches));
  }

  void add_link(const std::string& a, const std::string& b, const std::string& type, int count) {
    topology_.links.push_back({a, b, type, count, std::nullopt});
  }

  void add_to_pair(std::size_t from, std::size_t to, pugi::xml_node link, int count) {
    Pair& pair = pairs_[std::minmax(from, to)];
    pair.type = nccl::type_of_link(link);
    add_count(from < to ? pair.from_first : pair.from_second, count, link);
    gpus_[to].is_linked = true;
  }

  // Adds the links of each pair of GPUs. If the elements of the two GPUs state different numbers of
  // links, the smaller number is used and a conflict is added. There is no conflict if one of the
  // GPUs has no <gpu> element.
  void join_pairs() {
    for (const auto& [ends, pair] : pairs_) {
      const Found &first = gpus_[ends.first], &second = gpus_[ends.second];
      const int larger = std::max(pair.from_first, pair.from_second);
      const int smaller = std::min(pair.from_first, pair.from_second);
      const bool is_stated_once = (pair.from_first == 0 && !first.says_links) ||
                                  (pair.from_second == 0 && !second.says_links);
      const int count = smaller > 0 ? smaller : larger;
      add_link(first.gpu.id, second.gpu.id, pair.type, count);
      if (smaller == larger || is_stated_once) continue;
      const auto statement = [&](const Found& from, int links) {
        return fmt::format("{} ({}, {})", links, origin_, from.gpu.id);
      };
      std::string believed = statement(first, pair.from_first);
      std::string contradiction = statement(second, pair.from_second);
      if (pair.from_first != count) std::swap(believed, contradiction);
      topology_.conflicts.push_back(
          {first.gpu.id + " - " + second.gpu.id, "links", believed, contradiction});
    }
  }

  IslandState gpu_links() const {
    const auto tells = [](const Found& found) { return found.says_links || found.is_linked; };
    if (gpus_.empty() || !std::ranges::all_of(gpus_, tells)) return IslandState::unknown;
    return std::ranges::any_of(gpus_, &Found::is_linked) ? IslandState::known : IslandState::none;
  }

  // Adds the host. The numbers of packages and cores stay unknown: a package may have several NUMA
  // nodes, and the CPU masks in the file count hardware threads.
  void add_host(const nccl::HostElements& elements) {
    TopologyHost host;
    host.id = host.name = id_;
    host.numa_nodes = static_cast<int>(numa_nodes_.size());
    host.threads = host.host_threads = threads_.count();
    host.gpu_links = gpu_links();
    set_fact(host.facts, fact::host_hash, elements.hash);
    topology_.hosts.push_back(std::move(host));
  }

  const XmlDocument& document_;
  std::string_view origin_;
  Topology& topology_;
  std::string id_;
  int numa_ = -1;                             // NUMA node of the current <cpu>
  std::string root_;                          // root complex above the current outermost <pci>
  std::vector<std::string> way_;              // bus ids of the open <pci> elements, outermost first
  std::map<std::string, std::string> roots_;  // for each outermost <pci>, the root complex above
  std::set<std::string> root_names_;
  std::set<int> numa_nodes_;
  CpuSet threads_;
  nccl::PciElements elements_;
  std::vector<Found> gpus_;
  std::map<std::string, std::size_t> by_busid_;
  std::map<std::string, Net> nets_;  // NICs of the current host, by name
  std::map<std::pair<std::size_t, std::size_t>, Pair> pairs_;
  std::vector<SwitchLinks> switches_;
};

// Adds the links to switches of all hosts. NCCL writes several hosts into one file only if NVLink
// connects the hosts, so their hidden switches are then the switches of the rack.
void add_switch_links(const std::vector<std::vector<SwitchLinks>>& hosts, std::string_view origin,
                      Topology& topology) {
  const auto hides_switches = [](const std::vector<SwitchLinks>& gpus) {
    return std::ranges::any_of(gpus, [](const SwitchLinks& links) { return links.hidden > 0; });
  };
  const bool is_rack = std::ranges::count_if(hosts, hides_switches) > 1;
  for (std::size_t i = 0; i < hosts.size(); ++i)
    for (const SwitchLinks& links : hosts[i]) {
      const std::string own = topology.hosts[i].id + "/nvswitch0";
      const std::string rack = fmt::format("rack:{}/nvswitch0", host_of(origin));
      const auto add = [&](const std::string& end, int count) {
        if (count == 0) return;
        topology.links.push_back({links.gpu, end, links.type, count, std::nullopt});
      };
      add(own, links.own + (is_rack ? 0 : links.hidden));
      if (is_rack) add(rack, links.hidden);
    }
}

// Counts the elements that HostReader does not read, because it does not know them or because they
// are in an unusual place.
struct UnreadElements : pugi::xml_tree_walker {
  static constexpr std::size_t most_kinds = 1000;
  std::map<std::string, std::size_t> counts;
  bool for_each(pugi::xml_node& node) override {
    if (node.type() != pugi::node_element) return true;
    const std::string_view name = node.name(), above = node.parent().name();
    const bool is_in_tree = above == "cpu" || above == "pci";
    const bool is_read = name == "system" || (name == "cpu" && above == "system") ||
                         ((name == "pci" || name == "nic") && is_in_tree) ||
                         (name == "gpu" && above == "pci") || (name == "net" && above == "nic") ||
                         (nccl::is_link(node) && above == "gpu");
    if (is_read) return true;
    const std::string place = fmt::format("<{}> in <{}>", name.substr(0, nccl::longest_text),
                                          above.substr(0, nccl::longest_text));
    if (counts.size() < most_kinds || counts.contains(place)) ++counts[place];
    return true;
  }
};

// Notes on the first host what the file lists and the topology does not hold.
void add_notes(pugi::xml_node system, Topology& topology) {
  UnreadElements unread;
  system.traverse(unread);
  std::vector<std::string> parts;
  for (const auto& [place, count] : unread.counts)
    parts.push_back(fmt::format("{} {}", count, printable(place)));
  if (parts.empty()) return;
  set_fact(topology.hosts.front().facts,
           fmt::format("{}{}", fact::note_prefix, nccl::document_format),
           fmt::format("the file has elements that are not read: {}", enumerate(parts)));
}

Topology read_nccl_xml(std::string_view text, std::string_view origin) {
  const XmlDocument document(text, origin);
  const pugi::xml_node system = document.root("system");
  const auto hosts = nccl::hosts_of(system);
  if (hosts.empty()) document.fail(system, "<system>: the element contains no <cpu>");
  if (hosts.size() > most_parts)
    document.fail(system, fmt::format("the file has more than {} hosts", most_parts));
  Topology topology;
  TopologyDocument original{.format = std::string(nccl::document_format),
                            .origin = std::string(origin),
                            .hosts = {},
                            .text = std::string(text)};
  std::vector<std::vector<SwitchLinks>> switches;
  for (const nccl::HostElements& elements : hosts) {
    if (!nccl::is_plain(elements.hash))
      document.fail(elements.cpus.front(),
                    "<cpu>: the host_hash is too long or has bytes that cannot be printed");
    const std::string stem = host_of(origin);
    original.hosts.push_back(hosts.size() == 1 ? stem
                                               : fmt::format("{}-{}", stem, original.hosts.size()));
    switches.push_back(
        HostReader(document, origin, topology, original.hosts.back()).read(elements));
  }
  if (const pugi::xml_node pci = system.find_node(
          [](pugi::xml_node node) { return std::string_view(node.name()) == "pci"; });
      pci && topology.gpus.empty() && topology.nics.empty())
    document.fail(pci,
                  "no <pci> is known to be a GPU or a NIC by its class, a <gpu> or a <nic>. NCCL "
                  "completes such a file on the machine: set NCCL_TOPO_FILE to it and "
                  "NCCL_TOPO_DUMP_FILE=FILE, run a job, and read FILE");
  add_switch_links(switches, origin, topology);
  add_notes(system, topology);
  topology.documents.push_back(std::move(original));
  return topology;
}

bool is_nccl_xml(std::string_view text) { return first_element_is(text, "system"); }

}  // namespace

const Importer nccl_xml{"nccl xml", is_nccl_xml, read_nccl_xml};

}  // namespace atoll_v1::atoll::importers
