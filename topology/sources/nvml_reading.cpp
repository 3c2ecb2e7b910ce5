#include "sources/nvml_reading.hpp"

#include <dlfcn.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <future>
#include <memory>
#include <optional>
#include <system_error>
#include <thread>

#include "facts.hpp"
#include "pcie_rate.hpp"
#include "sources/nvml_api.hpp"
#include "sources/pci_address.hpp"
#include "sources/small_file.hpp"
#include "wording.hpp"

namespace atoll_v1::atoll::topology_sources {
namespace {

using nvml_api::Device;
using nvml_api::Result;

constexpr unsigned most_gpus = 1024;
constexpr unsigned most_partitions = 64;

// Returns "" for an address of all ones, which stands for a switch that this machine cannot see.
std::string busid(const nvml_api::PciInfo& at) {
  if (at.bus > 0xfe || at.device > 0x1f) return "";
  return busid(PciAddress{at.domain, at.bus, at.device, 0});
}

std::optional<unsigned long long> count_of(const nvml_api::FieldValue& value) {
  if (value.result != nvml_api::success) return std::nullopt;
  switch (value.type) {
    case nvml_api::value_unsigned:
      return value.value.as_unsigned;
    case nvml_api::value_long:
      return value.value.as_long;
    case nvml_api::value_long_long:
      return value.value.as_long_long;
    case nvml_api::value_signed_long_long:
      return static_cast<unsigned long long>(std::max(0LL, value.value.as_signed_long_long));
    case nvml_api::value_int:
      return static_cast<unsigned long long>(std::max(0, value.value.as_int));
    case nvml_api::value_short:
      return value.value.as_short;
  }
  return std::nullopt;
}

// --- The texts that the topology stores for NVML's numeric codes ---

std::string_view configuration_fault(unsigned code) {
  constexpr std::array<std::string_view, 9> faults{
      "",
      "",
      "system GUID",
      "chassis serial number",
      "no partition",
      "insufficient NVLinks",
      "incompatible GPU firmware",
      "invalid location",
      "GPU state invalid",
  };
  return code < faults.size() ? faults[code] : "unknown";
}

std::string uuid_text(const unsigned char (&bytes)[16]) {
  std::string text;
  for (std::size_t i = 0; i < std::size(bytes); ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    text += fmt::format("{:02x}", bytes[i]);
  }
  return text;
}

// Names the state of the fabric; "" for an unknown state.
std::string_view fabric_state(unsigned char state) {
  constexpr std::array<std::string_view, 4> names{"not_supported", "not_started", "in_progress",
                                                  "completed"};
  return state < names.size() ? names[state] : "";
}

// Describes the fabric's health: "healthy", or a list of problems: "degraded bandwidth, route
// unhealthy"; "" when NVML reports nothing.
std::string fabric_health(unsigned mask, unsigned char summary) {
  std::vector<std::string> words;
  const auto check = [&](unsigned shift, const char* word) {
    if (((mask >> shift) & 3U) == 1U) words.emplace_back(word);
  };
  check(nvml_api::health_degraded_bandwidth_shift, "degraded bandwidth");
  check(nvml_api::health_route_recovery_shift, "route recovery");
  check(nvml_api::health_route_unhealthy_shift, "route unhealthy");
  check(nvml_api::health_access_timeout_recovery_shift, "access timeout recovery");
  const unsigned configuration = (mask >> nvml_api::health_incorrect_configuration_shift) & 0xfU;
  if (const auto fault = configuration_fault(configuration); !fault.empty())
    words.push_back(fmt::format("incorrect configuration ({})", fault));
  if (summary == nvml_api::summary_limited_capacity) words.emplace_back("limited capacity");
  if (!words.empty()) return fmt::format("{}", fmt::join(words, ", "));
  if (summary == nvml_api::summary_unhealthy) return "unhealthy";
  return mask == 0 && summary == 0 ? "" : "healthy";
}

// Names the reasons for reduced clocks: "power_cap thermal", or "none".
std::string throttle(unsigned long long reasons) {
  std::string words;
  const auto add = [&](unsigned long long bits, std::string_view word) {
    if ((reasons & bits) == 0) return;
    if (!words.empty()) words += ' ';
    words += word;
  };
  add(nvml_api::clocks_power_cap, "power_cap");
  add(nvml_api::clocks_sw_thermal | nvml_api::clocks_hw_thermal, "thermal");
  add(nvml_api::clocks_hw_slowdown, "hw_slowdown");
  add(nvml_api::clocks_power_brake, "power_brake");
  return words.empty() ? "none" : words;
}

// Changes "Driver Not Loaded" to "driver not loaded", but keeps words that are all capitals.
std::string without_capitals(std::string words) {
  const auto is_lower = [](char c) { return c >= 'a' && c <= 'z'; };
  for (std::size_t i = 0; i + 1 < words.size(); ++i)
    if ((i == 0 || words[i - 1] == ' ') && is_lower(words[i + 1]) && words[i] >= 'A' &&
        words[i] <= 'Z')
      words[i] = static_cast<char>(words[i] - 'A' + 'a');
  return words;
}

class Reader {
 public:
  explicit Reader(void* library) : api_{library} {}

