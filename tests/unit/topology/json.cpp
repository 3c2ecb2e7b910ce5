#include <doctest/doctest.h>

#include "json/document.hpp"
#include "unit/captured_tree.hpp"
#include "unit/error_text.hpp"
#include "unit/topology/import.hpp"
#include "unit/topology/machines.hpp"

using atoll::ErrorCode;
using atoll::Topology;
using machines::contains;

namespace {

std::string complaint(const std::string& text) {
  return topology_test::error_of([](const auto& t) { Topology::from_json(t, "node.json"); }, text);
}

Topology full_machine() {
  Topology topology = machines::hgx(2);
  machines::add_nic(topology, "a", 400);
  topology.nics[0].numa = 1;
  topology.hosts[0].memory_bytes = 1ULL << 60;
  topology.hosts[1].gpu_links = atoll::IslandState::none;
  topology.links[0].gbyte_s.reset();
  topology.links[1].gbyte_s = 0.1;
  topology.gpus[0].model = "quote \" backslash \\ umlaut \xc3\xa4";
  return topology;
}

const std::string head = R"({"schema": "atoll-topology-1")";

}  // namespace

TEST_CASE("topology JSON: a round trip keeps everything") {
  const Topology topology = full_machine();
  const std::string text = topology.to_json();
  const Topology back = Topology::from_json(text, "round trip");
  CHECK(back.to_json() == text);
  CHECK(back.hosts[0].memory_bytes == 1ULL << 60);
  CHECK(back.hosts[1].gpu_links == atoll::IslandState::none);
  CHECK(machines::gpus_of(back) == machines::gpus_of(topology));
  CHECK(machines::links_of(back) == machines::links_of(topology));
  CHECK(back.nics[0].numa == 1);
  CHECK(Topology::from_json(Topology{}.to_json(), "empty").hosts.empty());
}

TEST_CASE("topology JSON: the documented members are there, with a mesh too") {
  const Topology topology = full_machine();
  const std::string text =
      to_json(atoll::inspect(topology, {}, plan_mesh(topology, fill_hosts(topology, 0))));
  for (const char* member :
       {"schema",  "hosts",  "gpus",    "nics",         "links",       "islands",  "busid",
        "uuid",    "index",  "adapter", "layer",        "rate_gbit_s", "evidence", "count",
        "gbyte_s", "fabric", "uniform", "pair_gbyte_s", "gpu_gbyte_s", "mesh",     "replicate",
        "shard",   "order",  "why",     "findings"})
    CHECK_MESSAGE(contains(text, '"' + std::string(member) + '"'), member);
  CHECK(Topology::from_json(text, "with mesh").gpus.size() == 16);
}

TEST_CASE("topology JSON: unknown members are skipped, and names that are not UTF-8 written") {
  Topology latin = machines::cpus(1);
  latin.hosts[0].name = "caf\xe9";
  CHECK(Topology::from_json(latin.to_json(), "latin 1").hosts.size() == 1);
  const Topology topology = Topology::from_json(
      head + R"(, "later": {"deep": [1, {"x": null}]}, "hosts": [{"id": "a", "colour": 7}]})", "x");
  REQUIRE(topology.hosts.size() == 1);
  CHECK(topology.hosts[0].name == "a");
}

TEST_CASE("topology JSON: complaints name source, byte and path") {
  CHECK(complaint(head + R"(, "hosts": [{"id": 5}]})") ==
        "node.json: byte 49: hosts[0].id is not a string");
  for (const auto& [text, what] : std::vector<std::pair<std::string, const char*>>{
           {"{}", "byte 1: schema is missing"},
           {R"({"schema": "other"})", "schema is not \"atoll-topology-1\""},
           {"[]", "not an object"},
           {std::string("\x7f\x45LF\x02\0\0", 7), "byte 1: not JSON"},
           {head + R"(, "hosts": {}})", "hosts is not an array"},
           {head + R"(, "hosts": [7]})", "hosts[0] is not an object"},
           {head + R"(, "hosts": [{"id": ""}]})", "hosts[0].id is empty"},
           {head + R"(, "hosts": [{"id": "a"}, {"id": "a"}]})", "hosts[1].id occurs twice"},
           {head + R"(, "gpus": [{"id": "a/gpu0", "host": "a"}]})",
            "gpus[0].host is not the id of a host"},
           {head + R"(, "hosts": [{"id": "a", "gpu_links": "maybe"}]})",
            "hosts[0].gpu_links is not one of"}})
    CHECK_MESSAGE(contains(complaint(text), what), text);
}

TEST_CASE("topology JSON: numbers are bounded") {
  const auto host = [](const std::string& member) {
    return complaint(head + R"(, "hosts": [{"id": "a", )" + member + "}]}");
  };
  CHECK(contains(host(R"("cores": 1000000000)"), "cores is not between 0 and 1000000"));
  CHECK(contains(host(R"("cores": 1e9)"), "cores is not an integer"));
  CHECK(contains(host(R"("memory_bytes": -1)"), "memory_bytes is not an integer of at least 0"));
  const auto link = [](const std::string& members) {
    return complaint(head + R"(, "links": [{"a": "x", "b": "y", "type": "nvlink", )" + members +
                     "}]}");
  };
  CHECK(contains(link(R"("count": 0)"), "links[0].count is not between 1"));
  CHECK(contains(link(R"("gbyte_s": "fast")"), "links[0].gbyte_s is not a number of at least 0"));
}

TEST_CASE("topology JSON: depth, size and number of values are bounded") {
  CHECK(contains(complaint(std::string(1'000'000, '[')), "byte 17: nested deeper than 16 levels"));
  CHECK(contains(complaint(head + R"(, "hosts": [{"id": ")" + std::string(5000, 'x') + "\"}]}"),
                 "hosts[0].id is longer than 4096 bytes"));

  std::string many = head + R"(, "hosts": [{})";
  for (int i = 0; i < 70'000; ++i) many += ",{}";
  CHECK(contains(complaint(many + "]}"), "hosts has more than 65536 elements"));

  const auto refuse = [](const std::string& text, atoll::JsonLimits limits) {
    return topology_test::error_of(
        [&](const std::string& small) { atoll::parse_json(small, "small", limits); }, text);
  };
  CHECK(refuse("[1, 2, 3]", {.bytes = 8}) == "small: byte 8: larger than 8 bytes");
  CHECK(contains(refuse("[1, 2, 3]", {.values = 3}), "more than 3 values"));
  CHECK(refuse("[1, 2, 3]", {.values = 4}) == "no error");
}

TEST_CASE("topology files: what cannot be loaded says why") {
  const machines::CapturedTree folder;
  const std::string path = folder.path("file");
  folder.write("file", "");
  for (const auto& [name, code] :
       {std::pair(std::string("/nowhere/node.json"), ErrorCode::not_found),
        std::pair(std::string("/"), ErrorCode::io), std::pair(path, ErrorCode::bad_data)}) {
    const std::string error = atoll_test::error_of([&] { atoll::load_topology(name); });
    CHECK(error.starts_with(atoll::name(code)));
    CHECK(contains(error, name));
  }
  folder.write("file", "  \n" + full_machine().to_json());
  CHECK(atoll::load_topology(path).gpus.size() == 16);
}
