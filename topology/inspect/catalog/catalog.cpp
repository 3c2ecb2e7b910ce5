// Machines that are known without looking.
//
// Idea: an entry is a machine in atoll's JSON form whose ids all begin with the entry's name, so a
// copy of it is the same text with another beginning: "hgx-h100/gpu3" is "hgx-h100-5/gpu3" in copy
// 5, "rack:gb200-nvl72" is "rack:gb200-nvl72-5". The text is parsed once; the copies are structs.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <numeric>

#include "atoll/error.hpp"
#include "atoll/inspect/load.hpp"
#include "inspect/catalog/catalog_files.hpp"
#include "facts.hpp"

namespace atoll_v1::atoll {
namespace {

constexpr std::size_t most_hosts = 65'536;
constexpr std::size_t longest_name = 64;  // that is looked at and printed
constexpr std::string_view rack_prefix = "rack:";

// As far as it can be shown.
std::string shown_as(std::string_view name) {
  std::string text(name.substr(0, longest_name));
  std::ranges::replace_if(
      text, [](unsigned char c) { return c < 0x20 || c > 0x7e; }, '?');
  return name.size() > longest_name ? text + "..." : text;
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

// Gives ids another beginning.
class Renaming {
 public:
  Renaming(std::string_view name, std::size_t copy)
      : name_(name), copy_(copy), new_name_(fmt::format("{}-{}", name, copy)) {}

  void apply(std::string& id) const {
    const std::size_t at = id.starts_with(rack_prefix) ? rack_prefix.size() : 0;
    if (id.compare(at, name_.size(), name_) == 0) id.replace(at, name_.size(), new_name_);
  }

  // Two racks are two fabrics: the last group of the UUID counts the copies.
  void apply(Facts& facts) const {
    const auto cluster = facts.find(fact::fabric_cluster);
    if (cluster == facts.end()) return;
    std::string& uuid = cluster->second;
    uuid = fmt::format("{}-{:012x}", uuid.substr(0, uuid.rfind('-')), copy_ + 1);
  }

 private:
  std::string_view name_;
  std::size_t copy_;
  std::string new_name_;
};

template <class T, class Rename>
void append_copy(std::vector<T>& all, const std::vector<T>& parts, Rename rename) {
  for (const T& part : parts) rename(all.emplace_back(part));
}

void append_copy(Topology& all, const Topology& machine, const Renaming& renaming) {
  append_copy(all.hosts, machine.hosts, [&](TopologyHost& host) {
    renaming.apply(host.id);
    renaming.apply(host.name);
  });
  append_copy(all.gpus, machine.gpus, [&](TopologyGpu& gpu) {
    renaming.apply(gpu.id);
    renaming.apply(gpu.host);
    renaming.apply(gpu.facts);
  });
  append_copy(all.nics, machine.nics, [&](TopologyNic& nic) {
    renaming.apply(nic.id);
    renaming.apply(nic.host);
    renaming.apply(nic.adapter);
  });
  append_copy(all.links, machine.links, [&](TopologyLink& link) {
    renaming.apply(link.a);
    renaming.apply(link.b);
  });
  append_copy(all.paths, machine.paths, [&](TopologyPath& path) {
    renaming.apply(path.a);
    renaming.apply(path.b);
  });
}

Topology copies_of(const CatalogFile& file, std::string_view digits) {
  const Topology machine = read(file);
  const std::size_t most = most_hosts / machine.hosts.size();
  std::size_t copies = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), copies);
  if (error != std::errc() || copies == 0 || copies > most)
    throw Error(ErrorCode::invalid_argument,
                fmt::format("{}x{}: the number of copies is 1 to {}, for at most {} hosts",
                            file.name, shown_as(digits), most, most_hosts));
  Topology cluster;
  cluster.hosts.reserve(machine.hosts.size() * copies);
  cluster.gpus.reserve(machine.gpus.size() * copies);
  cluster.nics.reserve(machine.nics.size() * copies);
  cluster.links.reserve(machine.links.size() * copies);
  for (std::size_t copy = 0; copy < copies; ++copy)
    append_copy(cluster, machine, Renaming(file.name, copy));
  return cluster;
}

// "hgx-h100x16" -> {"hgx-h100", "16"}; a name without "xDIGITS" at its end has no count.
std::pair<std::string_view, std::string_view> split_count(std::string_view name) {
  const auto last = name.find_last_not_of("0123456789");
  if (last == std::string_view::npos || name[last] != 'x' || last + 1 == name.size())
    return {name, {}};
  return {name.substr(0, last), name.substr(last + 1)};
}

// Insertions, deletions and replacements that turn one word into the other (Levenshtein).
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
      nearest += fmt::format("{}{}", nearest.empty() ? "; the nearest: " : ", ", other);
  }
  throw Error(
      ErrorCode::not_found,
      fmt::format("the catalog has no machine \"{}\"{}; atoll-topo --cluster list names all",
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
