// `nvidia-smi topo -m`: how each pair of GPUs and NICs is joined, as a matrix.
//
// The form, as it is printed by drivers since 2016 and pasted into reports since then:
//
//         GPU0    GPU1    NIC0    CPU Affinity    NUMA Affinity   GPU NUMA ID
//   GPU0   X      NV4     SYS     0-23,48-71      0               N/A
//   GPU1  NV4      X      PIX     24-47,72-95     1               N/A
//   NIC0  SYS     PIX      X
//
//   NIC Legend:
//     NIC0: mlx5_0
//
// Columns are set apart by tabs, blanks or both; the header is underlined by terminal escapes, of
// which a paste may keep a part; older drivers name the NICs in the header. A cell NVk is a bonded
// set of k NVLinks. On a board without switches the set belongs to its pair. Under NVSwitch it is
// all links of the GPU, shown again for every peer, so that a row holds more links than any GPU
// has: this tells the two apart.
//
// Steps: blank out the escapes; find the header; read a row for each column; check that the matrix
// is symmetric; read the legend; turn cells into links and paths.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bitset>
#include <charconv>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "inspect/importers/pasted_text.hpp"
#include "inspect/importers/importer.hpp"

namespace atoll_v1::atoll::importers {
namespace {

constexpr std::size_t header_lines = 200;  // logs are pasted around the matrix
constexpr std::size_t header_bytes = std::size_t{1} << 20;
constexpr std::size_t longest_line = std::size_t{64} << 10;
constexpr std::size_t longest_name = 64;
constexpr std::string_view name_bytes =
    "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz_-.:";
constexpr std::size_t most_devices = 1024;  // half a million paths
constexpr int most_cpus = 16'384;
constexpr int most_nodes = 1'024;  // NUMA nodes
constexpr int highest_gpu = 65'535;
constexpr int most_links_of_gpu = 18;  // NVLink 4 and 5; no GPU has more

std::optional<int> number_of(std::string_view text, int highest) {
  int number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size() || number < 0 || number > highest)
    return std::nullopt;
  return number;
}

// "GPU7" -> 7
std::optional<int> gpu_number(std::string_view label) {
  if (!label.starts_with("GPU")) return std::nullopt;
  return number_of(label.substr(3), highest_gpu);
}

using Line = TextPiece;
using Token = TextPiece;

enum class CellKind : std::uint8_t {
  self,
  links,
  path,
  silent  // "N/A": the driver could not tell
};

struct Cell {
  CellKind kind = CellKind::silent;
  PathLevel level = PathLevel::sys;  // of a path
  std::uint16_t count = 0;           // of links
  std::uint32_t offset = 0;          // files end at 64 MiB
  bool same(const Cell& other) const {
    return kind == other.kind && level == other.level && count == other.count;
  }
};

std::optional<Cell> cell_of(const Token& token) {
  struct Word {
    std::string_view word;
    PathLevel level;
  };
  constexpr std::array words{Word{"PIX", PathLevel::pix},   Word{"PSB", PathLevel::pix},
                             Word{"PXB", PathLevel::pxb},   Word{"PHB", PathLevel::phb},
                             Word{"NODE", PathLevel::node}, Word{"SYS", PathLevel::sys},
                             Word{"SOC", PathLevel::sys}};
  Cell cell{.offset = static_cast<std::uint32_t>(token.offset)};
  if (token.text == "N/A") return cell;
  const auto word = std::ranges::find(words, token.text, &Word::word);
  if (token.text == "X") {
    cell.kind = CellKind::self;
  } else if (word != words.end()) {
    cell.kind = CellKind::path;
    cell.level = word->level;
  } else {
    if (!token.text.starts_with("NV")) return std::nullopt;
    cell.kind = CellKind::links;
    cell.count = static_cast<std::uint16_t>(number_of(token.text.substr(2), 1000).value_or(0));
    if (cell.count == 0) return std::nullopt;
  }
  return cell;
}

bool is_cell(const Token& token) { return cell_of(token).has_value(); }

struct Header {
  std::vector<Token> devices;
  std::size_t tails = 0;  // columns behind the matrix; of these:
  std::optional<std::size_t> cpus, numa;
};

void read_tails(std::span<const Token> tokens, Header& header) {
  const auto is = [&](std::size_t at, std::string_view word) {
    return at < tokens.size() && tokens[at].text == word;
  };
  for (std::size_t at = 0; at < tokens.size(); ++header.tails) {
    const bool is_affinity = is(at + 1, "Affinity");
    if (is_affinity && is(at, "CPU")) header.cpus = header.tails;
    if (is_affinity && is(at, "NUMA")) header.numa = header.tails;
    at += is_affinity ? 2 : is(at + 1, "NUMA") ? 3 : 1;  // "GPU NUMA ID"
  }
}

// A line of device names that begins with a GPU, and no row.
std::optional<Header> header_of(const Line& line) {
  if (line.text.size() > longest_line) return std::nullopt;
  const std::vector<Token> tokens = split_words(line);
  if (tokens.empty() || !gpu_number(tokens[0].text)) return std::nullopt;
  const auto end = std::ranges::find_if(tokens, [](const Token& token) {
    return token.text == "CPU" || token.text == "NUMA" || token.text == "GPU";
  });
  Header header;
  header.devices.assign(tokens.begin(), end);
  if (std::ranges::any_of(header.devices, is_cell)) return std::nullopt;
  read_tails({end, tokens.end()}, header);
  return header;
}

// Other matrices (topo -p2p) have the same names and other cells.
bool is_row_of(const Header& header, const Line& line) {
  if (line.text.size() > longest_line) return false;
  const std::vector<Token> tokens = split_words(line);
  if (tokens.size() <= header.devices.size() || tokens[0].text != header.devices[0].text)
    return false;
  return std::ranges::all_of(std::span(tokens).subspan(1, header.devices.size()), is_cell);
}

// The matrix' header; `lines` then stand behind it.
std::optional<Header> find_header(TextLines& lines) {
  for (std::size_t i = 0; i < header_lines; ++i) {
    const auto line = lines.next();
    if (!line) break;
    auto header = header_of(*line);
    if (!header) continue;
    if (header->cpus) return header;
    TextLines ahead = lines;
    auto row = ahead.next();
    while (row && row->text.find_first_not_of(" \t") == std::string_view::npos) row = ahead.next();
    if (row && is_row_of(*header, *row)) return header;
  }
  return std::nullopt;
}

bool recognises(std::string_view text) {
  const std::string plain = without_escapes(text.substr(0, header_bytes));
  TextLines lines(plain);
  return find_header(lines).has_value();
}

// Calls `take` with the numbers of "0-23,48-71" or "1"; with none of anything else ("N/A", "-1").
template <class Take>
void for_numbers(std::string_view text, int highest, const Take& take) {
  std::vector<std::pair<int, int>> ranges;
  while (true) {
    const std::size_t comma = std::min(text.find(','), text.size());
    const std::string_view range = text.substr(0, comma);
    const std::size_t dash = std::min(range.find('-'), range.size());
    const auto first = number_of(range.substr(0, dash), highest);
    const auto last = dash < range.size() ? number_of(range.substr(dash + 1), highest) : first;
    // Lists ascend; one that repeats itself could take forever.
    if (!first || !last || *last < *first || (!ranges.empty() && *first <= ranges.back().second))
      return;
    ranges.emplace_back(*first, *last);
    if (comma == text.size()) break;
    text.remove_prefix(comma + 1);
  }
  for (const auto& [first, last] : ranges)
    for (int i = first; i <= last; ++i) take(i);
}

class MatrixReader {
 public:
  MatrixReader(std::string_view text, std::string_view origin)
      : lines_(text), origin_(origin), host_(host_of(origin)) {}

