// Imports the tables of `rocm-smi --showtopo`, which show how each pair of AMD GPUs is connected:
//
//   ================= Link Type between two GPUs =================
//          GPU0         GPU1
//   GPU0   0            XGMI
//   GPU1   XGMI         0
//   ========================= Numa Nodes =========================
//   GPU[0]          : (Topology) Numa Node: 0
//
// GPUs of one xGMI hive are joined by links of type XGMI. A pair with more than one hop has no link
// of its own: its traffic passes another GPU. The tables show no NICs, and neither how many links
// join a pair nor their rate. The weights between GPUs are numbers of the firmware; they are not
// read.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "inspect/importers/device_matrix.hpp"
#include "inspect/importers/importer.hpp"
#include "parse_number.hpp"

namespace atoll_v1::atoll::importers {
namespace {

constexpr std::string_view links_title = "Link Type between two GPUs";
constexpr std::string_view hops_title = "Hops between two GPUs";
constexpr int most_rocm_nodes = 1'024;  // largest number of NUMA nodes
constexpr int most_hops = 1'000;

// A table, whose columns and rows are GPUs, by their numbers.
struct Table {
  std::vector<int> columns;
  std::map<int, Tokens> rows;

  std::string_view cell(int row, std::size_t column) const { return rows.at(row)[column]; }
};

class TablesReader {
 public:
  TablesReader(std::string_view text, std::string_view origin)
      : text_(text), origin_(origin), host_(host_of(origin)) {}

  Topology read() {
    std::string_view rest = text_;
    while (const auto line = next_line(rest)) {
      if (line->size() > longest_line)
        fail(*line, fmt::format("the line is longer than {} bytes", longest_line));
      read_line(*line);
    }
    check(links_, links_title);
    if (!hops_.columns.empty()) check(hops_, hops_title);
    if (!hops_.columns.empty() && hops_.columns != links_.columns)
      fail(text_, "the tables of links and of hops have different GPUs");
    add_devices();
    add_links();
    return std::move(topology_);
  }

 private:
  [[noreturn]] void fail(std::string_view part, std::string_view what) const {
    fail_at(origin_, static_cast<std::size_t>(part.data() - text_.data()), what);
  }

  void read_line(std::string_view line) {
    // Pasted text may be indented, or quoted with ">" as in mails, so both are removed.
    line.remove_prefix(std::min(line.find_first_not_of(" \t>"), line.size()));
    const Tokens tokens = split(line);
    if (tokens.empty()) return;
    if (line.starts_with("===")) {
      const bool has_links = line.find(links_title) != std::string_view::npos;
      const bool has_hops = line.find(hops_title) != std::string_view::npos;
      table_ = has_links ? &links_ : has_hops ? &hops_ : nullptr;
      if (table_ != nullptr && !table_->columns.empty()) fail(line, "the table occurs twice");
    } else if (tokens[0].starts_with("GPU[") ||
               (tokens[0] == "GPU" && line.find("(Topology)") != std::string_view::npos)) {
      read_node(tokens);
    } else if (table_ != nullptr && table_->columns.empty()) {
      read_header(tokens);
    } else if (table_ != nullptr) {
      read_row(tokens);
    }
  }

  // Reads "GPU[3] : (Topology) Numa Node: 1", or "GPU 3" in place of "GPU[3]".
  void read_node(const Tokens& tokens) {
    const std::size_t size = tokens.size();
    if (size < 4) return;
    const std::string_view number =
        tokens[0] == "GPU" ? tokens[1] : tokens[0].substr(4, tokens[0].find(']') - 4);
    const auto gpu = gpu_number(fmt::format("GPU{}", number));
    if (!gpu || tokens[size - 3] != "Numa" || tokens[size - 2] != "Node:") return;
    if (const auto node = number_of(tokens[size - 1], most_rocm_nodes - 1)) nodes_[*gpu] = *node;
  }

  void read_header(const Tokens& tokens) {
    if (tokens.size() > most_devices)
      fail(tokens[0], fmt::format("the table has more than {} GPUs", most_devices));
    for (const std::string_view token : tokens) {
      const auto gpu = gpu_number(token);
      if (!gpu) fail(token, "this is not the name of a GPU");
      if (!table_->columns.empty() && *gpu <= table_->columns.back())
        fail(token, "the GPUs are not in ascending order");
      table_->columns.push_back(*gpu);
    }
  }

