// The catalog of well-known machines.
//
// An entry is a machine in atoll's JSON form. All its ids begin with the entry's name, so a copy
// differs only in this prefix: "hgx-h100/gpu3" is "hgx-h100-5/gpu3" in copy 5, and
// "rack:gb200-nvl72" is "rack:gb200-nvl72-5". The JSON text is parsed only once.
#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <numeric>

#include "atoll/error.hpp"
#include "atoll/inspect/load.hpp"
#include "facts.hpp"
#include "inspect/catalog/catalog_files.hpp"
#include "inspect/each_id.hpp"
#include "inspect/text.hpp"
#include "sources/small_file.hpp"
#include "wording.hpp"

namespace atoll_v1::atoll {
namespace {

constexpr std::size_t most_hosts = 65'536;
// Longer names, in bytes, are cut before they are searched or printed.
constexpr std::size_t longest_name = 64;
constexpr std::string_view rack_prefix = "rack:";

std::string shown_as(std::string_view name) {
  return printable(name, longest_name) + (name.size() > longest_name ? "..." : "");
}

const CatalogFile* find_file(std::string_view name) noexcept {
  const auto files = catalog_files();
  const auto found = std::ranges::find(files, name, &CatalogFile::name);
  return found == files.end() ? nullptr : &*found;
}

Topology read(const CatalogFile& file) {
  std::string text;
  for (const std::string_view piece : file.pieces) text += piece;
  return Topology::from_json(text, fmt::format("catalog {}", file.name));
}

// Renames all ids of a machine for one of its copies: "hgx-h100/gpu3" becomes "hgx-h100-5/gpu3" in
// copy 5.
void rename(Topology& machine, std::string_view name, std::size_t copy) {
  const std::string new_name = fmt::format("{}-{}", name, copy);
  const auto rename_id = [&](std::string& id) {
    const std::size_t at = id.starts_with(rack_prefix) ? rack_prefix.size() : 0;
    if (id.compare(at, name.size(), name) == 0) id.replace(at, name.size(), new_name);
  };
  each_id(machine, rename_id, rename_id);
  for (TopologyHost& host : machine.hosts) rename_id(host.name);
  for (TopologyNic& nic : machine.nics) rename_id(nic.adapter);
  // Each rack has a separate fabric, so the last group of digits in the fabric's UUID is replaced
  // by the number of the copy.
  for (TopologyGpu& gpu : machine.gpus)
    if (const auto cluster = gpu.facts.find(fact::fabric_cluster); cluster != gpu.facts.end()) {
      std::string& uuid = cluster->second;
      uuid = fmt::format("{}-{:012x}", uuid.substr(0, uuid.rfind('-')), copy + 1);
    }
}

template <class T>
void append(std::vector<T>& all, std::vector<T>& part) {
  all.insert(all.end(), std::make_move_iterator(part.begin()), std::make_move_iterator(part.end()));
}

Topology copies_of(const CatalogFile& file, std::string_view digits) {
  const Topology machine = read(file);
  const std::size_t most = most_hosts / machine.hosts.size();
  const std::size_t copies = parse_number<std::size_t>(digits).value_or(0);
  if (copies == 0 || copies > most)
    throw Error(ErrorCode::invalid_argument,
                fmt::format("{}x{}: the number of copies must be 1 to {}, since a cluster has at "
                            "most {} hosts",
                            file.name, shown_as(digits), most, most_hosts));
  Topology cluster;
  for (std::size_t copy = 0; copy < copies; ++copy) {
    Topology one = machine;
    rename(one, file.name, copy);
    append(cluster.hosts, one.hosts);
    append(cluster.gpus, one.gpus);
    append(cluster.nics, one.nics);
    append(cluster.links, one.links);
    append(cluster.paths, one.paths);
  }
  return cluster;
}

// Splits "hgx-h100x16" into {"hgx-h100", "16"}. The second part is empty when the name does not end
// in "x" and digits.
std::pair<std::string_view, std::string_view> split_count(std::string_view name) {
  const auto last = name.find_last_not_of("0123456789");
  if (last == std::string_view::npos || name[last] != 'x' || last + 1 == name.size())
    return {name, {}};
  return {name.substr(0, last), name.substr(last + 1)};
}

// Levenshtein distance: the number of letters to insert, delete or replace.
std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (const char letter : a) {
    std::size_t diagonal = row[0]++;
    for (std::size_t j = 0; j < b.size(); ++j) {
      const std::size_t replaced = diagonal + (letter == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({row[j] + 1, row[j + 1] + 1, replaced});
    }
  }
  return row.back();
}

[[noreturn]] void fail_unknown(std::string_view name) {
  const std::string shown = shown_as(split_count(name).first);
  std::vector<std::pair<std::size_t, std::string_view>> ranked;
  for (const CatalogFile& file : catalog_files())
    ranked.emplace_back(edit_distance(shown, file.name), file.name);
  std::ranges::sort(ranked);
  std::string nearest;
  for (const auto& [distance, other] : ranked) {
    const bool is_near = distance <= std::max<std::size_t>(2, shown.size() / 2);
    if (is_near && distance <= ranked.front().first + 2)
      nearest += fmt::format("{}{}", nearest.empty() ? "; similar names: " : ", ", other);
  }
  throw Error(
      ErrorCode::not_found,
      fmt::format("the catalog has no machine \"{}\"{}; atoll-topo --cluster list prints all names",
                  shown_as(name), nearest));
}

}  // namespace

std::vector<CatalogEntry> catalog() {
  std::vector<CatalogEntry> entries;
  for (const CatalogFile& file : catalog_files())
    entries.push_back({std::string(file.name), std::string(file.title)});
  std::ranges::sort(entries, {}, &CatalogEntry::name);
  return entries;
}

Topology catalog_cluster(std::string_view name) {
  if (const CatalogFile* file = find_file(name)) return read(*file);
  const auto [machine, digits] = split_count(name);
  const CatalogFile* file = digits.empty() ? nullptr : find_file(machine);
  if (file == nullptr) fail_unknown(name);
  return copies_of(*file, digits);
}

}  // namespace atoll_v1::atoll
