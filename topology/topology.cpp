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

#include "gpu_models.hpp"
#include "sources/source.hpp"

namespace atoll_v1::atoll {
namespace {

constexpr std::size_t file_limit = std::size_t{64} << 20;

const std::array live_sources{&topology_sources::hwloc_live, &topology_sources::nvml,
                              &topology_sources::sysfs_ports, &topology_sources::sysfs_pci,
                              &topology_sources::environment};
const std::array text_sources{&topology_sources::json, &topology_sources::hwloc_xml,
                              &topology_sources::nccl_xml, &topology_sources::nvidia_smi_xml,
                              &topology_sources::nvidia_smi_topo};

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

template <class T>
void append(std::vector<T>& all, const std::vector<T>& part) {
  all.insert(all.end(), part.begin(), part.end());
}

}  // namespace

Topology Topology::discover_local(std::string_view host_id) {
  topology_sources::LiveRequest request;
  request.host_name = host_name();
  request.host_id = host_id.empty() ? request.host_name : std::string(host_id);
  Topology topology;
  for (const auto* source : live_sources) source->look(request, topology);
  fill_link_rates(topology);
  return topology;
}

namespace {

Topology read_text(std::string_view text, const std::string& origin) {
  for (const auto* source : text_sources)
    if (source->recognises(text)) {
      Topology topology = source->read(text, origin);
      show_hidden_switches(topology);
      fill_link_rates(topology);
      return topology;
    }
  std::string names;
  for (const auto* source : text_sources)
    names += (names.empty() ? "" : ", ") + std::string(source->name);
  throw Error(
      ErrorCode::bad_data,
      fmt::format("{}: byte 0: not a topology in a form that atoll reads ({})", origin, names));
}

// A file, else a name of the catalog.
Topology load_one(const std::string& what) {
  if (!std::filesystem::exists(what) && what.find('/') == std::string::npos) try {
      return catalog_cluster(what);
    } catch (const Error& error) {
      throw Error(error.code(), fmt::format("{}: neither a file nor a machine of the catalog: {}",
                                            what, error.what()));
    }
  return read_text(read_file(what), what);
}

// "NAME=FILE,FILE..."; a file whose own name has a '=' is taken as that.
bool is_views(const std::string& what) {
  const auto equals = what.find('=');
  return equals != std::string::npos && equals > 0 && what.find('/') > equals &&
         !std::filesystem::exists(what);
}

Topology load_views(const std::string& what) {
  const auto equals = what.find('=');
  std::vector<Topology> views;
  std::vector<std::string> origins;
  std::string_view rest = std::string_view(what).substr(equals + 1);
  while (true) {
    const auto comma = rest.find(',');
    const std::string path(rest.substr(0, comma));
    if (path.empty())
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("\"{}\": write NAME=FILE,FILE...", what));
    views.push_back(load_one(path));
    origins.push_back(path);
    if (comma == std::string_view::npos) break;
    rest.remove_prefix(comma + 1);
  }
  return merge_views(what.substr(0, equals), views, origins);
}

}  // namespace

Topology Topology::load(const std::string& what) {
  return is_views(what) ? load_views(what) : load_one(what);
}

Topology merge(const std::vector<Topology>& parts) {
  Topology all;
  std::set<std::string> hosts, gpus, nics;
  std::set<std::array<std::string, 3>> links;
  for (const Topology& part : parts) {
    append_new(all.hosts, part.hosts, hosts);
    append_new(all.gpus, part.gpus, gpus);
    append_new(all.nics, part.nics, nics);
    append(all.paths, part.paths);
    append(all.conflicts, part.conflicts);
    append(all.documents, part.documents);
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

std::string topology_sources::host_of(std::string_view origin) {
  const std::string stem = std::filesystem::path(origin).stem().string();
  return stem.empty() ? "host" : stem;
}

}  // namespace atoll_v1::atoll
