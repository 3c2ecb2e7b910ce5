// Imports `nvidia-smi -q -x`: identity, PCIe link, health and NVLink fabric of each GPU.
//
// The format is defined in nvsmi_device_v10 to v13.dtd (drivers 450 to 580). New versions added and
// renamed elements, so every element is optional here. For a missing value the driver writes a
// phrase ("N/A", "[Unknown Error]", "Requested functionality has been deprecated"), so values
// without the expected form are ignored. The log shows no links and no NICs.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>
#include <set>

#include "facts.hpp"
#include "inspect/importers/importer.hpp"
#include "inspect/importers/xml_document.hpp"
#include "parse_number.hpp"
#include "pcie_rate.hpp"
#include "sources/pci_address.hpp"
#include "sources/small_file.hpp"
#include "wording.hpp"

namespace atoll_v1::atoll::importers {

using namespace topology_sources;
namespace {

constexpr std::size_t most_gpus = 1024;
constexpr std::size_t most_mig_devices = 64;  // largest number of MIG instances of one GPU
constexpr std::size_t longest_text = 256;

// Returns the text of an element; "" for a phrase that stands for a missing value.
std::string_view words_of(pugi::xml_node node) {
  constexpr std::array none{"n/a",
                            "none",
                            "not supported",
                            "unknown error",
                            "err!",
                            "gpu is lost",
                            "gpu requires reset",
                            "insufficient permissions",
                            "requested functionality has been deprecated"};
  const std::string_view text = trimmed(node.child_value());
  std::string_view inner = text;
  if (inner.starts_with('[') && inner.ends_with(']')) inner = inner.substr(1, inner.size() - 2);
  if (text.size() > longest_text || std::ranges::find(none, lower_case(inner)) != none.end())
    return {};
  return text;
}

// Returns the number before `unit`: 1200 for the text "1200.00 W" and the unit " W".
std::optional<double> amount_in(pugi::xml_node node, std::string_view unit = "") {
  std::string_view text = trimmed(node.child_value());
  if (!text.ends_with(unit)) return std::nullopt;
  text.remove_suffix(unit.size());
  const auto number = parse_number<double>(text);
  return number && *number >= 0 && *number <= 1e12 ? number : std::nullopt;
}

std::string_view yes_or_no(pugi::xml_node node) {
  const std::string text = lower_case(trimmed(node.child_value()));
  if (text == "yes" || text == "enabled" || text == "true") return "yes";
  if (text == "no" || text == "disabled" || text == "false") return "no";
  return {};
}

void set_number(Facts& facts, std::string_view name, std::optional<double> number) {
  if (number) set_fact(facts, name, fmt::format("{}", *number));
}

void read_pci(pugi::xml_node pci, Facts& facts) {
  // The driver writes device id and vendor id as one number, such as 0x233010DE.
  const std::string device = hex_digits(trimmed(pci.child_value("pci_device_id")));
  if (device.size() == 8)
    set_fact(facts, fact::pci_device, fmt::format("{}:{}", device.substr(4), device.substr(0, 4)));
  const pugi::xml_node link = pci.child("pci_gpu_link_info");
  const auto rate = [&](const char* element) -> std::optional<double> {
    const double generation = amount_in(link.child("pcie_gen").child(element)).value_or(0);
    const double gt_s = pcie_gt_s(static_cast<std::size_t>(generation));
    return gt_s > 0 ? std::optional(gt_s) : std::nullopt;
  };
  const auto width = [&](const char* element) {
    return amount_in(link.child("link_widths").child(element), "x");
  };
  set_number(facts, fact::pci_gt_s, rate("current_link_gen"));
  set_number(facts, fact::pci_gt_s_max, rate("max_link_gen"));
  set_number(facts, fact::pci_width, width("current_link_width"));
  set_number(facts, fact::pci_width_max, width("max_link_width"));
  set_number(facts, fact::pci_replays, amount_in(pci.child("replay_counter")));
}

// Returns the health of the NVLink fabric: "healthy", a list of faults, or "" when the driver does
// not report the health.
std::string health_of(pugi::xml_node health) {
  std::string problems;
  bool is_told = false;
  const auto add = [&](const std::string& problem) {
    if (problems.size() < longest_text) problems += (problems.empty() ? "" : ", ") + problem;
  };
  for (const pugi::xml_node child : health.children()) {
    const std::string name = child.name(), value = lower_case(words_of(child));
    if (value.empty() || name == "summary") continue;
    is_told = true;
    std::string words = name.substr(0, longest_text);
    std::ranges::replace(words, '_', ' ');
    if (name == "partition_assigned") {
      if (yes_or_no(child) == "no") add("no partition assigned");
    } else if (value == "true" || value == "yes") {
      add(words);
    } else if (yes_or_no(child).empty() && value != "full") {
      add(fmt::format("{} {}", words, value));  // a fault such as "bandwidth degraded"
    }
  }
  const std::string summary = lower_case(words_of(health.child("summary")));
  if (!problems.empty() || summary == "healthy" || (summary.empty() && is_told))
    return problems.empty() ? "healthy" : problems;
  return summary;
}

void read_fabric(pugi::xml_node fabric, Facts& facts) {
  if (!fabric) return;
  std::string state = lower_case(trimmed(fabric.child_value("state")));
  std::ranges::replace(state, ' ', '_');
  if (state == "n/a") state = "not_supported";
  constexpr std::array states{"completed", "in_progress", "not_started", "not_supported"};
  if (std::ranges::find(states, state) != states.end()) set_fact(facts, fact::fabric_state, state);
  const std::string_view status = words_of(fabric.child("status"));
  set_fact(facts, fact::fabric_status, status == "Success" ? "success" : status);
  set_fact(facts, fact::fabric_cluster, lower_case(words_of(fabric.child("clusterUuid"))));
  set_fact(facts, fact::fabric_clique, words_of(fabric.child("cliqueId")));
  set_fact(facts, fact::fabric_health, health_of(fabric.child("health")));
}

// Reads why the clocks are reduced, but skips idleness and clocks that a user set. Drivers before
// 525 call the reasons "throttle reasons".
void read_throttle(pugi::xml_node gpu, Facts& facts) {
  struct Reason {
    std::string_view element, word;
  };
  constexpr std::array reasons{
      Reason{"sw_power_cap", "power_cap"}, Reason{"hw_slowdown", "hw_slowdown"},
      Reason{"hw_thermal_slowdown", "thermal"}, Reason{"sw_thermal_slowdown", "thermal"},
      Reason{"hw_power_brake_slowdown", "power_brake"}};
  std::set<std::string_view> active;
  bool is_told = false;
  for (const char* list : {"clocks_event_reasons", "clocks_throttle_reasons"})
    for (const pugi::xml_node child : gpu.child(list).children())
      for (const Reason& reason : reasons) {
        const std::string_view name = child.name(), value = trimmed(child.child_value());
        if (!name.ends_with(fmt::format("_reason_{}", reason.element))) continue;
        is_told = is_told || value == "Active" || value == "Not Active";
        if (value == "Active") active.insert(reason.word);
      }
  if (is_told)
    set_fact(facts, fact::throttle,
             active.empty() ? "none" : fmt::format("{}", fmt::join(active, " ")));
}

void read_power(pugi::xml_node gpu, Facts& facts) {
  pugi::xml_node power = gpu.child("gpu_power_readings");
  if (!power) power = gpu.child("power_readings");
  for (const char* element : {"current_power_limit", "enforced_power_limit", "power_limit"})
    set_number(facts, fact::power_limit_w, amount_in(power.child(element), " W"));
  set_number(facts, fact::power_default_w, amount_in(power.child("default_power_limit"), " W"));
}

class LogReader {
 public:
  LogReader(std::string_view text, std::string_view origin)
      : document_(text, origin), root_(document_.root("nvidia_smi_log")), host_(host_of(origin)) {}