  NvmlReading read() {
    if (const Result result = api_.init(); result != nvml_api::success)
      return {.failure = fmt::format("NVML: {}", explain(result))};
    NvmlReading reading = read_all();
    api_.shutdown();
    return reading;
  }

 private:
  // Describes a result by NVML's text and its code, such as "driver not loaded (9)".
  std::string explain(Result result) const {
    const char* text = api_.error_string == nullptr ? nullptr : api_.error_string(result);
    std::string words = text == nullptr ? "error" : printable(text, 200);
    while (words.ends_with('.')) words.pop_back();
    return fmt::format("{} ({})", without_capitals(words), result);
  }

  template <std::size_t size>
  static std::string text_of(const nvml_api::Text& function, Device* device) {
    std::array<char, size> text{};
    if (function(device, text.data(), unsigned{size - 1}) != nvml_api::success) return "";
    return printable(std::string_view(text.data()), size);
  }

  static std::optional<unsigned> number_of(const nvml_api::Number& function, Device* device) {
    unsigned value = 0;
    if (function(device, &value) != nvml_api::success) return std::nullopt;
    return value;
  }

  NvmlReading read_all() const {
    NvmlReading reading;
    std::array<char, nvml_api::version_size> version{};
    if (api_.driver_version(version.data(), unsigned{version.size() - 1}) == nvml_api::success)
      reading.driver_version = printable(std::string_view(version.data()), version.size());
    unsigned count = 0;
    if (const Result result = api_.count(&count); result != nvml_api::success) {
      reading.failure = fmt::format("NVML cannot count the GPUs: {}", explain(result));
      return reading;
    }
    count = std::min(count, most_gpus);
    unsigned failures = 0;
    Result last = nvml_api::success;
    for (unsigned i = 0; i < count; ++i) {
      Device* device = nullptr;
      const Result result = api_.by_index(i, &device);
      if (result == nvml_api::success) {
        reading.gpus.push_back(read_gpu(device, i));
      } else if (result != nvml_api::no_permission) {
        ++failures;
        last = result;
      }
    }
    reading.all_gpus_answered = failures == 0;
    if (failures > 0)
      reading.remark =
          fmt::format("{} of {} GPUs cannot be opened: {}", failures, count, explain(last));
    return reading;
  }

  NvmlGpu read_gpu(Device* device, unsigned number) const {
    NvmlGpu gpu;
    gpu.index = static_cast<int>(number_of(api_.index, device).value_or(number));
    gpu.uuid = text_of<nvml_api::uuid_size>(api_.uuid, device);
    gpu.model = text_of<nvml_api::name_size>(api_.name, device);
    nvml_api::PciInfo pci{};
    if (api_.pci_info(device, &pci) == nvml_api::success) {
      gpu.busid = busid(pci);
      set_fact(gpu.facts, fact::pci_device,
               fmt::format("{:04x}:{:04x}", pci.pci_device_id & 0xffffU, pci.pci_device_id >> 16));
    }
    read_chip(device, gpu.facts);
    read_health(device, gpu.facts);
    read_partitions(device, gpu);
    read_fabric(device, gpu.facts);
    read_links(device, gpu);
    return gpu;
  }

  void read_chip(Device* device, Facts& facts) const {
    int major = 0, minor = 0;
    if (api_.compute_capability(device, &major, &minor) == nvml_api::success)
      set_fact(facts, fact::sm, fmt::format("{}{}", major, minor));
    nvml_api::Memory memory{};
    if (api_.memory(device, &memory) == nvml_api::success && memory.total > 0)
      set_fact(facts, fact::memory_bytes, fmt::to_string(memory.total));
    const auto set_number = [&](fact::Name name, double value) {
      if (value > 0) set_fact(facts, name, fmt::format("{:g}", value));
    };
    const auto gt_s = [&](const nvml_api::Number& generation) {
      return pcie_gt_s(number_of(generation, device).value_or(0));
    };
    set_number(fact::pci_gt_s, gt_s(api_.pcie_generation));
    set_number(fact::pci_gt_s_max, gt_s(api_.pcie_generation_max));
    set_number(fact::pci_width, number_of(api_.pcie_width, device).value_or(0));
    set_number(fact::pci_width_max, number_of(api_.pcie_width_max, device).value_or(0));
    if (const auto replays = number_of(api_.pcie_replays, device))
      set_fact(facts, fact::pci_replays, fmt::to_string(*replays));
  }

