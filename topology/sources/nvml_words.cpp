#include "sources/nvml_words.hpp"

#include <fmt/format.h>

#include <array>

#include "sources/nvml_api.hpp"

namespace atoll_v1::atoll::topology_sources {
namespace {

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

}  // namespace

std::string uuid_text(const unsigned char (&bytes)[16]) {
  std::string text;
  for (std::size_t i = 0; i < std::size(bytes); ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    text += fmt::format("{:02x}", bytes[i]);
  }
  return text;
}

std::string_view fabric_state(unsigned char state) {
  switch (state) {
    case nvml_api::fabric_not_supported:
      return "not_supported";
    case nvml_api::fabric_not_started:
      return "not_started";
    case nvml_api::fabric_in_progress:
      return "in_progress";
    case nvml_api::fabric_completed:
      return "completed";
  }
  return "";
}

std::string fabric_health(unsigned mask, unsigned char summary) {
  std::string words;
  const auto add = [&words](std::string_view word) {
    if (!words.empty()) words += ", ";
    words += word;
  };
  const auto is_true = [mask](unsigned shift) { return ((mask >> shift) & 3U) == 1U; };
  if (is_true(nvml_api::health_degraded_bandwidth_shift)) add("degraded bandwidth");
  if (is_true(nvml_api::health_route_recovery_shift)) add("route recovery");
  if (is_true(nvml_api::health_route_unhealthy_shift)) add("route unhealthy");
  if (is_true(nvml_api::health_access_timeout_recovery_shift)) add("access timeout recovery");
  const unsigned configuration = (mask >> nvml_api::health_incorrect_configuration_shift) & 0xfU;
  if (const auto fault = configuration_fault(configuration); !fault.empty())
    add(fmt::format("incorrect configuration ({})", fault));
  if (summary == nvml_api::summary_limited_capacity) add("limited capacity");
  if (!words.empty()) return words;
  if (summary == nvml_api::summary_unhealthy) return "unhealthy";
  return mask == 0 && summary == 0 ? "" : "healthy";
}

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

std::string_view pcie_gigatransfers(unsigned generation) {
  constexpr std::array<std::string_view, 8> rates{"", "2.5", "5", "8", "16", "32", "64", "128"};
  return generation < rates.size() ? rates[generation] : "";
}

std::string without_capitals(std::string words) {
  const auto is_lower = [](char c) { return c >= 'a' && c <= 'z'; };
  for (std::size_t i = 0; i + 1 < words.size(); ++i)
    if ((i == 0 || words[i - 1] == ' ') && is_lower(words[i + 1]) && words[i] >= 'A' &&
        words[i] <= 'Z')
      words[i] = static_cast<char>(words[i] - 'A' + 'a');
  return words;
}

}  // namespace atoll_v1::atoll::topology_sources
