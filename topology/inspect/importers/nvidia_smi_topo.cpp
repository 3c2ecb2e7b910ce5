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
// Tabs, spaces or both separate the columns; people also paste the matrix as a Markdown table.
// Terminal escapes underline the header, and pasted text may contain parts of these escapes. The
// driver runs labels of wide headers together ("NIC11NIC12"), and terminals break them over lines.
// Older drivers write the names of NICs into the header. All NICs are RDMA devices, whatever their
// names: the driver lists /sys/class/infiniband. A cell NVk means k NVLinks. On a board without
// switches, these links connect the two GPUs. With NVSwitch, each cell repeats the number of all
// links of the GPU, so that the sum of a row exceeds the links of any GPU; show_hidden_switches()
// detects this.
//
// Steps: replace the escapes by spaces, find the header, read one row for each column, check that
// the matrix is symmetric, read the legend, convert the cells to links and paths. device_matrix.cpp
// has the first steps. If a text shows rows of GPUs only, the distances between NICs stay unknown.
#include <fmt/format.h>

#include <algorithm>
#include <bitset>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "facts.hpp"
#include "inspect/derived.hpp"
#include "inspect/importers/device_matrix.hpp"
#include "inspect/importers/importer.hpp"
#include "rdma_name.hpp"

namespace atoll_v1::atoll::importers {
namespace {

constexpr std::size_t longest_name = 64;
constexpr std::string_view name_bytes =
    "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz_-.:";
constexpr int most_cpus = 16'384;
constexpr int most_nodes = 1'024;      // largest number of NUMA nodes
constexpr int most_links_of_gpu = 18;  // no GPU up to NVLink 5 has more links

bool is_nvidia_smi_topo(std::string_view text) {
  const std::string plain = without_marks(text.substr(0, header_bytes));
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
      std::string_view ahead = rest_;
      const auto line = next_line(ahead);
      if (line && line->size() > longest_line)
        fail(*line, fmt::format("the line is longer than {} bytes", longest_line));
      const Tokens tokens = line ? split(*line) : Tokens();
      if (line && tokens.empty()) {
        rest_ = ahead;
        continue;
      }
      const auto column = line ? columns_.find(tokens[0]) : columns_.end();
      if (column == columns_.end()) {
        if (tokens.size() > 1 && cell_of(tokens[1]))
          fail(tokens[0],
               fmt::format("no column has the name of the row {}", printable(tokens[0], 32)));
        if (line) check_no_row_follows(seen, *line);
        return end_rows(seen, line ? offset_of(tokens[0]) : text_.size());
      }
      if (seen[column->second])
        fail(tokens[0], fmt::format("two rows are called {}", printable(tokens[0], 32)));
      seen[column->second] = true;
      read_row(column->second, tokens);
      rest_ = ahead;
      ++rows;
    }
  }

  // `line` is not a row: it is foreign text, or the end of a row that was broken. Fails if a row
  // that is still missing follows it, because that row would be lost.
  void check_no_row_follows(const std::vector<bool>& seen, std::string_view line) const {
    for (std::string_view ahead = rest_; const auto next = next_line(ahead);) {
      if (next->size() > longest_line || header_of(*next)) return;
      const Tokens tokens = split(*next);
      const auto column = tokens.size() > 1 ? columns_.find(tokens[0]) : columns_.end();
      if (column != columns_.end() && !seen[column->second] && cell_of(tokens[1]))
        fail(split(line)[0],
             fmt::format("the line \"{}\" is no row, but the row {} follows: remove the line, or "
                         "join it to its row",
                         printable(trimmed(line), 64), tokens[0]));
    }
  }

  // Called at `offset`, where the matrix has no more rows. People cut off the rows of all NICs;
  // then the cells of the GPUs' rows are used in both directions. Other missing rows are an error.
  void end_rows(const std::vector<bool>& seen, std::size_t offset) {
    std::vector<std::string> missing;
    bool has_all_gpus = true;
    for (std::size_t i = 0; i < size(); ++i) {
      if (seen[i]) continue;
      missing.emplace_back(label(i));
      has_all_gpus = has_all_gpus && !is_gpu(i);
    }
    const std::string rows =
        fmt::format("the {} of {}", missing.size() == 1 ? "row" : "rows", enumerate(missing));
    if (!has_all_gpus || missing.size() != size() - gpus_.size())
      fail(offset, fmt::format("the matrix has {} rows, but {} columns: it lacks {}",
                               size() - missing.size(), size(), rows));
    for (std::size_t nic = 0; nic < size(); ++nic)
      for (const std::size_t gpu : gpus_)
        if (!is_gpu(nic)) cell(nic, gpu) = cell(gpu, nic);
    add_note(fmt::format("the matrix lacks {}, so the distances between NICs are unknown", rows));
  }

  void add_note(const std::string& note) { note_ += (note_.empty() ? "" : "; ") + note; }

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
  // may contain a line that begins with "mlx5_0:". The header of another matrix ends the legend; a
  // second matrix of this kind is not read.
  std::map<std::string_view, std::string_view> read_legend() {
    std::map<std::string_view, std::string_view> names;
    bool is_legend = false;
    for (std::string_view ahead = rest_; const auto line = next_line(ahead); rest_ = ahead) {
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
    const std::size_t second = offset_of(rest_);
    if (find_header(rest_))
      add_note(fmt::format(
          "the text has a second matrix, from byte {} on; write it to its own file", second));
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
        nic.layer = layer_of_rdma_name(name);
        if (nic.layer.empty()) set_fact(nic.facts, fact::rdma, "yes");
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
    set_fact(host.facts, fmt::format("{}nvidia-smi topo -m", fact::note_prefix), note_);
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
  std::string note_;  // describes what the text lists and the topology lacks
  Topology topology_;
};

Topology read_nvidia_smi_topo(std::string_view text, std::string_view origin) {
  return MatrixReader(without_marks(text), origin).read();
}

}  // namespace

const Importer nvidia_smi_topo{"nvidia-smi topo -m", is_nvidia_smi_topo, read_nvidia_smi_topo};

}  // namespace atoll_v1::atoll::importers
