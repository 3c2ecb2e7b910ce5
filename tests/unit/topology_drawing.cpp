// Tests of pictures of topologies: the content, the positions of boxes, and names that could break
// the output.
#include <doctest/doctest.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <regex>
#include <sstream>

#include "atoll/error.hpp"
#include "atoll/inspect/load.hpp"
#include "unit/topology_machines.hpp"

using atoll::Finding;
using atoll::Inspection;
using atoll::IslandState;
using atoll::Severity;
using atoll::Topology;
using machines::gpu;

namespace {

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

std::size_t count(const std::string& text, const std::string& part) {
  std::size_t found = 0;
  for (auto at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++found;
  return found;
}

// Returns the line of the DOT text that declares a node or an edge "A -- B", or "" when there is no
// such line.
std::string line_of(const std::string& dot, const std::string& what) {
  std::istringstream lines(dot);
  for (std::string line; std::getline(lines, line);)
    if (line.substr(std::min(line.size(), line.find_first_not_of(' '))).starts_with(what + " ["))
      return line;
  return "";
}

std::string node(const std::string& dot, const std::string& id) {
  return line_of(dot, '"' + id + '"');
}

std::string edge(const std::string& dot, const std::string& a, const std::string& b) {
  return line_of(dot, '"' + a + "\" -- \"" + b + '"');
}

// Returns an inspection of the topology with computed islands. NIC i of a host belongs to GPU i of
// the host.
Inspection inspect_by_hand(Topology topology) {
  Inspection inspection;
  inspection.islands = find_islands(topology);
  std::map<std::string, std::vector<std::string>> nics;
  for (const auto& nic : topology.nics) nics[nic.host].push_back(nic.id);
  for (const auto& one : topology.gpus) {
    const auto& of_host = nics[one.host];
    const auto index = static_cast<std::size_t>(one.index);
    if (index >= of_host.size()) continue;
    atoll::Affinity affinity;
    affinity.gpu = one.id;
    affinity.nearest = affinity.use = {of_host[index]};
    inspection.affinity.push_back(affinity);
  }
  inspection.topology = std::move(topology);
  return inspection;
}

void add_nic(Topology& topology, const std::string& host, int number) {
  machines::add_nic(topology, host, 400);
  auto& nic = topology.nics.back();
  nic.name = "mlx5_" + std::to_string(number);
  nic.id = host + '/' + nic.name;
}

// Returns hosts a, b, ... with `gpus` GPUs on an NVSwitch and one NIC for each GPU. A rail joins
// the NICs that have the same number.
Inspection rails_of(int hosts, int gpus, const std::string& evidence) {
  Topology topology;
  std::vector<atoll::Rail> rails(static_cast<std::size_t>(gpus));
  for (int h = 0; h < hosts; ++h) {
    const std::string host(1, static_cast<char>('a' + h));
    machines::add_switched(topology, host, gpus);
    for (int i = 0; i < gpus; ++i) {
      add_nic(topology, host, i);
      auto& rail = rails[static_cast<std::size_t>(i)];
      rail.index = i;
      rail.nics.push_back(topology.nics.back().id);
      rail.evidence = evidence;
    }
  }
  Inspection inspection = inspect_by_hand(std::move(topology));
  inspection.rails = std::move(rails);
  return inspection;
}

void add_finding(Inspection& inspection, Severity severity, const std::string& subject,
                 const std::string& evidence = "seen") {
  inspection.diagnosis.findings.push_back(
      {.id = "check", .severity = severity, .subjects = {subject}, .evidence = evidence});
}

struct Box {
  std::string id;
  double left, right, bottom, top;
};

// Returns the boxes that must not overlap: all boxes except the labels of lines and the unlabelled
// boxes behind a summary.
std::vector<Box> boxes_of(const std::string& dot) {
  static const std::regex pattern(
      "\"([^\"]*)\" \\[pos=\"([-0-9.]+),([-0-9.]+)\", width=([0-9.]+), height=([0-9.]+), "
      "label=\"([^\"]*)\"");
  std::vector<Box> boxes;
  for (auto at = std::sregex_iterator(dot.begin(), dot.end(), pattern);
       at != std::sregex_iterator(); ++at) {
    const auto& match = *at;
    if (contains(match[1], " - ") || match[6].length() == 0) continue;
    const double x = std::stod(match[2]), y = std::stod(match[3]);
    const double width = std::stod(match[4]) * 36, height = std::stod(match[5]) * 36;
    boxes.push_back({match[1], x - width, x + width, y - height, y + height});
  }
  return boxes;
}

// Returns whether Graphviz' `dot` is installed. The tests also pass without `dot`.
bool has_dot() {
  FILE* pipe = popen("command -v dot", "r");
  if (pipe == nullptr) return false;
  const bool found = std::fgetc(pipe) != EOF;
  pclose(pipe);
  return found;
}

class PathVariable {
 public:
  explicit PathVariable(const std::string& value) : before_(std::getenv("PATH")) {
    setenv("PATH", value.c_str(), 1);
  }
  ~PathVariable() { setenv("PATH", before_.c_str(), 1); }

 private:
  std::string before_;
};

}  // namespace

TEST_CASE("picture: an HGX host is a host with an island with GPUs on one switch") {
  const std::string dot = to_dot(rails_of(1, 8, "assumed"));
  CHECK(dot.starts_with("graph \"1 host, 8 GPUs, 8 NICs\" {\n"));
  CHECK(contains(dot, "subgraph \"cluster host a\" {"));
  CHECK(contains(dot, "subgraph \"cluster island a/gpu0\" {"));
  CHECK(contains(dot, "NVLink island: 8 GPUs, 450 GB/s a GPU"));
  CHECK(contains(node(dot, "switch of a/gpu0"), "label=\"NVSwitch, 18 links a GPU\""));
  CHECK(count(dot, "\"switch of a/gpu0\" -- ") == 8);
  for (int i = 0; i < 8; ++i) {
    CHECK(contains(node(dot, gpu("a", i)), "label=\"GPU " + std::to_string(i) + "\""));
    const std::string nic = "a/mlx5_" + std::to_string(i);
    CHECK(contains(node(dot, nic), "\\n400G IB\""));
    CHECK_FALSE(edge(dot, gpu("a", i), nic).empty());
  }
  CHECK(edge(dot, "a/gpu0", "a/mlx5_1").empty());
  CHECK(edge(dot, "a/gpu0", "a/gpu1").empty());
  // A rail with a single host connects nothing, so the rail is not drawn.
  CHECK_FALSE(contains(dot, "rail"));
}

TEST_CASE("picture: links of a pair's own are lines with their count") {
  Topology topology;
  machines::add_host(topology, "a", 4, IslandState::known);
  machines::join_all(topology, "a", {0, 1, 2}, 2);
  machines::link(topology, gpu("a", 2), gpu("a", 3), 6);
  const std::string dot = to_dot(inspect_by_hand(topology));
  const std::string thin = edge(dot, "a/gpu0", "a/gpu2"), thick = edge(dot, "a/gpu2", "a/gpu3");
  CHECK(contains(thin, "penwidth=1.3,"));
  CHECK(contains(thick, "penwidth=3.9,"));
  CHECK(contains(node(dot, "a/gpu0 - a/gpu2"), "label=\"2\""));
  CHECK(contains(node(dot, "a/gpu2 - a/gpu3"), "label=\"6\""));
  CHECK(edge(dot, "a/gpu0", "a/gpu3").empty());
  CHECK(contains(dot, "pairs differ"));
  CHECK_FALSE(contains(dot, "NVSwitch"));
}

TEST_CASE("picture: a GPU with fewer links than its like is told apart") {
  Topology topology = machines::hgx(1);
  topology.links[3].count = 16;
  const std::string dot = to_dot(inspect_by_hand(topology));
  CHECK(contains(node(dot, "switch of a/gpu0"), "label=\"NVSwitch\""));
  CHECK(contains(edge(dot, "switch of a/gpu0", "a/gpu3"), "#d97706"));
  CHECK(contains(edge(dot, "switch of a/gpu0", "a/gpu4"), "#5a8f00"));
  CHECK(contains(dot, "label=\"16\\l\""));
}

TEST_CASE("picture: known, absent and unknown links look different") {
  Topology topology;
  machines::add_host(topology, "a", 2, IslandState::known);
  machines::link(topology, gpu("a", 0), gpu("a", 1));
  machines::add_host(topology, "b", 2, IslandState::none);
  machines::add_host(topology, "c", 2, IslandState::unknown);
  const std::string dot = to_dot(inspect_by_hand(topology));
  CHECK(contains(dot, "tooltip=\"NVLink island: 2 GPUs, 25 GB/s a GPU\""));
  CHECK(contains(dot, "tooltip=\"2 GPUs without fast links\""));
  CHECK(contains(dot, "tooltip=\"links unknown: 2 GPUs\""));
  CHECK(count(dot, "rounded,filled,dashed") == 1);
  CHECK(count(dot, "#76b900") == 1);
}

TEST_CASE("picture: an island of seven and a GPU alone") {
  Topology topology = machines::hgx(1);
  std::erase_if(topology.links, [](const auto& link) { return link.a == "a/gpu3"; });
  Inspection inspection = inspect_by_hand(topology);
  add_finding(inspection, Severity::error, "a/gpu3", "18 links are down");
  const std::string dot = to_dot(inspection);
  CHECK(contains(dot, "NVLink island: 7 GPUs"));
  CHECK(contains(dot, "alone: no links"));
  CHECK(contains(node(dot, "a/gpu3"), "color=\"#c81e1e\""));
  CHECK(contains(dot, "label=\"error: a/gpu3: 18 links are down\\l\""));
}

TEST_CASE("picture: trouble is red, warnings are orange, information is neither") {
  Inspection inspection = rails_of(1, 4, "assumed");
  add_finding(inspection, Severity::info, "a/gpu0", "idle");
  add_finding(inspection, Severity::warning, "a/gpu1");
  add_finding(inspection, Severity::error, "a/gpu1");
  add_finding(inspection, Severity::warning, "a/mlx5_2");
  add_finding(inspection, Severity::error, "a");
  add_finding(inspection, Severity::warning, "rank 1");
  inspection.ranks = {{.host = "a", .gpu = "a/gpu0"}, {.host = "a", .gpu = "a/gpu2"}};
  const std::string dot = to_dot(inspection);
  CHECK_FALSE(contains(node(dot, "a/gpu0"), "#d97706"));
  CHECK(contains(node(dot, "a/gpu1"), "color=\"#c81e1e\""));
  CHECK(contains(node(dot, "a/gpu2"), "color=\"#d97706\""));
  CHECK(contains(node(dot, "a/mlx5_2"), "color=\"#d97706\""));
  CHECK(contains(dot, "fillcolor=\"#f7f8fa\", color=\"#c81e1e\""));
  CHECK_FALSE(contains(dot, "idle"));
  CHECK(dot.find("error: a/gpu1") < dot.find("warning: a/gpu1"));
}

TEST_CASE("picture: a NIC that is down is red with its state, beside the GPU that lacks it") {
  Inspection inspection = rails_of(1, 2, "assumed");
  inspection.topology.nics[1].state = "down";
  inspection.affinity[1].use = {"a/mlx5_0"};
  const std::string dot = to_dot(inspection);
  CHECK(contains(node(dot, "a/mlx5_1"), "label=\"mlx5_1\\n400G down\""));
  CHECK(contains(node(dot, "a/mlx5_1"), "fontcolor=\"#c81e1e\""));
  CHECK(contains(edge(dot, "a/gpu1", "a/mlx5_1"), "style=dotted"));
  CHECK(contains(edge(dot, "a/gpu1", "a/mlx5_0"), "style=solid"));
}

TEST_CASE("picture: NICs that no GPU uses stand aside, virtual ones are left out") {
  Inspection inspection = rails_of(1, 2, "assumed");
  for (int i = 2; i < 12; ++i) add_nic(inspection.topology, "a", i);
  add_nic(inspection.topology, "a", 99);
  inspection.topology.nics.back().is_virtual = true;
  const std::string dot = to_dot(inspection);
  CHECK(contains(node(dot, "a/mlx5_2"), "#f1f2f4"));
  CHECK(contains(dot, "label=\"and 5 more\""));
  CHECK_FALSE(contains(dot, "mlx5_99\""));
}

TEST_CASE("picture: rails are lines that join equal NICs of the hosts") {
  const std::string assumed = to_dot(rails_of(3, 4, "assumed"));
  for (int i = 0; i < 4; ++i) {
    const std::string rail = "rail " + std::to_string(i) + " (assumed)";
    CHECK(contains(node(assumed, rail), "label=\"" + rail + "\""));
    CHECK(contains(edge(assumed, rail, rail + " end"), "style=dashed"));
    for (const char* host : {"a", "b", "c"})
      CHECK(count(assumed, "\"" + std::string(host) + "/mlx5_" + std::to_string(i) + "\" -- \"" +
                               rail + " at ") == 1);
  }
  const std::string known = to_dot(rails_of(2, 4, "fabric"));
  CHECK(contains(edge(known, "rail 3", "rail 3 end"), "style=solid"));
  CHECK_FALSE(contains(known, "assumed"));
}

TEST_CASE("picture: rails that lead to the same places share a line") {
  Inspection inspection = rails_of(2, 2, "assumed");
  inspection.affinity.clear();
  for (const auto& one : inspection.topology.gpus) {
    atoll::Affinity affinity;
    affinity.gpu = one.id;
    affinity.use = {one.host + "/mlx5_0", one.host + "/mlx5_1"};
    inspection.affinity.push_back(affinity);
  }
  const std::string dot = to_dot(inspection);
  CHECK_FALSE(node(dot, "rails 0-1 (assumed)").empty());
  CHECK(node(dot, "rail 0 (assumed)").empty());
}

TEST_CASE("picture: equal hosts are shown twice and then counted") {
  const std::string dot = to_dot(inspect_by_hand(atoll::catalog_cluster("hgx-h100x2048")));
  CHECK(count(dot, "subgraph \"cluster host ") == 2);
  CHECK(contains(dot, "\"hgx-h100-2 ... hgx-h100-2047 are like hgx-h100-1 (2046 hosts)\""));
  CHECK(dot.size() < 60'000);
}

TEST_CASE("picture: hosts in trouble are shown first") {
  Inspection inspection = inspect_by_hand(atoll::catalog_cluster("hgx-h100x64"));
  add_finding(inspection, Severity::warning, "hgx-h100-17/gpu3");
  add_finding(inspection, Severity::error, "hgx-h100-40/mlx5_3");
  const std::string dot = to_dot(inspection);
  CHECK(contains(dot, "subgraph \"cluster host hgx-h100-17\""));
  CHECK(contains(dot, "subgraph \"cluster host hgx-h100-40\""));
  CHECK(contains(dot, "subgraph \"cluster host hgx-h100-0\""));
  CHECK(contains(dot, "are like hgx-h100-0 (61 hosts)"));
}

TEST_CASE("picture: many kinds of hosts are counted, too") {
  Topology topology;
  for (int i = 1; i <= 9; ++i)
    for (const char* twin : {"x", "y"})
      machines::add_switched(topology, twin + std::to_string(i), i + 1);
  const std::string dot = to_dot(inspect_by_hand(topology));
  CHECK(count(dot, "subgraph \"cluster host ") == 3);
  CHECK(contains(dot, "\"y1 is like x1 (1 host)\""));
  CHECK(contains(dot, "\"and 12 hosts of 6 other kinds\""));
}

TEST_CASE("picture: an island that spans hosts is around them") {
  const std::string dot = to_dot(inspect_by_hand(atoll::catalog_cluster("gb200-nvl72")));
  CHECK(count(dot, "subgraph \"cluster island ") == 1);
  CHECK(count(dot, "subgraph \"cluster host ") == 2);
  CHECK(dot.find("cluster island") < dot.find("cluster host"));
  CHECK(contains(dot, "NVLink island: 72 GPUs on 18 hosts, 900 GB/s a GPU"));
  CHECK(contains(dot, "(16 hosts)"));
  CHECK(contains(dot, "label=\"NVSwitch, 18 links a GPU\""));
}

TEST_CASE("picture: hosts without GPUs, and nothing at all") {
  Topology topology = machines::cpus(1);
  machines::add_nic(topology, "a", 200);
  const std::string dot = to_dot(inspect_by_hand(topology));
  CHECK(contains(dot, "2 packages, 8 cores, 1 GiB"));
  CHECK(contains(node(dot, "a/mlx5_0"), "200G IB"));
  CHECK_FALSE(contains(dot, "island"));
  CHECK(to_dot(Inspection{}).starts_with("graph \"0 hosts, 0 GPUs, 0 NICs\""));
}

TEST_CASE("picture: mesh and ranks are named") {
  Inspection inspection = rails_of(1, 2, "assumed");
  inspection.plan = atoll::MeshPlan{
      .replicate = 3, .shard = 8, .order = {}, .left_out = {}, .why = "", .findings = {}};
  inspection.ranks = {{.host = "a", .gpu = "a/gpu1"},
                      {.host = "a", .gpu = "a/gpu0"},
                      {.host = "a", .gpu = "a/gpu1"}};
  const std::string dot = to_dot(inspection);
  CHECK(contains(dot, "mesh 3 x 8"));
  CHECK(contains(node(dot, "a/gpu0"), "GPU 0\\nrank 1\""));
  CHECK(contains(node(dot, "a/gpu1"), "GPU 1\\nranks 0, 2\""));
}

TEST_CASE("picture: names cannot end strings, command Graphviz or spoil its output") {
  Topology topology;
  machines::add_host(topology, "x\"]; evil [\n\\N \\", 1);
  topology.gpus[0].model = "a & b &quot; \xff\xfe <b>\x1b[31m caf\xc3\xa9";
  Inspection inspection = inspect_by_hand(topology);
  add_finding(inspection, Severity::error, "y\\\"\r", "\"quoted\"");
  const std::string dot = to_dot(inspection);
  CHECK(contains(dot, "x\\\"]; evil [ \\\\N \\\\"));
  CHECK(contains(dot, "a &amp; b &amp;quot; ?? <b>?[31m caf\xc3\xa9"));
  CHECK(contains(dot, "error: y\\\\\\\"?: \\\"quoted\\\""));
  CHECK_FALSE(contains(dot, "\x1b"));
  // Outside of quoted strings, the output may contain only characters of Graphviz' language.
  bool is_quoted = false;
  for (std::size_t i = 0; i < dot.size(); ++i) {
    if (dot[i] == '\\') {
      ++i;
    } else if (dot[i] == '"') {
      is_quoted = !is_quoted;
    }
    CHECK_FALSE((is_quoted && i < dot.size() && dot[i] == '\n'));
  }
  CHECK_FALSE(is_quoted);
  if (has_dot()) CHECK(contains(to_svg(inspection), "x&quot;]; evil [ \\N \\"));
}

TEST_CASE("picture: boxes never overlap and stay inside the sheet") {
  std::vector<std::string> names{"azure-nd-h100-v5x3", "oci-h100x4", "gb200-nvl72x2", "dgx-1vx2"};
  for (const auto& entry : atoll::catalog()) names.push_back(entry.name);
  for (const std::string& name : names) {
    CAPTURE(name);
    const std::string dot = to_dot(inspect_by_hand(atoll::catalog_cluster(name)));
    const std::vector<Box> boxes = boxes_of(dot);
    CHECK(boxes.size() >= 8);
    double width = 0, height = 0;
    REQUIRE(std::sscanf(dot.c_str() + dot.find("bb=\""), "bb=\"0,%lf,%lf,0\"", &height, &width) ==
            2);
    for (std::size_t i = 0; i < boxes.size(); ++i) {
      const Box& a = boxes[i];
      CAPTURE(a.id);
      CHECK(a.left >= 0);
      CHECK(a.right <= width);
      CHECK(a.bottom >= height);
      CHECK(a.top <= 0);
      for (std::size_t j = 0; j < i; ++j) {
        const Box& b = boxes[j];
        CAPTURE(b.id);
        CHECK((a.right <= b.left || b.right <= a.left || a.top <= b.bottom || b.top <= a.bottom));
      }
    }
    CHECK(width < 1600);
    CHECK(width / -height < 4);
  }
}

TEST_CASE("picture: Graphviz paints it") {
  if (!has_dot()) {
    MESSAGE("not checked: Graphviz' dot is not in PATH");
    return;
  }
  const std::string svg = to_svg(rails_of(2, 8, "assumed"));
  CHECK(contains(svg, "<svg"));
  CHECK(contains(svg, "NVLink island: 8 GPUs, 450 GB/s a GPU"));
  CHECK(contains(svg, "rail 7 (assumed)"));
  CHECK(count(svg, "class=\"cluster\"") == 4);
  CHECK(svg.ends_with("</svg>\n"));
  for (const auto& entry : atoll::catalog())
    CHECK(contains(to_svg(inspect_by_hand(atoll::catalog_cluster(entry.name))), "</svg>"));
}

TEST_CASE("picture: without Graphviz the error names its package") {
  const PathVariable path("/nonexistent");
  try {
    to_svg(rails_of(1, 1, "assumed"));
    FAIL("a picture without a painter");
  } catch (const atoll::Error& error) {
    CHECK(error.code() == atoll::ErrorCode::not_found);
    CHECK(std::string(error.what()) ==
          "Graphviz' dot is not in PATH: install the package graphviz");
  }
}

TEST_CASE("picture: a dot that fails says why, and one that raves is stopped") {
  const auto folder =
      std::filesystem::temp_directory_path() / ("atoll_drawing_" + std::to_string(getpid()));
  std::filesystem::create_directories(folder);
  const PathVariable path(folder.string());
  const auto answer_of = [&](const std::string& script) -> std::string {
    std::ofstream(folder / "dot") << "#!/bin/sh\n" << script << '\n';
    std::filesystem::permissions(folder / "dot", std::filesystem::perms::owner_all);
    try {
      // The picture is larger than a pipe's buffer. A script that replaces `dot` may leave the
      // picture unread, and to_svg() must still return.
      return to_svg(rails_of(4, 64, "assumed")).substr(0, 5);
    } catch (const atoll::Error& error) {
      return error.what();
    }
  };
  CHECK(answer_of("echo broken >&2; exit 3") == "Graphviz' dot made no picture (exit 3): broken");
  CHECK(answer_of("exit 0") == "Graphviz' dot made no picture (exit 0): no reason given");
  CHECK(answer_of("kill -9 $$") == "Graphviz' dot made no picture (signal 9): no reason given");
  CHECK(answer_of("exec /usr/bin/yes") == "the picture is larger than 64 MiB");
  CHECK(answer_of("echo '<svg/>'; exec /bin/cat") == "<svg/");
  std::filesystem::remove_all(folder);
}

TEST_CASE("picture: large machines take no long time") {
  const auto start = std::chrono::steady_clock::now();
  Topology topology;
  machines::add_host(topology, "a", 2000, IslandState::none);
  for (int i = 0; i < 2000; ++i) add_nic(topology, "a", i);
  CHECK(count(to_dot(inspect_by_hand(topology)), "label=\"GPU ") == 2000);
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
  CHECK(elapsed.count() < 10);
}
