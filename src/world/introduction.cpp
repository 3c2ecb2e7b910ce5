#include "world/introduction.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstdint>
#include <filesystem>
#include <system_error>
#include <unordered_map>
#include <utility>

#include "core/errors.hpp"
#include "core/folder.hpp"
#include "core/host.hpp"
#include "core/log.hpp"
#include "core/parse.hpp"
#include "core/terminal_safe.hpp"
#include "store/protocol.hpp"

namespace atoll_v1::atoll {
namespace {

// Number of lines of an introduction. It is kept short, because every rank reads those of all
// hosts: if the id of a host begins with the host's name, the text omits the name from the id.
constexpr std::size_t lines = 6;
// First character of an error that replaces an introduction. No host name contains it.
constexpr char problem_mark = '!';

void check_problem(std::string_view text, std::size_t rank) {
  if (!text.starts_with(problem_mark)) return;
  const Error error = decode_error(text);
  throw make_error(error.code(), "rank {}: {}", rank, error.what());
}

Introduction decode_introduction(std::string_view text) {
  const auto fields = split(text, '\n');
  require(fields.size() == lines, ErrorCode::bad_data, "a rank has published {} lines, not {}",
          fields.size(), lines);
  Introduction result;
  result.host = fields[0];
  result.host_id = fields[1].starts_with('/') ? result.host : "";
  result.host_id += fields[1];
  const auto addresses = split(fields[2], ' ');
  result.addresses.assign(addresses.begin(), addresses.end());
  const auto timeout = number_from<std::uint32_t>(fields[3]);
  result.check = fields[4];
  result.failure_scope = fields[5];
  require(timeout.has_value(), ErrorCode::bad_data, "a rank has published no timeout");
  require(!addresses.front().empty(), ErrorCode::bad_data, "a rank has published no address");
  result.timeout = std::chrono::seconds(*timeout);
  return result;
}

Process decode_process(std::string_view bytes) {
  store::Unpacker in(bytes);
  Process result;
  result.pid = static_cast<int>(in.number());
  if (in.left() > 0) result.local_rank = static_cast<int>(in.number());
  in.finish();
  return result;
}

void require_equal(std::string_view variable, const std::string& first, const std::string& other,
                   std::size_t rank) {
  require(first == other, ErrorCode::mismatch,
          "ranks disagree about {}: {} on rank 0, {} on rank {}; all ranks must set the same",
          variable, first, other, rank);
}

void compare_settings(const Introduction& first, const Introduction& other, std::size_t rank) {
  const auto time = [](const Introduction& one) {
    return fmt::format("{} s", one.timeout.count());
  };
  const auto quoted = [](const std::string& value) { return fmt::format("\"{}\"", value); };
  require_equal("ATOLL_TIMEOUT", time(first), time(other), rank);
  require_equal("ATOLL_CHECK", quoted(first.check), quoted(other.check), rank);
  require_equal("ATOLL_FAILURE_SCOPE", quoted(first.failure_scope), quoted(other.failure_scope),
                rank);
}

// A rank uses its local rank to choose a GPU, so ranks with equal local ranks would share one GPU.
void check_local_ranks(const HostInfo& host, const std::vector<Process>& processes) {
  std::unordered_map<int, int> owners;  // rank that has each local rank
  for (std::size_t i = 0; i < host.ranks.size(); ++i) {
    const int rank = host.ranks[i];
    const int set = processes[static_cast<std::size_t>(rank)].local_rank;
    const int local_rank = set >= 0 ? set : static_cast<int>(i);
    const auto [owner, is_new] = owners.try_emplace(local_rank, rank);
    require(is_new, ErrorCode::mismatch,
            "rank {} and rank {} on host {} both have local rank {}: set ATOLL_LOCAL_RANK to a "
            "different number on each rank of a host, or on none",
            owner->second, rank, host.name, local_rank);
  }
}

}  // namespace

std::string own_host_id(const Config& config) {
  constexpr std::size_t most = 64;
  const bool plain = std::ranges::all_of(config.host_id, [](unsigned char c) {
    return std::isalnum(c) != 0 || c == '-' || c == '_' || c == '.';
  });
  require(plain && config.host_id.size() <= most,
          "ATOLL_HOST_ID=\"{}\": expected at most {} letters, digits, '-', '_' and '.'",
          terminal_safe(config.host_id), most);
  const std::string id = net::host_id();
  return config.host_id.empty() ? id : fmt::format("{}/{}", id, config.host_id);
}

std::string encode(const Error& problem) {
  return fmt::format("{}{}\n{}", problem_mark, static_cast<int>(problem.code()), problem.what());
}

Error decode_error(std::string_view text) {
  const auto end = std::min(text.find('\n'), text.size());
  const auto code = number_from<int>(text.substr(0, end).substr(text.starts_with(problem_mark)));
  require(code && end < text.size() && name(static_cast<ErrorCode>(*code)) != "unknown error",
          ErrorCode::bad_data, "a rank has published an error without a code");
  return {static_cast<ErrorCode>(*code), std::string(text.substr(end + 1))};
}

std::string encode(const Introduction& introduction) {
  const std::string& host = introduction.host;
  std::string_view id = introduction.host_id;
  if (id.starts_with(host + '/')) id.remove_prefix(host.size());
  return fmt::format("{}\n{}\n{}\n{}\n{}\n{}", host, id, fmt::join(introduction.addresses, " "),
                     introduction.timeout.count(), introduction.check, introduction.failure_scope);
}

std::string encode(const Process& process) {
  store::Packer packer;
  packer.number(static_cast<std::uint32_t>(process.pid));
  if (process.local_rank >= 0) packer.number(static_cast<std::uint32_t>(process.local_rank));
  return packer.take();
}

Layout lay_out(const std::vector<std::string>& introductions,
               const std::vector<std::string>& processes) {
  Layout layout;
  std::vector<Process> all;
  for (const std::string& bytes : processes) all.push_back(decode_process(bytes));
  for (std::size_t i = 0; i < introductions.size(); ++i) check_problem(introductions[i], i);
  const Introduction first = decode_introduction(introductions.front());
  std::unordered_map<std::string, std::size_t> host_of;  // index in layout.hosts, by host id
  for (std::size_t i = 0; i < introductions.size(); ++i) {
    Introduction one = decode_introduction(introductions[i]);
    compare_settings(first, one, i);
    const auto [entry, is_new] = host_of.try_emplace(one.host_id, layout.hosts.size());
    if (is_new) layout.hosts.push_back({std::move(one.host), std::move(one.host_id), {}});
    HostInfo& host = layout.hosts[entry->second];
    const int rank = static_cast<int>(i);
    std::string address = one.addresses.front();
    layout.placements.push_back({rank, static_cast<int>(entry->second),
                                 static_cast<int>(host.ranks.size()), all[i].pid,
                                 std::move(address), std::move(one.addresses)});
    host.ranks.push_back(rank);
  }
  for (const HostInfo& host : layout.hosts) check_local_ranks(host, all);
  return layout;
}

void warn_of_unusable_folders(const Config& config) {
  for (const std::string_view folder : split(config.plugin_path, ':')) {
    std::error_code problem;
    if (!folder.empty()) names_in(folder, problem);
    if (problem) {
      log::warn("ATOLL_PLUGIN_PATH: no backend is loaded from {}: {}", terminal_safe(folder),
                problem.message());
    }
  }
  if (config.flight.empty()) return;
  std::string folder = std::filesystem::path(config.flight + ".0.json").parent_path().string();
  if (folder.empty()) folder = ".";
  if (::access(folder.c_str(), W_OK | X_OK) == 0) return;
  const int problem = errno;
  log::warn("ATOLL_FLIGHT={}: no flight file can be written into {}: {}",
            terminal_safe(config.flight), terminal_safe(folder),
            std::generic_category().message(problem));
}

}  // namespace atoll_v1::atoll
