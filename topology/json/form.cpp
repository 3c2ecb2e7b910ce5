// Reader and writer of atoll's JSON form, which topology/README.md documents. For each kind of
// element, one function members() lists the JSON members for both reader and writer.
#include <fmt/format.h>

#include <concepts>
#include <set>

#include "json/document.hpp"
#include "json/write.hpp"

namespace atoll_v1::atoll {
namespace {

using topology_json::Json;

constexpr std::string_view schema = "atoll-topology-1";
constexpr std::size_t most_devices = 65'536;  // maximum number of hosts, of GPUs and of NICs
constexpr std::size_t most_links = 524'288;
constexpr std::size_t most_documents = 4'096;
constexpr std::size_t most_partitions = 64;
constexpr int largest_number = 1'000'000;

template <class Element, class T>
concept Maybe = std::same_as<std::remove_const_t<Element>, T>;

void members(Maybe<TopologyHost> auto& host, auto&& visit) {
  visit.required("id", host.id);
  visit("name", host.name, host.id);
  visit("packages", host.packages);
  visit("numa_nodes", host.numa_nodes);
  visit("cores", host.cores);
  visit("threads", host.threads);
  visit("host_cores", host.host_cores, host.cores);
  visit("host_threads", host.host_threads, host.threads);
  visit("memory_bytes", host.memory_bytes);
  visit("gpu_links", host.gpu_links);
  visit("facts", host.facts);
}

void members(Maybe<TopologyGpu> auto& gpu, auto&& visit) {
  visit.required("id", gpu.id);
  visit.required("host", gpu.host);
  visit("busid", gpu.busid);
  visit("uuid", gpu.uuid);
  visit("model", gpu.model);
  visit("index", gpu.index);
  visit("numa", gpu.numa);
  visit("package", gpu.package);
  visit("pci_path", gpu.pci_path);
  visit("partitions", gpu.partitions, most_partitions);
  visit("facts", gpu.facts);
}

void members(Maybe<TopologyNic> auto& nic, auto&& visit) {
  visit.required("id", nic.id);
  visit.required("host", nic.host);
  visit("name", nic.name, nic.id);
  visit("busid", nic.busid);
  visit("adapter", nic.adapter);
  visit("layer", nic.layer);
  visit("state", nic.state);
  visit("rate_gbit_s", nic.rate_gbit_s);
  visit("evidence", nic.evidence);
  visit("numa", nic.numa);
  visit("package", nic.package);
  visit("pci_path", nic.pci_path);
  visit("virtual", nic.is_virtual);
  visit("facts", nic.facts);
}

void members(Maybe<TopologyLink> auto& link, auto&& visit) {
  visit.required("a", link.a);
  visit.required("b", link.b);
  visit.required("type", link.type);
  visit("count", link.count);
  visit("gbyte_s", link.gbyte_s);
}

void members(Maybe<TopologyPath> auto& path, auto&& visit) {
  visit.required("a", path.a);
  visit.required("b", path.b);
  visit.required("level", path.level);
}

void members(Maybe<TopologyConflict> auto& conflict, auto&& visit) {
  visit.required("subject", conflict.subject);
  visit.required("member", conflict.member);
  visit.required("believed", conflict.believed);
  visit.required("contradiction", conflict.contradiction);
}

void members(Maybe<TopologyDocument> auto& document, auto&& visit) {
  visit.required("format", document.format);
  visit("origin", document.origin);
  visit("hosts", document.hosts, most_devices);
  visit.long_text("text", document.text);
}

// Islands are written, but not read: they are computed from links and facts.
void members(const Island& island, auto&& visit) {
  visit("gpus", island.gpus);
  visit("hosts", island.hosts);
  visit("fabric", island.fabric);
  visit("state", island.state);
  visit("uniform", island.uniform);
  visit("pair_gbyte_s", island.pair_gbyte_s);
  visit("gpu_gbyte_s", island.gpu_gbyte_s);
}

// Reads members. A member that is absent keeps its default, or gets the value `absent`. The default
// of a number is also the least value that it may have.
class Reader {
 public:
  explicit Reader(const JsonObject& object) : object_(object) {}