  void read_health(Device* device, Facts& facts) const {
    if (const auto mode = number_of(api_.persistence, device))
      set_fact(facts, fact::persistence, yes_no(*mode != 0));
    unsigned correctable = 0, uncorrectable = 0, pending = 0, failed = 0;
    if (api_.remapped_rows(device, &correctable, &uncorrectable, &pending, &failed) ==
        nvml_api::success) {
      set_fact(facts, fact::ecc_remap_pending, yes_no(pending != 0));
      set_fact(facts, fact::ecc_remap_failed, yes_no(failed != 0));
    }
    unsigned long long reasons = 0;
    if (api_.clocks_reasons(device, &reasons) == nvml_api::success)
      set_fact(facts, fact::throttle, throttle(reasons));
    if (const auto milliwatts = number_of(api_.power_limit, device))
      set_fact(facts, fact::power_limit_w, fmt::format("{:g}", *milliwatts / 1000.0));
    if (const auto milliwatts = number_of(api_.power_default, device))
      set_fact(facts, fact::power_default_w, fmt::format("{:g}", *milliwatts / 1000.0));
  }

  void read_partitions(Device* device, NvmlGpu& gpu) const {
    unsigned current = 0, pending = 0;
    if (api_.mig_mode(device, &current, &pending) != nvml_api::success) return;
    set_fact(gpu.facts, fact::mig, yes_no(current != 0));
    if (current == 0) return;
    const unsigned most = number_of(api_.mig_most, device).value_or(0);
    for (unsigned i = 0; i < std::min(most, most_partitions); ++i) {
      Device* partition = nullptr;
      if (api_.mig_by_index(device, i, &partition) != nvml_api::success) continue;
      std::string uuid = text_of<nvml_api::uuid_size>(api_.uuid, partition);
      if (!uuid.empty()) gpu.partitions.push_back(std::move(uuid));
    }
  }

  // Drivers refuse versions of the FabricInfo structure that they do not know, so this function
  // tries the newest version first, then the older one.
  std::optional<nvml_api::FabricInfo> fabric_of(Device* device) const {
    for (const unsigned version : {nvml_api::fabric_version_3, nvml_api::fabric_version_2}) {
      nvml_api::FabricInfo info{};
      info.version = version;
      if (api_.fabric(device, &info) == nvml_api::success) return info;
    }
    nvml_api::FabricInfo1 old{};
    if (api_.fabric_1(device, &old) != nvml_api::success) return std::nullopt;
    nvml_api::FabricInfo info{};
    std::ranges::copy(old.cluster_uuid, info.cluster_uuid);
    info.status = old.status;
    info.clique_id = old.clique_id;
    info.state = old.state;
    return info;
  }

  void read_fabric(Device* device, Facts& facts) const {
    const auto info = fabric_of(device);
    if (!info) return;
    set_fact(facts, fact::fabric_state, fabric_state(info->state));
    // The other members of the fabric info are valid only in the state "completed".
    if (info->state != nvml_api::fabric_completed) return;
    set_fact(facts, fact::fabric_status,
             info->status == nvml_api::success ? "success" : explain(info->status));
    set_fact(facts, fact::fabric_cluster, uuid_text(info->cluster_uuid));
    set_fact(facts, fact::fabric_clique, fmt::to_string(info->clique_id));
    set_fact(facts, fact::fabric_health, fabric_health(info->health_mask, info->health_summary));
  }

  void read_links(Device* device, NvmlGpu& gpu) const {
    gpu.links_were_read = true;
    std::vector<unsigned> active;
    for (unsigned link = 0; link < nvml_api::most_links; ++link) {
      unsigned state = 0;
      const Result result = api_.link_state(device, link, &state);
      // For link numbers above those of the chip, drivers return either "not supported" or
      // "invalid".
      if (result == nvml_api::not_supported || result == nvml_api::invalid_argument) continue;
      if (result != nvml_api::success) {
        gpu.links.clear();
        gpu.links_were_read = false;
        return;
      }
      gpu.links.push_back({.is_active = state != 0});
      if (state == 0) continue;
      read_peer(device, link, gpu.links.back());
      active.push_back(link);
    }
    if (gpu.links.empty()) return;
    set_fact(gpu.facts, fact::nvlink_total, fmt::to_string(gpu.links.size()));
    set_fact(gpu.facts, fact::nvlink_active, fmt::to_string(active.size()));
    if (const auto errors = active.empty() ? std::nullopt : link_errors(device, active))
      set_fact(gpu.facts, fact::nvlink_errors, fmt::to_string(*errors));
  }