  void read_row(const Tokens& tokens) {
    const auto gpu = gpu_number(tokens[0]);
    const auto& columns = table_->columns;
    if (!gpu || !std::ranges::binary_search(columns, *gpu))
      fail(tokens[0],
           fmt::format("no column has the name of the row {}", printable(tokens[0], 32)));
    if (tokens.size() != columns.size() + 1)
      fail(tokens[0],
           fmt::format("row GPU{} has {}, but the table has {}", *gpu,
                       plural(tokens.size() - 1, "cell"), plural(columns.size(), "column")));
    if (!table_->rows.try_emplace(*gpu, tokens.begin() + 1, tokens.end()).second)
      fail(tokens[0], fmt::format("two rows are called GPU{}", *gpu));
  }

  void check(const Table& table, std::string_view title) const {
    if (table.columns.empty()) fail(text_, fmt::format("the table \"{}\" is missing", title));
    for (const int gpu : table.columns)
      if (!table.rows.contains(gpu))
        fail(text_.substr(text_.size()),
             fmt::format("the table \"{}\" lacks the row of GPU{}", title, gpu));
  }

  void add_devices() {
    TopologyHost& host = topology_.hosts.emplace_back();
    host.id = host.name = host_;
    std::set<int> nodes;
    for (const auto& [gpu, node] : nodes_) nodes.insert(node);
    host.numa_nodes = static_cast<int>(nodes.size());
    for (const int number : links_.columns) {
      TopologyGpu& gpu = topology_.gpus.emplace_back();
      gpu.id = fmt::format("{}/gpu{}", host_, number);
      gpu.host = host_;
      gpu.index = number;
      if (const auto node = nodes_.find(number); node != nodes_.end()) gpu.numa = node->second;
    }
  }

  void add_links() {
    const std::vector<int>& gpus = links_.columns;
    bool is_silent = gpus.size() < 2, is_linked = false;
    for (std::size_t a = 0; a < gpus.size(); ++a)
      for (std::size_t b = a + 1; b < gpus.size(); ++b) {
        const std::string_view type = links_.cell(gpus[a], b), back = links_.cell(gpus[b], a);
        if (type != back)
          fail(back, fmt::format("row GPU{0}, column GPU{1}: the cell differs from row GPU{1}, "
                                 "column GPU{0}",
                                 gpus[b], gpus[a]));
        if (type != "XGMI" && type != "PCIE" && type != "N/A")
          fail(type, fmt::format("row GPU{}, column GPU{}: the type is not XGMI, PCIE or N/A",
                                 gpus[a], gpus[b]));
        is_silent = is_silent || type == "N/A";
        is_linked = is_linked || type == "XGMI";
        if (type == "XGMI" && is_direct(a, b))
          topology_.links.push_back(
              {topology_.gpus[a].id, topology_.gpus[b].id, "xgmi", 1, std::nullopt});
      }
    topology_.hosts.front().gpu_links = is_linked   ? IslandState::known
                                        : is_silent ? IslandState::unknown
                                                    : IslandState::none;
  }

  bool is_direct(std::size_t a, std::size_t b) const {
    if (hops_.columns.empty()) return true;
    return number_of(hops_.cell(hops_.columns[a], b), most_hops).value_or(1) <= 1;
  }

  std::string_view text_;
  std::string origin_, host_;
  Table links_, hops_;
  Table* table_ = nullptr;    // the table that is being read
  std::map<int, int> nodes_;  // NUMA node of each GPU
  Topology topology_;
};

bool is_rocm_smi_topo(std::string_view text) {
  return text.substr(0, header_bytes).find(links_title) != std::string_view::npos;
}

Topology read_rocm_smi_topo(std::string_view text, std::string_view origin) {
  return TablesReader(without_marks(text), origin).read();
}

}  // namespace

const Importer rocm_smi_topo{"rocm-smi --showtopo", is_rocm_smi_topo, read_rocm_smi_topo};

}  // namespace atoll_v1::atoll::importers