  Topology read() {
    add_host();
    for (const pugi::xml_node gpu : root_.children("gpu")) add_gpu(gpu);
    number_gpus();
    return std::move(topology_);
  }

 private:
  void add_host() {
    TopologyHost& host = topology_.hosts.emplace_back();
    host.id = host.name = host_;
    set_fact(host.facts, fact::driver_version, words_of(root_.child("driver_version")));
    set_fact(host.facts, fact::cuda_version, words_of(root_.child("cuda_version")));
  }

  void add_gpu(pugi::xml_node element) {
    if (topology_.gpus.size() == most_gpus)
      document_.fail(element, fmt::format("the log has more than {} GPUs", most_gpus));
    TopologyGpu& gpu = topology_.gpus.emplace_back();
    gpu.host = host_;
    gpu.busid = normal_busid(element.attribute("id").value());
    if (gpu.busid.empty()) gpu.busid = normal_busid(element.child("pci").child_value("pci_bus_id"));
    if (!gpu.busid.empty() && !busids_.insert(gpu.busid).second)
      document_.fail(element, fmt::format("two GPUs have the bus id {}", gpu.busid));
    gpu.uuid = words_of(element.child("uuid"));
    gpu.model = words_of(element.child("product_name"));
    read_pci(element.child("pci"), gpu.facts);
    if (const auto mib = amount_in(element.child("fb_memory_usage").child("total"), " MiB"))
      set_fact(gpu.facts, fact::memory_bytes, fmt::format("{:.0f}", *mib * (1 << 20)));
    read_fabric(element.child("fabric"), gpu.facts);
    read_throttle(element, gpu.facts);
    read_power(element, gpu.facts);
    set_fact(gpu.facts, fact::mig, yes_or_no(element.child("mig_mode").child("current_mig")));
    set_fact(gpu.facts, fact::persistence, yes_or_no(element.child("persistence_mode")));
    const pugi::xml_node rows = element.child("remapped_rows");
    set_fact(gpu.facts, fact::ecc_remap_pending, yes_or_no(rows.child("remapped_row_pending")));
    set_fact(gpu.facts, fact::ecc_remap_failed, yes_or_no(rows.child("remapped_row_failure")));
    add_partitions(element.child("mig_devices"), gpu);
    const std::string_view mode =
        words_of(element.child("gpu_virtualization_mode").child("virtualization_mode"));
    if (mode == "Pass-Through" || mode == "VGPU")
      set_fact(topology_.hosts.front().facts, fact::virtual_machine, "yes");
  }

