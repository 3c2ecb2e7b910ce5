// atoll's own JSON form, read; topology/README.md documents it.
#include <fmt/format.h>

#include <set>

#include "atoll/topology.hpp"
#include "json/document.hpp"

namespace atoll_v1::atoll {
namespace {

constexpr std::string_view schema = "atoll-topology-1";
constexpr std::size_t most_devices = 65'536;  // hosts, GPUs, NICs: each
constexpr std::size_t most_links = 524'288;
constexpr std::size_t most_documents = 4'096;
constexpr std::size_t most_partitions = 64;
constexpr std::pair count_range{0, 1'000'000};
constexpr std::pair number_range{-1, 1'000'000};

IslandState state_of(const JsonObject& object, std::string_view member) {
  const std::string text = object.text_or(member, name(IslandState::unknown));
  for (const auto state : {IslandState::known, IslandState::none, IslandState::unknown})
    if (text == name(state)) return state;
  object.fail(member, "is none of known, none, unknown");
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
  object.fail("level", "is none of PIX, PXB, PHB, NODE, PKG, SYS");
}

TopologyConflict read_conflict(const JsonObject& object) {
  return {object.text("subject"), object.text("member"), object.text("believed"),
          object.text("contradiction")};
}

TopologyDocument read_document(const JsonObject& object) {
  return {object.text("format"), object.text_or("origin", ""),
          object.text_list("hosts", most_devices), object.long_text("text")};
}

// Ids must be new, and a device's host one of `hosts` (null for the hosts themselves).
void check_id(const JsonObject& object, std::set<std::string>& seen,
              const std::set<std::string>* hosts) {
  const std::string id = object.text("id");
  if (id.empty()) object.fail("id", "is empty");
  if (!seen.insert(id).second) object.fail("id", "occurs twice");
  if (hosts != nullptr && !hosts->contains(object.text("host")))
    object.fail("host", "is the id of no host");
}

}  // namespace

Topology Topology::from_json(std::string_view text, std::string_view source) {
  const JsonValue document = parse_json(text, source);
  const JsonObject root(document, source, "");
  if (root.text("schema") != schema) root.fail("schema", fmt::format("is not \"{}\"", schema));
  Topology topology;
  std::set<std::string> host_ids, device_ids;
  for (const JsonObject& object : root.list("hosts", most_devices)) {
    check_id(object, host_ids, nullptr);
    topology.hosts.push_back(read_host(object));
  }
  for (const JsonObject& object : root.list("gpus", most_devices)) {
    check_id(object, device_ids, &host_ids);
    topology.gpus.push_back(read_gpu(object));
  }
  for (const JsonObject& object : root.list("nics", most_devices)) {
    check_id(object, device_ids, &host_ids);
    topology.nics.push_back(read_nic(object));
  }
  for (const JsonObject& object : root.list("links", most_links))
    topology.links.push_back(read_link(object));
  for (const JsonObject& object : root.list("paths", most_links))
    topology.paths.push_back(read_path(object));
  for (const JsonObject& object : root.list("conflicts", most_links))
    topology.conflicts.push_back(read_conflict(object));
  for (const JsonObject& object : root.list("documents", most_documents))
    topology.documents.push_back(read_document(object));
  return topology;
}

}  // namespace atoll_v1::atoll
