// Tests the reader of the XML log that `nvidia-smi -q -x` prints.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <regex>
#include <string>
#include <vector>

#include "atoll/topology.hpp"
#include "facts.hpp"
#include "inspect/importers/importer.hpp"
#include "unit/topology/import.hpp"
#include "unit/topology/machines.hpp"

namespace {

using atoll::get_fact;
using atoll::IslandState;
using atoll::Topology;
using machines::contains;
using machines::gpus_of;
using topology_test::check_facts;
using topology_test::error_of;
using topology_test::island_sizes;
namespace fact = atoll::fact;
namespace importers = atoll::importers;

Topology read_log(const std::string& text) {
  return importers::nvidia_smi_xml.read(text, "dir/node7.xml");
}

const std::string h100 =
    "<product_name>NVIDIA H100 80GB HBM3</product_name>"
    "<persistence_mode>Enabled</persistence_mode>"
    "<mig_mode><current_mig>Disabled</current_mig></mig_mode>"
    "<mig_devices>\n\t\t\tNone\n\t\t</mig_devices>"
    "<uuid>GPU-11111111-2222-3333-4444-555555555555</uuid>"
    "<pci><pci_device_id>233010DE</pci_device_id>"
    "<pci_gpu_link_info>"
    "<pcie_gen><max_link_gen>5</max_link_gen><current_link_gen>1</current_link_gen></pcie_gen>"
    "<link_widths><max_link_width>16x</max_link_width>"
    "<current_link_width>8x</current_link_width></link_widths></pci_gpu_link_info>"
    "<replay_counter>7</replay_counter></pci>"
    "<fb_memory_usage><total>81559 MiB</total></fb_memory_usage>"
    "<remapped_rows><remapped_row_pending>Yes</remapped_row_pending>"
    "<remapped_row_failure>No</remapped_row_failure></remapped_rows>"
    "<gpu_power_readings><current_power_limit>650.50 W</current_power_limit>"
    "<default_power_limit>700.00 W</default_power_limit></gpu_power_readings>";

std::string gpu_element(const std::string& id, const std::string& members) {
  return "<gpu id=\"" + id + "\">" + members + "</gpu>\n";
}

std::string whole_log(const std::string& members) {
  return "<?xml version=\"1.0\" ?>\n"
         "<!DOCTYPE nvidia_smi_log SYSTEM \"nvsmi_device_v12.dtd\">\n"
         "<nvidia_smi_log>\n<driver_version>570.86.15</driver_version>\n"
         "<cuda_version>12.8</cuda_version>\n" +
         members + "</nvidia_smi_log>\n";
}

// Returns the facts of a GPU with `members` as the content of its XML element.
atoll::Facts facts_of(const std::string& members) {
  return read_log(whole_log(gpu_element("00000000:1B:00.0", members))).gpus.at(0).facts;
}

std::string fabric(const std::string& state, const std::string& cluster,
                   const std::string& health = "") {
  return "<fabric><state>" + state + "</state><status>Success</status><cliqueId>3</cliqueId>" +
         "<clusterUuid>" + cluster + "</clusterUuid>" + health + "</fabric>";
}

const std::string cluster_a = "ABCDEF01-0000-0000-0000-000000000001";

}  // namespace

TEST_CASE("-q -x: who a GPU is") {
  const std::string text =
      whole_log("<attached_gpus>2</attached_gpus>" + gpu_element("00000000:1B:00.0", h100) +
                gpu_element("0009:43:00.0", h100));
  CHECK(importers::nvidia_smi_xml.recognises(text));
  const Topology read = read_log(text);
  REQUIRE(read.hosts.size() == 1);
  CHECK(read.hosts[0].id == "node7");
  CHECK(read.hosts[0].gpu_links == IslandState::unknown);
  check_facts(read.hosts[0].facts, "driver.version 570.86.15; cuda.version 12.8");
  REQUIRE(gpus_of(read) ==
          "node7/gpu0 00000000:1b:00.0 index 0 numa -1 NVIDIA H100 80GB HBM3; "
          "node7/gpu1 00000009:43:00.0 index 1 numa -1 NVIDIA H100 80GB HBM3; ");
  CHECK(read.gpus[0].uuid == "GPU-11111111-2222-3333-4444-555555555555");
  CHECK(read.gpus[0].partitions.empty());
  CHECK(read.links.empty());
}

TEST_CASE("-q -x: PCIe, memory, power, and health of a GPU") {
  const atoll::Facts facts = facts_of(h100);
  check_facts(facts,
              "pci.device 10de:2330; pci.gt_s 2.5; pci.gt_s_max 32; pci.width 8; pci.width_max 16; "
              "pci.replays 7; memory_bytes 85520809984; power.limit_w 650.5; power.default_w 700; "
              "persistence yes; mig no; ecc.remap_pending yes; ecc.remap_failed no");
  for (const auto name : {fact::sm, fact::throttle, fact::fabric_state})
    CHECK_FALSE(facts.contains(name));
  // Power limits have other names in older logs.
  check_facts(facts_of("<power_readings><power_limit>300.00 W</power_limit>"
                       "<default_power_limit>400.00 W</default_power_limit>"
                       "<enforced_power_limit>250.00 W</enforced_power_limit></power_readings>"),
              "power.limit_w 250; power.default_w 400");
}