  // Adds the MIG instances of a GPU. Few drivers print the UUID of an instance; without one, the
  // name is "MIG-GPU-UUID/GI/CI", which CUDA also accepts.
  void add_partitions(pugi::xml_node devices, TopologyGpu& gpu) const {
    for (const pugi::xml_node device : devices.children("mig_device")) {
      if (gpu.partitions.size() == most_mig_devices)
        document_.fail(device,
                       fmt::format("the GPU has more than {} MIG devices", most_mig_devices));
      const std::string_view uuid = words_of(device.child("uuid"));
      const auto gi = amount_in(device.child("gpu_instance_id"));
      const auto ci = amount_in(device.child("compute_instance_id"));
      if (!uuid.empty())
        gpu.partitions.emplace_back(uuid);
      else if (gi && gpu.uuid.starts_with("GPU-"))
        gpu.partitions.push_back(fmt::format("MIG-{}/{}/{}", gpu.uuid, *gi, ci.value_or(0)));
      else if (gi)
        gpu.partitions.push_back(fmt::format("MIG-{}-{}", *gi, ci.value_or(0)));
    }
  }

  // Numbers the GPUs. A log of all GPUs lists them in the order of their indices. If the log shows
  // only some GPUs (option -i), the indices are unknown.
  void number_gpus() {
    const auto attached = amount_in(root_.child("attached_gpus"));
    const bool is_whole = !attached || *attached == static_cast<double>(topology_.gpus.size());
    if (!is_whole) std::ranges::stable_sort(topology_.gpus, {}, &TopologyGpu::busid);
    int number = 0;
    for (TopologyGpu& gpu : topology_.gpus) {
      if (is_whole) gpu.index = number;
      gpu.id = fmt::format("{}/gpu{}", host_, number++);
    }
  }

  XmlDocument document_;
  pugi::xml_node root_;
  std::string host_;
  std::set<std::string> busids_;
  Topology topology_;
};

bool is_nvidia_smi_xml(std::string_view text) { return first_element_is(text, "nvidia_smi_log"); }

Topology read_nvidia_smi_xml(std::string_view text, std::string_view origin) {
  return LogReader(text, origin).read();
}

}  // namespace

const Importer nvidia_smi_xml{"nvidia-smi -q -x", is_nvidia_smi_xml, read_nvidia_smi_xml};

}  // namespace atoll_v1::atoll::importers
