// Imports the matrix of `nvidia-smi topo -m`, which shows how each pair of GPUs and NICs is
// connected.
//
// Drivers have printed this form since 2016, and people paste it into reports:
//
//         GPU0    GPU1    NIC0    CPU Affinity    NUMA Affinity   GPU NUMA ID
//   GPU0   X      NV4     SYS     0-23,48-71      0               N/A
//   GPU1  NV4      X      PIX     24-47,72-95     1               N/A
//   NIC0  SYS     PIX      X
//
//   NIC Legend:
//     NIC0: mlx5_0
//
// Tabs, spaces or both separate the columns. Terminal escapes underline the header, and pasted text
// may contain parts of these escapes. Older drivers write the names of NICs into the header. A cell
// NVk means k NVLinks. On a board without switches, these links connect the two GPUs. With
// NVSwitch, each cell repeats the number of all links of the GPU, so that the sum of a row exceeds
// the links of any GPU; show_hidden_switches() detects this.
//
// Steps: replace the escapes by spaces, find the header, read one row for each column, check that
// the matrix is symmetric, read the legend, convert the cells to links and paths.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bitset>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "inspect/hidden_switches.hpp"
#include "inspect/importers/importer.hpp"
#include "inspect/text.hpp"

namespace atoll_v1::atoll::importers {
namespace {

constexpr std::size_t header_lines = 200;  // number of first lines that may contain the header
constexpr std::size_t header_bytes = std::size_t{1} << 20;
constexpr std::size_t longest_line = std::size_t{64} << 10;
constexpr std::size_t longest_name = 64;
constexpr std::string_view name_bytes =
    "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz_-.:";
constexpr std::size_t most_devices = 1024;  // limit for devices in a matrix: each pair has a path
constexpr int most_cpus = 16'384;
constexpr int most_nodes = 1'024;  // largest number of NUMA nodes
constexpr int highest_gpu = 65'535;
constexpr int most_links_of_gpu = 18;  // no GPU up to NVLink 5 has more links

// Returns the position after the terminal escape at `at`, or `at` itself when there is no escape.
std::size_t after_escape(std::string_view text, std::size_t at) {
  constexpr std::string_view parameters = "0123456789;:<=>?";
  const bool is_whole = text.substr(at, 2) == "\x1b[";
  const bool is_caret = text.substr(at, 3) == "^[[";
  if (!is_whole && !is_caret && text[at] != '[') return at;
  const std::size_t begin = at + (is_caret ? 3 : is_whole ? 2 : 1);
  const std::size_t end = text.substr(0, begin + 16).find_first_not_of(parameters, begin);
  if (end == std::string_view::npos) return at;
  const bool is_final = is_whole ? text[end] >= '@' && text[end] <= '~' : text[end] == 'm';
  return is_final ? end + 1 : at;
}

// Replaces terminal escapes (ECMA-48) and control characters by spaces, so that offsets do not
// change. Also recognises the remains of "ESC[4m" in pasted text: "[4m" and "^[[4m".
std::string without_escapes(std::string_view text) {
  std::string plain(text);
  for (std::size_t i = 0; i < plain.size();) {
    const std::size_t end = after_escape(text, i);
    if (end > i) {
      std::fill(plain.begin() + static_cast<std::ptrdiff_t>(i),
                plain.begin() + static_cast<std::ptrdiff_t>(end), ' ');
      i = end;
      continue;
    }
    const auto byte = static_cast<unsigned char>(plain[i]);
    if ((byte < 0x20 && byte != '\n') || byte == 0x7f) plain[i] = byte == '\t' ? '\t' : ' ';
    ++i;
  }
  return plain;
}

// Removes the first line from `rest` and returns this line; empty at the end of the text.
std::optional<std::string_view> next_line(std::string_view& rest) {
  if (rest.empty()) return std::nullopt;
  const std::size_t end = std::min(rest.find('\n'), rest.size());
  const std::string_view line = rest.substr(0, end);
  rest.remove_prefix(std::min(end + 1, rest.size()));
  return line;
}

using Tokens = std::vector<std::string_view>;

Tokens split(std::string_view line) { return words_of(line, " \t"); }

std::optional<int> number_of(std::string_view text, int highest) {
  const auto number = parse_number<int>(text);
  return number && *number >= 0 && *number <= highest ? number : std::nullopt;
}

// Returns the number of a GPU from the name of a column: 7 for "GPU7".
std::optional<int> gpu_number(std::string_view label) {
  if (!label.starts_with("GPU")) return std::nullopt;
  return number_of(label.substr(3), highest_gpu);
}

enum class CellKind : std::uint8_t {
  self,
  links,
  path,
  silent  // "N/A": the driver does not know the connection
};

struct Cell {
  CellKind kind = CellKind::silent;
  PathLevel level = PathLevel::sys;  // distance, if the kind is CellKind::path
  std::uint16_t count = 0;           // number of NVLinks, if the kind is CellKind::links
  std::uint32_t offset = 0;          // byte offset in the file, which has at most 64 MiB
  bool same(const Cell& other) const {
    return kind == other.kind && level == other.level && count == other.count;
  }
};

std::optional<Cell> cell_of(std::string_view token) {
  struct Word {
    std::string_view word;
    PathLevel level;
  };
  constexpr std::array words{Word{"PIX", PathLevel::pix},   Word{"PSB", PathLevel::pix},
                             Word{"PXB", PathLevel::pxb},   Word{"PHB", PathLevel::phb},
                             Word{"NODE", PathLevel::node}, Word{"SYS", PathLevel::sys},
                             Word{"SOC", PathLevel::sys}};
  Cell cell;
  if (token == "N/A") return cell;
  const auto word = std::ranges::find(words, token, &Word::word);
  if (token == "X") {
    cell.kind = CellKind::self;
  } else if (word != words.end()) {
    cell.kind = CellKind::path;
    cell.level = word->level;
  } else {
    if (!token.starts_with("NV")) return std::nullopt;
    cell.kind = CellKind::links;
    cell.count = static_cast<std::uint16_t>(number_of(token.substr(2), 1000).value_or(0));
    if (cell.count == 0) return std::nullopt;
  }
  return cell;
}

bool is_cell(std::string_view token) { return cell_of(token).has_value(); }

struct Header {
  Tokens devices;
  std::size_t tails = 0;  // number of columns after the matrix
  // Positions of "CPU Affinity" and "NUMA Affinity" among the columns after the matrix.
  std::optional<std::size_t> cpus, numa;
};

void read_tails(std::span<const std::string_view> tokens, Header& header) {
  const auto is = [&](std::size_t at, std::string_view word) {
    return at < tokens.size() && tokens[at] == word;
  };
  for (std::size_t at = 0; at < tokens.size(); ++header.tails) {
    const bool is_affinity = is(at + 1, "Affinity");
    if (is_affinity && is(at, "CPU")) header.cpus = header.tails;
    if (is_affinity && is(at, "NUMA")) header.numa = header.tails;
    at += is_affinity ? 2 : is(at + 1, "NUMA") ? 3 : 1;  // the column "GPU NUMA ID" has three words
  }
}

// Parses the header of a matrix: a line of device names that begins with a GPU and has no cells.
// Empty for any other line.
std::optional<Header> header_of(std::string_view line) {
  if (line.size() > longest_line) return std::nullopt;
  const Tokens tokens = split(line);
  if (tokens.empty() || !gpu_number(tokens[0])) return std::nullopt;
  const auto end = std::ranges::find_if(tokens, [](std::string_view token) {
    return token == "CPU" || token == "NUMA" || token == "GPU";
  });
  Header header;
  header.devices.assign(tokens.begin(), end);
  if (std::ranges::any_of(header.devices, is_cell)) return std::nullopt;
  read_tails({end, tokens.end()}, header);
  return header;
}

// True if the line is the first row of a `topo -m` matrix. Other commands print matrices with the
// same header (`topo -p2p`).
bool is_row_of(const Header& header, std::string_view line) {
  if (line.size() > longest_line) return false;
  const Tokens tokens = split(line);
  if (tokens.size() <= header.devices.size() || tokens[0] != header.devices[0]) return false;
  return std::ranges::all_of(std::span(tokens).subspan(1, header.devices.size()), is_cell);
}

// Finds the header of the matrix, and removes everything up to the end of the header from `rest`.
std::optional<Header> find_header(std::string_view& rest) {
  for (std::size_t i = 0; i < header_lines; ++i) {
    const auto line = next_line(rest);
    if (!line) break;
    auto header = header_of(*line);
    if (!header) continue;
    if (header->cpus) return header;
    std::string_view ahead = rest;
    auto row = next_line(ahead);
    while (row && row->find_first_not_of(" \t") == std::string_view::npos) row = next_line(ahead);
    if (row && is_row_of(*header, *row)) return header;
  }
  return std::nullopt;
}

bool recognises(std::string_view text) {
  const std::string plain = without_escapes(text.substr(0, header_bytes));
  std::string_view rest = plain;
  return find_header(rest).has_value();
}

// Calls take(number) for each number in a list such as "0-23,48-71" or "1". Any other text ("N/A",
// "-1") is treated as an empty list.
template <class Take>
void for_numbers(std::string_view text, int highest, const Take& take) {
  std::vector<std::pair<int, int>> ranges;
  while (true) {
    const std::size_t comma = std::min(text.find(','), text.size());
    const std::string_view range = text.substr(0, comma);
    const std::size_t dash = std::min(range.find('-'), range.size());
    const auto first = number_of(range.substr(0, dash), highest);
    const auto last = dash < range.size() ? number_of(range.substr(dash + 1), highest) : first;
    // The driver prints ascending ranges. Other ranges are rejected, because repeated ranges could
    // make the loop below very long.
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
      : text_(text), rest_(text), origin_(origin), host_(host_of(origin)) {}

  Topology read() {
    auto header = find_header(rest_);
    if (!header) fail(0, "the text has no header of a matrix (GPU0 GPU1 ...)");
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
    fail_at(origin_, offset, what);
  }
  [[noreturn]] void fail(std::string_view part, std::string_view what) const {
    fail(offset_of(part), what);
  }
  std::size_t offset_of(std::string_view part) const {
    return static_cast<std::size_t>(part.data() - text_.data());
  }

  std::size_t size() const { return header_.devices.size(); }
  std::string_view label(std::size_t device) const { return header_.devices[device]; }
  bool is_gpu(std::size_t device) const { return gpu_number(label(device)).has_value(); }
  Cell& cell(std::size_t row, std::size_t column) { return cells_[row * size() + column]; }

  void check_name(std::string_view name) const {
    if (name.size() > longest_name || name.find_first_not_of(name_bytes) != std::string_view::npos)
      fail(name, "this is not the name of a device");
  }

  void check_devices() {
    if (size() > most_devices)
      fail(label(most_devices), fmt::format("the matrix has more than {} devices", most_devices));
    for (std::size_t i = 0; i < size(); ++i) {
      check_name(label(i));
      if (!columns_.try_emplace(label(i), i).second)
        fail(label(i), fmt::format("two columns are called {}", label(i)));
      if (is_gpu(i)) gpus_.push_back(i);
    }
    cells_.resize(size() * size());
    near_nodes_.resize(size());
  }

  void read_rows() {
    std::vector<bool> seen(size());
    for (std::size_t rows = 0; rows < size();) {
      const auto line = next_line(rest_);
      if (!line)
        fail(text_.size(), fmt::format("the matrix has {} rows, but {} columns", rows, size()));
      if (line->size() > longest_line)
        fail(*line, fmt::format("the line is longer than {} bytes", longest_line));
      const Tokens tokens = split(*line);
      if (tokens.empty()) continue;
      const auto column = columns_.find(tokens[0]);
      if (column == columns_.end())
        fail(tokens[0], fmt::format("the matrix has {} rows, but {} columns", rows, size()));
      if (seen[column->second]) fail(tokens[0], fmt::format("two rows are called {}", tokens[0]));
      seen[column->second] = true;
      read_row(column->second, tokens);
      ++rows;
    }
  }

  void read_row(std::size_t row, const Tokens& tokens) {
    for (std::size_t column = 0; column < size(); ++column) {
      if (column + 1 >= tokens.size())
        fail(offset_of(tokens.back()) + tokens.back().size(),
             fmt::format("row {} has no cell for {}", label(row), label(column)));
      const std::string_view token = tokens[column + 1];
      auto cell_read = cell_of(token);
      std::string_view what;
      if (!cell_read)
        what = "this is not a cell of nvidia-smi topo -m";
      else if ((cell_read->kind == CellKind::self) != (row == column))
        what = "X must be on the diagonal and only there";
      else if (cell_read->kind == CellKind::links && !(is_gpu(row) && is_gpu(column)))
        what = "a NIC has no NVLinks";
      if (!what.empty())
        fail(token, fmt::format("row {}, column {}: {}", label(row), label(column), what));
      cell_read->offset = static_cast<std::uint32_t>(offset_of(token));
      cell(row, column) = *cell_read;
    }
    // Columns after the matrix are separated only by blanks. If a row has an empty column, the
    // words cannot be assigned to columns, so they are ignored.
    const auto tails = std::span(tokens).subspan(size() + 1);
    if (tails.size() != header_.tails) return;
    if (header_.cpus)
      for_numbers(tails[*header_.cpus], most_cpus - 1,
                  [&](int cpu) { cpus_.set(static_cast<std::size_t>(cpu)); });
    if (header_.numa)
      for_numbers(tails[*header_.numa], most_nodes - 1,
                  [&](int node) { near_nodes_[row].push_back(node); });
  }

  void check_symmetry() {
    for (std::size_t row = 0; row < size(); ++row)
      for (std::size_t column = 0; column < row; ++column)
        if (!cell(row, column).same(cell(column, row)))
          fail(std::max(cell(row, column).offset, cell(column, row).offset),
               fmt::format("row {}, column {}: the cell differs from row {}, column {}", label(row),
                           label(column), label(column), label(row)));
  }

  // Reads the names of the NICs from lines such as "NIC0: mlx5_0" after the matrix. If the heading
  // "NIC Legend:" is missing, only columns whose names begin with "NIC" are renamed, since any log
  // may contain a line that begins with "mlx5_0:". The header of another matrix ends the legend.
  std::map<std::string_view, std::string_view> read_legend() {
    std::map<std::string_view, std::string_view> names;
    bool is_legend = false;
    while (const auto line = next_line(rest_)) {
      if (line->size() > longest_line || header_of(*line)) break;
      const Tokens tokens = split(*line);
      if (tokens.size() != 2) continue;
      is_legend = is_legend || (tokens[0] == "NIC" && tokens[1] == "Legend:");
      if (!tokens[0].ends_with(':')) continue;
      const std::string_view nic = tokens[0].substr(0, tokens[0].size() - 1);
      const auto column = columns_.find(nic);
      if (column == columns_.end() || is_gpu(column->second)) continue;
      if (is_legend || nic.starts_with("NIC")) names.try_emplace(nic, tokens[1]);
    }
    return names;
  }

  void add_devices(const std::map<std::string_view, std::string_view>& legend) {
    ids_.resize(size());
    std::set<std::string_view> seen;
    for (std::size_t device = 0; device < size(); ++device) {
      const auto named = legend.find(label(device));
      const std::string_view name = named == legend.end() ? label(device) : named->second;
      check_name(name);
      ids_[device] = is_gpu(device) ? fmt::format("{}/gpu{}", host_, *gpu_number(label(device)))
                                    : fmt::format("{}/{}", host_, name);
      if (!seen.insert(ids_[device]).second)
        fail(name, fmt::format("two devices are called {}", name));
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
        nic.name = name;
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

  // Returns whether the links between GPUs are known. A single GPU has no peer in the matrix, so
  // its links are unknown.
  IslandState state() {
    bool is_silent = gpus_.size() < 2;
    for (const std::size_t a : gpus_)
      for (const std::size_t b : gpus_) {
        if (cell(a, b).kind == CellKind::links) return IslandState::known;
        is_silent = is_silent || cell(a, b).kind == CellKind::silent;
      }
    return is_silent ? IslandState::unknown : IslandState::none;
  }

  void add_links() {
    for (const std::size_t a : gpus_)
      for (const std::size_t b : gpus_)
        if (a < b && cell(a, b).count > 0)
          topology_.links.push_back({ids_[a], ids_[b], "nvlink", cell(a, b).count, std::nullopt});
    show_hidden_switches(topology_, most_links_of_gpu);
  }

  void add_paths() {
    for (std::size_t a = 0; a < size(); ++a)
      for (std::size_t b = a + 1; b < size(); ++b)
        if (cell(a, b).kind == CellKind::path)
          topology_.paths.push_back({.a = ids_[a], .b = ids_[b], .level = cell(a, b).level});
  }

  std::string_view text_, rest_;
  std::string origin_, host_;
  Header header_;
  std::map<std::string_view, std::size_t> columns_;
  std::vector<std::size_t> gpus_;  // columns of the matrix that belong to GPUs
  std::vector<Cell> cells_;        // cells of all rows, in row-major order
  std::bitset<most_cpus> cpus_;    // CPUs that are near at least one device
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
