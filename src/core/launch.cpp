#include "core/launch.hpp"

#include <fmt/format.h>

#include <atomic>
#include <charconv>
#include <cstdlib>

#include "atoll/error.hpp"

namespace atoll_v1::atoll::launch {
namespace {

std::optional<int> to_int(std::string_view text) {
  int value = 0;
  const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (problem != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  return value;
}

std::vector<std::string> split(std::string_view text, char separator) {
  std::vector<std::string> result;
  for (;;) {
    const auto end = text.find(separator);
    result.emplace_back(text.substr(0, end));
    if (end == std::string_view::npos) return result;
    text.remove_prefix(end + 1);
  }
}

}  // namespace

std::string to_text(const Endpoint& endpoint) {
  return fmt::format("{}|{}|{}|{}", endpoint.host_id, fmt::join(endpoint.addresses, ","),
                     endpoint.port, endpoint.token);
}

Endpoint endpoint_from_text(std::string_view text) {
  const std::vector<std::string> fields = split(text, '|');
  const std::optional<int> port = fields.size() == 4 ? to_int(fields[2]) : std::nullopt;
  if (!port || *port < 1 || *port > 65535 || fields[1].empty()) {
    throw Error(ErrorCode::bad_data,
                "the text that rank 0 published through the launcher is not a store address");
  }
  return {fields[0], split(fields[1], ','), *port, fields[3]};
}

std::optional<std::string> variable(const char* name) {
  const char* value = std::getenv(name);
  if (value == nullptr) return std::nullopt;
  return value;
}

std::optional<int> number(const char* name, int least) {
  const std::optional<std::string> text = variable(name);
  if (!text) return std::nullopt;
  const std::optional<int> value = to_int(*text);
  if (!value || *value < least) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("{}=\"{}\": expected a whole number from {}", name, *text, least));
  }
  return value;
}

std::optional<Endpoint> configured_endpoint(const Config& config) {
  if (config.addr.empty() || config.token.empty()) return std::nullopt;
  const auto colon = config.addr.rfind(':');
  std::string host = config.addr.substr(0, colon);
  if (host.size() >= 2 && host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
  }
  int port = 0;
  if (colon != std::string::npos) {
    port = to_int(std::string_view(config.addr).substr(colon + 1)).value_or(0);
  }
  if (host.empty() || port < 1 || port > 65535) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("ATOLL_ADDR=\"{}\": expected host:port", config.addr));
  }
  return Endpoint{"", {host}, port, config.token};
}

std::string next_key() {
  static std::atomic<int> count{0};
  return fmt::format("atoll-{}", count++);
}

Job find(const Config& config) {
  for (const auto finder : {find_explicit, find_pmix, find_pmi, find_torchrun, find_slurm}) {
    if (std::optional<Job> job = finder(config)) return std::move(*job);
  }
  Job alone;
  alone.launcher = "single";
  return alone;
}

}  // namespace atoll_v1::atoll::launch