TEST_CASE("-q -x: phrases that stand for a value are none") {
  for (const char* phrase :
       {"N/A", "[N/A]", "None", "Requested functionality has been deprecated", "GPU requires reset",
        "[Unknown Error]", "[Not Supported]", "Insufficient Permissions", "ERR!", ""}) {
    CAPTURE(phrase);
    const std::string text =
        std::regex_replace(h100, std::regex(">[^<>]+<"), fmt::format(">{}<", phrase));
    const Topology read = read_log(whole_log(gpu_element("00000000:1B:00.0", text)));
    CHECK(read.gpus[0].model.empty());
    CHECK(read.gpus[0].uuid.empty());
    CHECK(read.gpus[0].facts.empty());
  }
}

TEST_CASE("-q -x: the state of the fabric") {
  for (const auto& [text, state] :
       {std::pair("In Progress", "in_progress"), std::pair("Not Started", "not_started"),
        std::pair("Not Supported", "not_supported"), std::pair("N/A", "not_supported"),
        std::pair("Dreaming", "")})
    CHECK(get_fact(facts_of(fabric(text, "")), fact::fabric_state) == state);
  check_facts(facts_of(fabric("Completed", cluster_a)),
              "fabric.state completed; fabric.status success; fabric.cluster "
              "abcdef01-0000-0000-0000-000000000001; "
              "fabric.clique 3");
  CHECK_FALSE(facts_of(fabric("N/A", "N/A")).contains(fact::fabric_cluster));
}

TEST_CASE("-q -x: the health of the fabric") {
  const auto health = [](const std::string& members) {
    const auto facts = facts_of(fabric("Completed", cluster_a, "<health>" + members + "</health>"));
    return std::string(get_fact(facts, fact::fabric_health));
  };
  CHECK(health("<summary>Healthy</summary><bandwidth>Full</bandwidth>") == "healthy");
  CHECK(health("<bandwidth>Full</bandwidth><route_unhealthy>False</route_unhealthy>") == "healthy");
  CHECK(health("<summary>Unhealthy</summary><bandwidth>Degraded</bandwidth>"
               "<route_unhealthy>True</route_unhealthy>") == "bandwidth degraded, route unhealthy");
  CHECK(health("<incorrect_configuration>Insufficient NVLinks</incorrect_configuration>") ==
        "incorrect configuration insufficient nvlinks");
  CHECK(health("<partition_assigned>False</partition_assigned>") == "no partition assigned");
  CHECK(health("<partition_assigned>True</partition_assigned>") == "healthy");
  CHECK(health("<summary>Limited Capacity</summary>") == "limited capacity");
  CHECK(health("<summary>N/A</summary><bandwidth>N/A</bandwidth>").empty());
}

TEST_CASE("-q -x: reasons for lower clocks, under both names of the list") {
  for (const char* word : {"event", "throttle"}) {
    const auto throttle = [&](const std::string& active) {
      const std::string list = fmt::format("clocks_{}_reasons", word);
      std::string text = "<" + list + ">";
      for (const char* reason :
           {"gpu_idle", "applications_clocks_setting", "sw_power_cap", "hw_slowdown",
            "hw_thermal_slowdown", "hw_power_brake_slowdown", "sw_thermal_slowdown"})
        text += fmt::format("<clocks_{0}_reason_{1}>{2}</clocks_{0}_reason_{1}>", word, reason,
                            active == reason || active == "all" ? "Active" : "Not Active");
      return std::string(get_fact(facts_of(text + "</" + list + ">"), fact::throttle));
    };
    CHECK(throttle("") == "none");
    CHECK(throttle("gpu_idle") == "none");
    CHECK(throttle("applications_clocks_setting") == "none");
    CHECK(throttle("sw_power_cap") == "power_cap");
    CHECK(throttle("sw_thermal_slowdown") == "thermal");
    CHECK(throttle("all") == "hw_slowdown power_brake power_cap thermal");
  }
  CHECK_FALSE(facts_of("<clocks_event_reasons><clocks_event_reason_sw_power_cap>N/A"
                       "</clocks_event_reason_sw_power_cap></clocks_event_reasons>")
                  .contains(fact::throttle));
}