  void required(const char* name, std::string& text) { text = object_.text(name); }
  void required(const char* name, PathLevel& level) {
    level = one_of(name, object_.text(name), PathLevel::sys);
  }
  void long_text(const char* name, std::string& text) { text = object_.long_text(name); }
  void operator()(const char* name, std::string& text, std::string_view absent = "") {
    text = object_.text_or(name, absent);
  }
  void operator()(const char* name, int& number) { (*this)(name, number, number); }
  void operator()(const char* name, int& number, int absent) {
    number = object_.integer_or(name, absent, {number, largest_number});
  }
  void operator()(const char* name, std::uint64_t& number) {
    number = object_.unsigned_or(name, number);
  }
  void operator()(const char* name, std::optional<double>& rate) { rate = object_.number(name); }
  void operator()(const char* name, bool& truth) { truth = object_.is_true(name); }
  void operator()(const char* name, Facts& facts) { facts = object_.texts(name); }
  void operator()(const char* name, std::vector<std::string>& texts, std::size_t most) {
    texts = object_.text_list(name, most);
  }
  void operator()(const char* member, IslandState& state) {
    state = one_of(member, object_.text_or(member, name(state)), IslandState::unknown);
  }

 private:
  // Finds the enumerator with the name `text`, among the enumerators up to `last`.
  template <class Enum>
  Enum one_of(const char* member, std::string_view text, Enum last) {
    std::string names;
    for (int i = 0; i <= static_cast<int>(last); ++i) {
      const Enum one = static_cast<Enum>(i);
      if (text == name(one)) return one;
      names += fmt::format("{}{}", names.empty() ? "" : ", ", name(one));
    }
    object_.fail(member, "is not one of " + names);
  }

  const JsonObject& object_;
};

// Writes members. The `options` of a member, such as its limits, concern only the reader.
class Writer {
 public:
  template <class T>
  void operator()(const char* member, const T& value, const auto&... /*options*/) {
    if constexpr (std::is_enum_v<T>)
      json_[member] = name(value);
    else if constexpr (std::same_as<T, std::optional<double>>)
      json_[member] = value ? Json(*value) : Json(nullptr);
    else
      json_[member] = value;
  }
  void required(const char* member, const auto& value) { (*this)(member, value); }
  void long_text(const char* member, const std::string& text) { (*this)(member, text); }
  Json take() { return std::move(json_); }

 private:
  // Not null at first: if an allocation fails while nlohmann's library turns a null value into an
  // object, the value is invalid, and cannot even be destroyed.
  Json json_ = Json::object();
};

using Ids = std::set<std::string>;

// Throws an error if the object's id is empty or is already in `seen`; otherwise adds it to `seen`.
void check_id(const JsonObject& object, Ids& seen) {
  const std::string id = object.text("id");
  if (id.empty()) object.fail("id", "is empty");
  if (!seen.insert(id).second) object.fail("id", "occurs twice");
}

template <class T>
void read_list(const std::vector<JsonObject>& objects, std::vector<T>& list) {
  list.resize(objects.size());
  for (std::size_t i = 0; i < list.size(); ++i) members(list[i], Reader(objects[i]));
}

}  // namespace

namespace topology_json {

std::string print(const Json& value) {
  return value.dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::string body(const Topology& topology, const std::vector<Island>& islands) {
  const auto value = [](const auto& element) {
    Writer writer;
    members(element, writer);
    return writer.take();
  };
  std::string text = fmt::format("{{\n  \"schema\": \"{}\"", schema);
  append_list(text, "hosts", topology.hosts, value);
  append_list(text, "gpus", topology.gpus, value);
  append_list(text, "nics", topology.nics, value);
  append_list(text, "links", topology.links, value);
  append_list(text, "paths", topology.paths, value);
  append_list(text, "conflicts", topology.conflicts, value);
  append_list(text, "documents", topology.documents, value);
  append_list(text, "islands", islands, value);
  return text;
}

}  // namespace topology_json

std::string Topology::to_json() const {
  return topology_json::body(*this, find_islands(*this)) + "\n}\n";
}

Topology Topology::from_json(std::string_view text, std::string_view source) {
  const JsonValue document = parse_json(text, source);
  const JsonObject root(document, source, "");
  if (root.text("schema") != schema) root.fail("schema", fmt::format("is not \"{}\"", schema));
  const auto hosts = root.list("hosts", most_devices), gpus = root.list("gpus", most_devices),
             nics = root.list("nics", most_devices);
  Ids host_ids, device_ids;
  for (const JsonObject& host : hosts) check_id(host, host_ids);
  for (const auto* devices : {&gpus, &nics})
    for (const JsonObject& device : *devices) {
      check_id(device, device_ids);
      if (!host_ids.contains(device.text("host"))) device.fail("host", "is not the id of a host");
    }
  Topology topology;
  read_list(hosts, topology.hosts);
  read_list(gpus, topology.gpus);
  read_list(nics, topology.nics);
  read_list(root.list("links", most_links), topology.links);
  read_list(root.list("paths", most_links), topology.paths);
  read_list(root.list("conflicts", most_links), topology.conflicts);
  read_list(root.list("documents", most_documents), topology.documents);
  return topology;
}

}  // namespace atoll_v1::atoll