  Topology read() {
    auto header = find_header(lines_);
    if (!header) fail(0, "no header of a matrix (GPU0 GPU1 ...)");
    header_ = std::move(*header);
    check_devices();
    read_rows();
    check_symmetry();
    add_devices(read_legend());
    add_links();
    add_paths();
    return std::move(topology_);
  }

 private:
  [[noreturn]] void fail(std::size_t offset, std::string_view what) const {
    throw Error(ErrorCode::bad_data, fmt::format("{}: byte {}: {}", origin_, offset, what));
  }

  std::size_t size() const { return header_.devices.size(); }
  std::string_view label(std::size_t device) const { return header_.devices[device].text; }
  bool is_gpu(std::size_t device) const { return gpu_number(label(device)).has_value(); }
  Cell& cell(std::size_t row, std::size_t column) { return cells_[row * size() + column]; }

  void check_name(const Token& name) const {
    if (name.text.size() > longest_name ||
        name.text.find_first_not_of(name_bytes) != std::string_view::npos)
      fail(name.offset, "not the name of a device");
  }

  void check_devices() {
    if (size() > most_devices)
      fail(header_.devices[most_devices].offset, fmt::format("more than {} devices", most_devices));
    for (std::size_t i = 0; i < size(); ++i) {
      check_name(header_.devices[i]);
      if (!columns_.try_emplace(label(i), i).second)
        fail(header_.devices[i].offset, fmt::format("a second column {}", label(i)));
      if (is_gpu(i)) gpus_.push_back(i);
    }
    cells_.resize(size() * size());
    near_nodes_.resize(size());
  }