TEST_CASE("-q -x: MIG devices") {
  const auto device = [](const std::string& members) {
    return "<mig_device>" + members + "</mig_device>";
  };
  const std::string ids =
      "<gpu_instance_id>5</gpu_instance_id><compute_instance_id>1</compute_instance_id>";
  const auto partitions = [&](const std::string& gpu, const std::string& devices) {
    return read_log(
               whole_log(gpu_element("00000000:1B:00.0",
                                     gpu +
                                         "<mig_mode><current_mig>Enabled</current_mig></mig_mode>"
                                         "<mig_devices>" +
                                         devices + "</mig_devices>")))
        .gpus.at(0);
  };
  const auto named = partitions("", device(ids + "<uuid>MIG-aaaa</uuid>"));
  CHECK(get_fact(named.facts, fact::mig) == "yes");
  CHECK(named.partitions == std::vector<std::string>{"MIG-aaaa"});
  CHECK(partitions("<uuid>GPU-bbbb</uuid>", device(ids)).partitions ==
        std::vector<std::string>{"MIG-GPU-bbbb/5/1"});
  CHECK(partitions("", device(ids) + device("<gpu_instance_id>6</gpu_instance_id>")).partitions ==
        std::vector<std::string>{"MIG-5-1", "MIG-6-0"});
  std::string many;
  for (int i = 0; i < 65; ++i) many += device(ids);
  CHECK(contains(
      error_of(read_log, whole_log(gpu_element("", "<mig_devices>" + many + "</mig_devices>"))),
      "more than 64 MIG devices"));
}

TEST_CASE("-q -x: a log of some GPUs (-i) does not tell their numbers") {
  const Topology read = read_log(whole_log("<attached_gpus>8</attached_gpus>" +
                                           gpu_element("00000000:43:00.0", h100) +
                                           gpu_element("00000000:1B:00.0", h100)));
  CHECK(gpus_of(read) ==
        "node7/gpu0 00000000:1b:00.0 index -1 numa -1 NVIDIA H100 80GB HBM3; "
        "node7/gpu1 00000000:43:00.0 index -1 numa -1 NVIDIA H100 80GB HBM3; ");
}

TEST_CASE("-q -x: a GPU passed to a virtual machine") {
  const auto machine = [](const std::string& mode) {
    const Topology read = read_log(whole_log(
        gpu_element("00000000:1B:00.0", "<gpu_virtualization_mode><virtualization_mode>" + mode +
                                            "</virtualization_mode></gpu_virtualization_mode>")));
    return std::string(get_fact(read.hosts[0].facts, fact::virtual_machine));
  };
  CHECK(machine("Pass-Through") == "yes");
  // Whether the host is a virtual machine is unknown: the GPU is not virtual, but its host may be.
  CHECK(machine("None").empty());
}

TEST_CASE("-q -x: a bus id that is none, and a host without GPUs") {
  const Topology read = read_log(
      whole_log(gpu_element("GPU-1", "<pci><pci_bus_id>00000000:1B:00.0</pci_bus_id></pci>") +
                gpu_element("bus0", "")));
  CHECK(gpus_of(read) ==
        "node7/gpu0 00000000:1b:00.0 index 0 numa -1 -; node7/gpu1 - index 1 numa -1 -; ");
  CHECK(read_log(whole_log("<attached_gpus>0</attached_gpus>")).gpus.empty());
}

TEST_CASE("-q -x: damage is named with its byte") {
  const std::string twice =
      whole_log(gpu_element("00000000:1B:00.0", "") + gpu_element("00000000:1B:00.0", ""));
  CHECK(error_of(read_log, twice) ==
        fmt::format("dir/node7.xml: byte {}: two GPUs have the bus id 00000000:1b:00.0",
                    twice.rfind("<gpu ") + 1));
  const std::string open = whole_log("").substr(0, 150);
  CHECK(error_of(read_log, open).starts_with("dir/node7.xml: byte "));
  CHECK(contains(error_of(read_log, "<nvidia_smi/>"), "the root element is not <nvidia_smi_log>"));
  std::string many;
  for (int i = 0; i < 1025; ++i) many += "<gpu/>";
  CHECK(contains(error_of(read_log, whole_log(many)), "more than 1024 GPUs"));
}

TEST_CASE("XML files are told apart by their first element") {
  const std::pair<const importers::Importer*, const char*> files[] = {
      {&importers::nvidia_smi_xml, "<?xml version=\"1.0\" ?>\n<nvidia_smi_log>"},
      {&importers::hwloc_xml, "<topology>"},
      {&importers::nccl_xml, "\n<!-- a template --><system version=\"1\"/>"}};
  for (const auto& [importer, own] : files) {
    for (const auto& [other, text] : files)
      CHECK(importer->recognises(text) == (importer == other));
    for (const char* text : {"<nvidia_smi_logs/>", "<systems/>", "a <topology>",
                             "\tGPU0\tCPU Affinity\nGPU0\t X \t0-7\n"})
      CHECK_FALSE(importer->recognises(text));
  }
}
