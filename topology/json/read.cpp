// Reader of atoll's JSON form, which topology/README.md documents.
#include <fmt/format.h>

#include <set>

#include "atoll/topology.hpp"
#include "json/document.hpp"

namespace atoll_v1::atoll {
namespace {

constexpr std::string_view schema = "atoll-topology-1";
constexpr std::size_t most_devices = 65'536;  // limit for hosts, GPUs and NICs each
constexpr std::size_t most_links = 524'288;
constexpr std::size_t most_documents = 4'096;
constexpr std::size_t most_partitions = 64;
constexpr std::pair count_range{0, 1'000'000};
constexpr std::pair number_range{-1, 1'000'000};

IslandState state_of(const JsonObject& object, std::string_view member) {
  const std::string text = object.text_or(member, name(IslandState::unknown));
  for (const auto state : {IslandState::known, IslandState::none, IslandState::unknown})
    if (text == name(state)) return state;
  object.fail(member, "is not one of known, none, unknown");
}

TopologyHost read_host(const JsonObject& object) {
  TopologyHost host;
  host.id = object.text("id");
  host.name = object.text_or("name", host.id);
  host.packages = object.integer_or("packages", 0, count_range);
  host.numa_nodes = object.integer_or("numa_nodes", 0, count_range);
  host.cores = object.integer_or("cores", 0, count_range);
  host.threads = object.integer_or("threads", 0, count_range);
  host.host_cores = object.integer_or("host_cores", host.cores, count_range);
  host.host_threads = object.integer_or("host_threads", host.threads, count_range);
  host.memory_bytes = object.unsigned_or("memory_bytes", 0);
  host.gpu_links = state_of(object, "gpu_links");
  host.facts = object.texts("facts");
  return host;
}

TopologyGpu read_gpu(const JsonObject& object) {
  TopologyGpu gpu;
  gpu.id = object.text("id");
  gpu.host = object.text("host");
  gpu.busid = object.text_or("busid", "");
  gpu.uuid = object.text_or("uuid", "");
  gpu.model = object.text_or("model", "");
  gpu.index = object.integer_or("index", -1, number_range);
  gpu.numa = object.integer_or("numa", -1, number_range);
  gpu.package = object.integer_or("package", -1, number_range);
  gpu.pci_path = object.text_or("pci_path", "");
  gpu.partitions = object.text_list("partitions", most_partitions);
  gpu.facts = object.texts("facts");
  return gpu;
}

TopologyNic read_nic(const JsonObject& object) {
  TopologyNic nic;
  nic.id = object.text("id");
  nic.host = object.text("host");
  nic.name = object.text_or("name", nic.id);
  nic.busid = object.text_or("busid", "");
  nic.adapter = object.text_or("adapter", "");
  nic.layer = object.text_or("layer", "");
  nic.state = object.text_or("state", "");
  nic.rate_gbit_s = object.number("rate_gbit_s");
  nic.evidence = object.text_or("evidence", "");
  nic.numa = object.integer_or("numa", -1, number_range);
  nic.package = object.integer_or("package", -1, number_range);
  nic.pci_path = object.text_or("pci_path", "");
  nic.is_virtual = object.is_true("virtual");
  nic.facts = object.texts("facts");
  return nic;
}

TopologyLink read_link(const JsonObject& object) {
  TopologyLink link;
  link.a = object.text("a");
  link.b = object.text("b");
  link.type = object.text("type");
  link.count = object.integer_or("count", 1, {1, count_range.second});
  link.gbyte_s = object.number("gbyte_s");
  return link;
}

TopologyPath read_path(const JsonObject& object) {
  TopologyPath path{.a = object.text("a"), .b = object.text("b")};
  const std::string level = object.text("level");
  for (const auto known : {PathLevel::pix, PathLevel::pxb, PathLevel::phb, PathLevel::node,
                           PathLevel::package, PathLevel::sys})
    if (level == name(known)) {
      path.level = known;
      return path;
    }
  object.fail("level", "is not one of PIX, PXB, PHB, NODE, PKG, SYS");
}

TopologyConflict read_conflict(const JsonObject& object) {
  return {object.text("subject"), object.text("member"), object.text("believed"),
          object.text("contradiction")};
}

TopologyDocument read_document(const JsonObject& object) {
  return {object.text("format"), object.text_or("origin", ""),
          object.text_list("hosts", most_devices), object.long_text("text")};
}

// Requires ids that are not empty and occur once.
class IdCheck {
 public:
  void operator()(const JsonObject& object) {
    const std::string id = object.text("id");
    if (id.empty()) object.fail("id", "is empty");
    if (!seen_.insert(id).second) object.fail("id", "occurs twice");
  }
  bool contains(const std::string& id) const { return seen_.contains(id); }

 private:
  std::set<std::string> seen_;
};

template <class T>
std::vector<T> read_list(const std::vector<JsonObject>& objects, T (*read)(const JsonObject&)) {
  std::vector<T> list;
  list.reserve(objects.size());
  for (const JsonObject& object : objects) list.push_back(read(object));
  return list;
}

}  // namespace

Topology Topology::from_json(std::string_view text, std::string_view source) {
  const JsonValue document = parse_json(text, source);
  const JsonObject root(document, source, "");
  if (root.text("schema") != schema) root.fail("schema", fmt::format("is not \"{}\"", schema));
  const auto hosts = root.list("hosts", most_devices), gpus = root.list("gpus", most_devices),
             nics = root.list("nics", most_devices);
  IdCheck check_host, check_device;
  for (const JsonObject& host : hosts) check_host(host);
  for (const auto* devices : {&gpus, &nics})
    for (const JsonObject& device : *devices) {
      check_device(device);
      if (!check_host.contains(device.text("host"))) device.fail("host", "is not the id of a host");
    }
  Topology topology;
  topology.hosts = read_list(hosts, read_host);
  topology.gpus = read_list(gpus, read_gpu);
  topology.nics = read_list(nics, read_nic);
  topology.links = read_list(root.list("links", most_links), read_link);
  topology.paths = read_list(root.list("paths", most_links), read_path);
  topology.conflicts = read_list(root.list("conflicts", most_links), read_conflict);
  topology.documents = read_list(root.list("documents", most_documents), read_document);
  return topology;
}

}  // namespace atoll_v1::atoll