  void read_rows() {
    std::vector<bool> seen(size());
    for (std::size_t rows = 0; rows < size();) {
      const auto line = lines_.next();
      if (!line) fail(lines_.offset(), fmt::format("{} rows for {} columns", rows, size()));
      if (line->text.size() > longest_line)
        fail(line->offset, fmt::format("a line of more than {} bytes", longest_line));
      const std::vector<Token> tokens = split_words(*line);
      if (tokens.empty()) continue;
      const auto column = columns_.find(tokens[0].text);
      if (column == columns_.end())
        fail(tokens[0].offset, fmt::format("{} rows for {} columns", rows, size()));
      if (seen[column->second])
        fail(tokens[0].offset, fmt::format("a second row {}", tokens[0].text));
      seen[column->second] = true;
      read_row(column->second, tokens);
      ++rows;
    }
  }

  void read_row(std::size_t row, const std::vector<Token>& tokens) {
    for (std::size_t column = 0; column < size(); ++column) {
      const Token& last = tokens.back();
      if (column + 1 >= tokens.size())
        fail(last.offset + last.text.size(),
             fmt::format("row {} has no cell for {}", label(row), label(column)));
      const Token& token = tokens[column + 1];
      const auto cell_read = cell_of(token);
      std::string_view what;
      if (!cell_read)
        what = "not a cell of topo -m";
      else if ((cell_read->kind == CellKind::self) != (row == column))
        what = "X stands on the diagonal, and only there";
      else if (cell_read->kind == CellKind::links && !(is_gpu(row) && is_gpu(column)))
        what = "a NIC has no NVLinks";
      if (!what.empty())
        fail(token.offset, fmt::format("row {}, column {}: {}", label(row), label(column), what));
      cell(row, column) = *cell_read;
    }
    // Where a column is left empty, nothing tells which of the others it is.
    const auto tails = std::span(tokens).subspan(size() + 1);
    if (tails.size() != header_.tails) return;
    if (header_.cpus)
      for_numbers(tails[*header_.cpus].text, most_cpus - 1,
                  [&](int cpu) { cpus_.set(static_cast<std::size_t>(cpu)); });
    if (header_.numa)
      for_numbers(tails[*header_.numa].text, most_nodes - 1,
                  [&](int node) { near_nodes_[row].push_back(node); });
  }

  void check_symmetry() {
    for (std::size_t row = 0; row < size(); ++row)
      for (std::size_t column = 0; column < row; ++column)
        if (!cell(row, column).same(cell(column, row)))
          fail(std::max(cell(row, column).offset, cell(column, row).offset),
               fmt::format("row {}, column {}: not the same as row {}, column {}", label(row),
                           label(column), label(column), label(row)));
  }

  // "NIC0: mlx5_0" behind "NIC Legend:", by label.
  std::map<std::string_view, Token> read_legend() {
    std::map<std::string_view, Token> names;
    bool is_legend = false;
    while (const auto line = lines_.next()) {
      if (line->text.size() > longest_line || header_of(*line)) break;
      const std::vector<Token> tokens = split_words(*line);
      if (tokens.size() != 2) continue;
      is_legend = is_legend || (tokens[0].text == "NIC" && tokens[1].text == "Legend:");
      if (!is_legend || !tokens[0].text.ends_with(':')) continue;
      const std::string_view nic = tokens[0].text.substr(0, tokens[0].text.size() - 1);
      if (columns_.contains(nic)) names.try_emplace(nic, tokens[1]);
    }
    return names;
  }

  void add_devices(const std::map<std::string_view, Token>& legend) {
    ids_.resize(size());
    std::set<std::string_view> seen;
    for (std::size_t device = 0; device < size(); ++device) {
      const auto named = legend.find(label(device));
      const Token name = named == legend.end() ? header_.devices[device] : named->second;
      check_name(name);
      ids_[device] = is_gpu(device) ? fmt::format("{}/gpu{}", host_, *gpu_number(label(device)))
                                    : fmt::format("{}/{}", host_, name.text);
      if (!seen.insert(ids_[device]).second)
        fail(name.offset, fmt::format("a second device {}", name.text));
      if (is_gpu(device)) {
        TopologyGpu& gpu = topology_.gpus.emplace_back();
        gpu.id = ids_[device];
        gpu.host = host_;
        gpu.index = *gpu_number(label(device));
        if (near_nodes_[device].size() == 1) gpu.numa = near_nodes_[device].front();
      } else {
        TopologyNic& nic = topology_.nics.emplace_back();
        nic.id = ids_[device];
        nic.host = host_;
        nic.name = name.text;
      }
    }
    add_host();
  }