  void read_peer(Device* device, unsigned number, NvmlLink& link) const {
    nvml_api::PciInfo pci{};
    if (api_.link_remote_pci(device, number, &pci) == nvml_api::success) {
      link.busid = busid(pci);
      // A peer without a bus id is a switch that this process cannot see, since GPUs have bus ids.
      if (link.busid.empty()) link.peer = NvmlLink::Peer::network_switch;
    }
    unsigned type = nvml_api::remote_unknown;
    if (api_.link_remote_type(device, number, &type) != nvml_api::success) return;
    if (type == nvml_api::remote_gpu) link.peer = NvmlLink::Peer::gpu;
    if (type == nvml_api::remote_switch) link.peer = NvmlLink::Peer::network_switch;
    if (type == nvml_api::remote_processor) link.peer = NvmlLink::Peer::processor;
  }

  std::optional<unsigned long long> sum_fields(Device* device,
                                               std::vector<nvml_api::FieldValue>& fields) const {
    if (api_.field_values(device, static_cast<int>(fields.size()), fields.data()) !=
        nvml_api::success)
      return std::nullopt;
    std::optional<unsigned long long> sum;
    for (const nvml_api::FieldValue& field : fields)
      if (const auto count = count_of(field)) sum = sum.value_or(0) + *count;
    return sum;
  }

  static nvml_api::FieldValue field(unsigned id, unsigned scope) {
    nvml_api::FieldValue value{};
    value.field = id;
    value.scope = scope;
    value.result = nvml_api::function_not_found;
    return value;
  }

  // Sums error counters with as few calls as possible: querying each counter of each link takes
  // long on eight GPUs.
  std::optional<unsigned long long> link_errors(Device* device,
                                                const std::vector<unsigned>& active) const {
    std::vector<nvml_api::FieldValue> fields;
    for (const unsigned id : {nvml_api::field_crc_flit_total, nvml_api::field_crc_data_total,
                              nvml_api::field_replay_total, nvml_api::field_recovery_total})
      fields.push_back(field(id, 0));
    if (const auto sum = sum_fields(device, fields)) return sum;
    fields.clear();
    for (const unsigned link : active)
      for (const unsigned id :
           {nvml_api::field_receive_errors, nvml_api::field_link_integrity_errors,
            nvml_api::field_recovery_events})
        fields.push_back(field(id, link));
    if (const auto sum = sum_fields(device, fields)) return sum;
    std::optional<unsigned long long> sum;
    for (const unsigned link : active)
      for (const unsigned counter : {nvml_api::link_replay, nvml_api::link_recovery,
                                     nvml_api::link_crc_flit, nvml_api::link_crc_data}) {
        unsigned long long count = 0;
        if (api_.link_errors(device, link, counter, &count) == nvml_api::success)
          sum = sum.value_or(0) + count;
      }
    return sum;
  }

  nvml_api::Functions api_;
};

// Shortens dlerror's "libnvidia-ml.so.1: cannot open shared object file: No such file or directory"
// to the reason.
std::string reason_of(const char* message, const std::string& library) {
  std::string_view text = message == nullptr ? "unknown reason" : message;
  for (const std::string_view prefix : {std::string_view(library), std::string_view(": "),
                                        std::string_view("cannot open shared object file: ")})
    if (text.starts_with(prefix)) text.remove_prefix(prefix.size());
  return printable(text, 400);
}

NvmlReading read_library(const std::string& library) {
  // RTLD_NODELETE keeps the library mapped, because its thread-local data is destroyed when the
  // thread ends.
  const std::unique_ptr<void, int (*)(void*)> handle(
      dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE), dlclose);
  if (!handle)
    return {.failure =
                fmt::format("{} cannot be opened: {}", library, reason_of(dlerror(), library))};
  return Reader(handle.get()).read();
}

}  // namespace

NvmlReading read_nvml(const std::string& library, std::chrono::milliseconds patience) {
  std::packaged_task<NvmlReading()> task([library] { return read_library(library); });
  std::future<NvmlReading> answer = task.get_future();
  try {
    std::thread(std::move(task)).detach();
  } catch (const std::system_error&) {  // without a thread, NVML is read without a timeout
    return read_library(library);
  }
  if (answer.wait_for(patience) == std::future_status::ready) return answer.get();
  return {.failure = fmt::format("NVML: no answer within {} s",
                                 std::chrono::duration<double>(patience).count())};
}

}  // namespace atoll_v1::atoll::topology_sources
