// The list of sources, and what combines their answers.
#include "atoll/topology.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <set>

#include "sources/source.hpp"

namespace atoll_v1::atoll {
namespace {

constexpr std::size_t file_limit = std::size_t{64} << 20;

const std::array<const topology_sources::LiveSource*, 2> live_sources{&topology_sources::hwloc_live,
                                                                      &topology_sources::sysfs};
const std::array<const topology_sources::TextSource*, 1> text_sources{&topology_sources::json};

std::string host_name() {
  std::array<char, 256> buffer{};
  if (gethostname(buffer.data(), buffer.size() - 1) != 0) return "localhost";
  return buffer.data();
}

std::string read_file(const std::string& path) {
  if (std::error_code error; std::filesystem::is_directory(path, error))
    throw Error(ErrorCode::io, fmt::format("{}: is a directory", path));
  std::ifstream file(path, std::ios::binary);
  if (!file)
    throw Error(errno == ENOENT ? ErrorCode::not_found : ErrorCode::io,
                fmt::format("{}: {}", path, std::strerror(errno)));
  std::string text;
  std::array<char, 1 << 16> block{};
  while (file.read(block.data(), block.size()) || file.gcount() > 0) {
    text.append(block.data(), static_cast<std::size_t>(file.gcount()));
    if (text.size() > file_limit)
      throw Error(ErrorCode::bad_data, fmt::format("{}: byte {}: larger than {} MiB", path,
                                                   file_limit, file_limit >> 20));
  }
  if (file.bad()) throw Error(ErrorCode::io, fmt::format("{}: cannot be read", path));
  return text;
}

// Appends the elements of `part` whose id is new.
template <class T>
void append_new(std::vector<T>& all, const std::vector<T>& part, std::set<std::string>& seen) {
  for (const T& element : part)
    if (seen.insert(element.id).second) all.push_back(element);
}

}  // namespace

std::string_view name(IslandState state) noexcept {
  switch (state) {
    case IslandState::known:
      return "known";
    case IslandState::none:
      return "none";
    case IslandState::unknown:
      return "unknown";
  }
  return "unknown";
}

Topology Topology::discover_local(std::string_view host_id) {
  topology_sources::LiveRequest request;
  request.host_name = host_name();
  request.host_id = host_id.empty() ? request.host_name : std::string(host_id);
  Topology topology;
  for (const auto* source : live_sources) source->look(request, topology);
  return topology;
}

Topology Topology::load(const std::string& path) {
  const std::string text = read_file(path);
  for (const auto* source : text_sources)
    if (source->recognises(text)) return source->read(text, path);
  std::string names;
  for (const auto* source : text_sources)
    names += (names.empty() ? "" : ", ") + std::string(source->name);
  throw Error(
      ErrorCode::bad_data,
      fmt::format("{}: byte 0: not a topology in a form that atoll reads ({})", path, names));
}

Topology merge(const std::vector<Topology>& parts) {
  Topology all;
  std::set<std::string> hosts, gpus, nics;
  std::set<std::array<std::string, 3>> links;
  for (const Topology& part : parts) {
    append_new(all.hosts, part.hosts, hosts);
    append_new(all.gpus, part.gpus, gpus);
    append_new(all.nics, part.nics, nics);
    // A part may state one pair in several links, so only those of earlier parts are duplicates.
    std::set<std::array<std::string, 3>> here;
    for (const TopologyLink& link : part.links) {
      std::array<std::string, 3> key{std::min(link.a, link.b), std::max(link.a, link.b), link.type};
      if (links.contains(key)) continue;
      here.insert(std::move(key));
      all.links.push_back(link);
    }
    links.merge(here);
  }
  return all;
}

}  // namespace atoll_v1::atoll