  void add_host() {
    std::set<int> nodes;
    for (const std::vector<int>& near : near_nodes_) nodes.insert(near.begin(), near.end());
    TopologyHost& host = topology_.hosts.emplace_back();
    host.id = host.name = host_;
    host.numa_nodes = static_cast<int>(nodes.size());
    host.threads = host.host_threads = static_cast<int>(cpus_.count());
    host.gpu_links = state();
  }

  // One GPU has nobody to be linked with: nothing is shown.
  IslandState state() {
    bool is_silent = gpus_.size() < 2;
    for (const std::size_t a : gpus_)
      for (const std::size_t b : gpus_) {
        if (cell(a, b).kind == CellKind::links) return IslandState::known;
        is_silent = is_silent || cell(a, b).kind == CellKind::silent;
      }
    return is_silent ? IslandState::unknown : IslandState::none;
  }

  std::vector<std::size_t> linked_with(std::size_t first, std::vector<bool>& seen) {
    std::vector<std::size_t> members{first};
    seen[first] = true;
    for (std::size_t i = 0; i < members.size(); ++i)
      for (const std::size_t gpu : gpus_)
        if (!seen[gpu] && cell(members[i], gpu).kind == CellKind::links) {
          seen[gpu] = true;
          members.push_back(gpu);
        }
    std::ranges::sort(members);
    return members;
  }

  void add_links() {
    std::vector<bool> seen(size());
    int switches = 0;
    for (const std::size_t gpu : gpus_) {
      if (seen[gpu]) continue;
      const std::vector<std::size_t> members = linked_with(gpu, seen);
      if (!is_switched(members)) {
        for (const std::size_t a : members)
          for (const std::size_t b : members)
            if (a < b && cell(a, b).count > 0) add_link(ids_[a], ids_[b], cell(a, b).count);
        continue;
      }
      // The switches of a host, "HOST/...", are one; a second set that the first does not reach is
      // not named as one of them.
      const std::string name = switches == 0 ? fmt::format("{}/nvswitch0", host_)
                                             : fmt::format("{}:nvswitch{}", host_, switches);
      ++switches;
      for (const std::size_t member : members) add_link(ids_[member], name, most_of(member));
    }
  }

  // A pair with all links that a GPU has is more likely to hang on a switch than on 18 bridges.
  bool is_switched(const std::vector<std::size_t>& members) {
    if (members.size() == 2) return most_of(members[0]) >= most_links_of_gpu;
    return std::ranges::any_of(members, [&](std::size_t gpu) {
      int sum = 0;
      for (const std::size_t peer : gpus_) sum += cell(gpu, peer).count;
      return sum > most_links_of_gpu;
    });
  }

  int most_of(std::size_t gpu) {
    int most = 0;
    for (const std::size_t peer : gpus_) most = std::max<int>(most, cell(gpu, peer).count);
    return most;
  }

  void add_link(const std::string& a, const std::string& b, int count) {
    topology_.links.push_back(
        {.a = a, .b = b, .type = "nvlink", .count = count, .gbyte_s = std::nullopt});
  }

  void add_paths() {
    for (std::size_t a = 0; a < size(); ++a)
      for (std::size_t b = a + 1; b < size(); ++b)
        if (cell(a, b).kind == CellKind::path)
          topology_.paths.push_back({.a = ids_[a], .b = ids_[b], .level = cell(a, b).level});
  }

  TextLines lines_;
  std::string origin_, host_;
  Header header_;
  std::map<std::string_view, std::size_t> columns_;
  std::vector<std::size_t> gpus_;  // columns
  std::vector<Cell> cells_;        // row by row
  std::bitset<most_cpus> cpus_;    // that some device is near to
  std::vector<std::vector<int>> near_nodes_;
  std::vector<std::string> ids_;
  Topology topology_;
};

Topology read(std::string_view text, std::string_view origin) {
  return MatrixReader(without_escapes(text), origin).read();
}

}  // namespace

const Importer nvidia_smi_topo{"nvidia-smi topo -m", recognises, read};

}  // namespace atoll_v1::atoll::importers
