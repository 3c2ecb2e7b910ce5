#include "verbs/settings.hpp"

#include <fmt/format.h>

#include <charconv>
#include <sstream>

#include "sdk/backend.hpp"

namespace atoll_verbs_backend {
namespace {

using atoll_sdk::Error;

constexpr std::int64_t usual_cut_ns = 10'000'000'000;
constexpr int attempts = 7;  // a queue pair sends a packet once and retries six times
constexpr double timeout_unit_ns = 4096;
constexpr std::string_view known =
    "devices=NAME[:PORT],..., gid=INDEX, mtu=BYTES, sl=0..15, tc=0..255, pkey=0xKEY, "
    "queue_pairs=1..4, timeout=1..31";

[[noreturn]] void reject(std::string_view word) {
  throw Error(ATOLL_INVALID_ARGUMENT,
              fmt::format("ATOLL_RDMA: '{}' is not a setting; the settings are: {}", word, known));
}

int number(std::string_view word, std::string_view text, int least, int most) {
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < least || value > most) {
    reject(word);
  }
  return value;
}

// Parses the key of a partition, "0x8001", as the files of the kernel show it.
std::uint16_t partition_key(std::string_view word, std::string_view text) {
  if (!text.starts_with("0x")) reject(word);
  std::uint16_t value = 0;
  const auto* const end = text.data() + text.size();
  const auto [last, error] = std::from_chars(text.data() + 2, end, value, 16);
  if (error != std::errc() || last != end || (value & 0x7FFF) == 0) reject(word);
  return value;
}

// Returns the smallest timeout for which all attempts together take at least `cut_ns`.
int timeout_for(std::int64_t cut_ns) {
  int timeout = 1;
  double all = attempts * timeout_unit_ns * 2;
  for (; timeout < 31 && all < static_cast<double>(cut_ns); all *= 2) ++timeout;
  // Adapters may wait up to four times the timeout, so the next smaller value is used.
  return timeout > 1 ? timeout - 1 : timeout;
}

}  // namespace

std::vector<PortName> parse_ports(std::string_view word, std::string_view list) {
  std::vector<PortName> result;
  std::istringstream in{std::string(list)};
  for (std::string name; std::getline(in, name, ',');) {
    PortName port;
    const auto colon = name.find(':');
    port.device = name.substr(0, colon);
    if (colon != std::string::npos) {
      port.port = number(word, std::string_view(name).substr(colon + 1), 1, 255);
    }
    if (port.device.empty()) reject(word);
    result.push_back(std::move(port));
  }
  if (result.empty()) reject(word);
  return result;
}

Settings parse_settings(std::string_view text) {
  Settings settings;
  std::istringstream in{std::string(text)};
  for (std::string word; in >> word;) {
    const auto equals = word.find('=');
    if (equals == std::string::npos) reject(word);
    const auto name = std::string_view(word).substr(0, equals);
    const auto value = std::string_view(word).substr(equals + 1);
    if (name == "devices") {
      settings.devices = parse_ports(word, value);
    } else if (name == "gid") {
      settings.gid = number(word, value, 0, 255);
    } else if (name == "mtu") {
      settings.mtu = number(word, value, 256, 4096);
    } else if (name == "sl") {
      settings.service_level = static_cast<std::uint8_t>(number(word, value, 0, 15));
    } else if (name == "tc") {
      settings.traffic_class = static_cast<std::uint8_t>(number(word, value, 0, 255));
    } else if (name == "pkey") {
      settings.partition = partition_key(word, value);
    } else if (name == "queue_pairs") {
      settings.queue_pairs = number(word, value, 1, 4);
    } else if (name == "timeout") {
      settings.timeout = number(word, value, 1, 31);
    } else {
      reject(word);
    }
  }
  return settings;
}

Settings settings_of(const atoll_group& group) {
  Settings settings = parse_settings(group.rdma != nullptr ? group.rdma : "");
  if (settings.timeout == 0) {
    settings.timeout = timeout_for(group.cut_ns > 0 ? group.cut_ns : usual_cut_ns);
  }
  return settings;
}

}  // namespace atoll_verbs_backend
