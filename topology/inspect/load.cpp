// Loads a topology from a file with the first importer that recognises it, or from the catalog.
#include "atoll/tooling/load.hpp"

#include <fmt/format.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>

#include "gpu_models.hpp"
#include "inspect/derived.hpp"
#include "inspect/importers/importer.hpp"

namespace atoll_v1::atoll {
namespace {

constexpr std::size_t file_limit = std::size_t{64} << 20;

const std::array every_importer{
    &importers::json,           &importers::hwloc_xml,       &importers::nccl_xml,
    &importers::nvidia_smi_xml, &importers::nvidia_smi_topo, &importers::rocm_smi_topo};

// Limits of one host. Every GPU is compared with every NIC of its host, so without them a file of
// 64 MiB could ask for billions of comparisons.
constexpr std::size_t most_gpus_of_host = 1'024;
constexpr std::size_t most_nics_of_host = 4'096;

void check_hosts(const Topology& topology, const std::string& origin) {
  const auto check = [&](const auto& devices, std::size_t most, std::string_view noun) {
    std::map<std::string_view, std::size_t> counts;
    for (const auto& device : devices)
      if (++counts[device.host] > most)
        fail_at(origin, 0,
                fmt::format("the host {} has more than {}", printable(device.host, 64),
                            plural(most, noun)));
  };
  check(topology.gpus, most_gpus_of_host, "GPU");
  check(topology.nics, most_nics_of_host, "NIC");
}

Topology read_text(std::string_view text, const std::string& origin) {
  for (const auto* importer : every_importer)
    if (importer->recognises(text)) {
      Topology topology = importer->read(text, origin);
      check_hosts(topology, origin);
      show_hidden_switches(topology);
      fill_link_rates(topology);
      return topology;
    }
  if (const auto why = importers::why_not_read(text); !why.empty()) fail_at(origin, 0, why);
  if (importers::is_fabric(text))
    fail_at(origin, 0, "this file describes a fabric, not a machine: pass it to --fabric");
  std::string names;
  for (const auto* importer : every_importer)
    names += (names.empty() ? "" : ", ") + std::string(importer->name);
  fail_at(origin, 0, fmt::format("the file is not in a format that atoll reads ({})", names));
}

// Reads the file with the name `what`. If no such file exists, returns the machine of this name in
// the catalog.
Topology load_one(const std::string& what) {
  if (!std::filesystem::exists(what) && what.find('/') == std::string::npos) try {
      return catalog_cluster(what);
    } catch (const Error& error) {
      throw Error(error.code(), fmt::format("{} is neither a file nor a machine of the catalog: {}",
                                            what, error.what()));
    }
  return read_text(importers::read_file(what), what);
}

// True for "NAME=FILE,FILE...", unless a file of exactly this name exists.
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
      throw Error(
          ErrorCode::invalid_argument,
          fmt::format("\"{}\": the name of a file is missing; write NAME=FILE,FILE...", what));
    views.push_back(load_one(path));
    origins.push_back(path);
    if (comma == std::string_view::npos) break;
    rest.remove_prefix(comma + 1);
  }
  return merge_views(what.substr(0, equals), views, origins);
}

}  // namespace

Topology load_topology(const std::string& what) {
  return is_views(what) ? load_views(what) : load_one(what);
}

namespace importers {

const Importer json{"atoll json",
                    [](std::string_view text) { return trimmed(text).starts_with('{'); },
                    Topology::from_json};

std::string host_of(std::string_view origin) {
  const std::string stem = std::filesystem::path(origin).stem().string();
  return stem.empty() ? "host" : stem;
}

std::string read_file(const std::string& path) {
  if (std::error_code error; std::filesystem::is_directory(path, error))
    throw Error(ErrorCode::io, fmt::format("{}: this is a directory, not a file", path));
  std::ifstream file(path, std::ios::binary);
  if (!file)
    throw Error(errno == ENOENT ? ErrorCode::not_found : ErrorCode::io,
                fmt::format("{}: {}", path, std::strerror(errno)));
  std::string text;
  std::array<char, 1 << 16> block{};
  while (file.read(block.data(), block.size()) || file.gcount() > 0) {
    text.append(block.data(), static_cast<std::size_t>(file.gcount()));
    if (text.size() > file_limit)
      fail_at(path, file_limit, fmt::format("the file is larger than {} MiB", file_limit >> 20));
  }
  if (file.bad()) throw Error(ErrorCode::io, fmt::format("{}: the file cannot be read", path));
  if (text.starts_with("\xff\xfe") || text.starts_with("\xfe\xff"))
    fail_at(path, 0,
            "the file is UTF-16, as PowerShell writes it: convert it (iconv -f UTF-16 -t UTF-8)");
  // Spaces replace the byte order mark of UTF-8, so that byte offsets do not change.
  if (text.starts_with("\xef\xbb\xbf")) text.replace(0, 3, 3, ' ');
  return text;
}

}  // namespace importers

}  // namespace atoll_v1::atoll
