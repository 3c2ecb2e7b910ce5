// Tests of pictures of topologies: the content, the positions of boxes, and names that could break
// the output.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdio>
#include <map>
#include <pugixml.hpp>
#include <regex>

#include "atoll/tooling/load.hpp"
#include "unit/topology/machines.hpp"

using atoll::Finding;
using atoll::Inspection;
using atoll::IslandState;
using atoll::Severity;
using atoll::Topology;
using machines::contains;
using machines::gpu;

namespace {

std::size_t count(const std::string& text, const std::string& part) {
  std::size_t found = 0;
  for (auto at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++found;
  return found;
}

// Returns the first line of the SVG with this text, or "" if no line has it. The SVG has one line
// for each frame, each connection and each box.
std::string line_with(const std::string& svg, const std::string& text) {
  const auto at = svg.find(text);
  if (at == std::string::npos) return "";
  const auto begin = svg.rfind('\n', at) + 1;
  return svg.substr(begin, svg.find('\n', at) - begin);
}

// Returns the box of a GPU or NIC, whose tooltip begins with its id.
std::string box(const std::string& svg, const std::string& id) {
  return line_with(svg, "<g class=\"box\"><title>" + id + ' ');
}

std::string label(const std::string& text) { return '>' + text + "</text>"; }

std::string tooltip(const std::string& text) { return "<title>" + text + "</title>"; }

std::string frame(const std::string& text) { return "<g class=\"frame\">" + tooltip(text); }

std::string edge(const std::string& svg, const std::string& a, const std::string& b) {
  return line_with(svg, tooltip(a + " - " + b));
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
  machines::add_nic(topology, host, 400, "mlx5_" + std::to_string(number));
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
  std::string tooltip;
  double left, right, top, bottom;
};

// Returns the boxes that must not overlap: all boxes except the numbers on arcs and the boxes
// without text behind a summary.
std::vector<Box> boxes_of(const std::string& svg) {
  static const std::regex pattern(
      "<g class=\"box\"><title>([^<]*)</title><rect x=\"([-0-9.]+)\" y=\"([-0-9.]+)\" "
      "width=\"([0-9.]+)\" height=\"([0-9.]+)\"[^>]*/><text");
  std::vector<Box> boxes;
  for (auto at = std::sregex_iterator(svg.begin(), svg.end(), pattern);
       at != std::sregex_iterator(); ++at) {
    const auto& match = *at;
    if (contains(match[1], " - ")) continue;
    const double x = std::stod(match[2]), y = std::stod(match[3]);
    boxes.push_back({match[1], x, x + std::stod(match[4]), y, y + std::stod(match[5])});
  }
  return boxes;
}

// Returns width and height of the picture in points.
std::pair<double, double> size_of(const std::string& svg) {
  double width = 0, height = 0;
  REQUIRE(std::sscanf(svg.c_str() + svg.find("viewBox=\""), "viewBox=\"0 0 %lf %lf\"", &width,
                      &height) == 2);
  return {width, height};
}

// Checks that boxes neither overlap nor leave the sheet.
void check_boxes(const std::string& svg) {
  const auto [width, height] = size_of(svg);
  const std::vector<Box> boxes = boxes_of(svg);
  for (std::size_t i = 0; i < boxes.size(); ++i) {
    const Box& a = boxes[i];
    CAPTURE(a.tooltip);
    CHECK(a.left >= 0);
    CHECK(a.right <= width);
    CHECK(a.top >= 0);
    CHECK(a.bottom <= height);
    for (std::size_t j = 0; j < i; ++j) {
      const Box& b = boxes[j];
      CAPTURE(b.tooltip);
      CHECK((a.right <= b.left || b.right <= a.left || a.bottom <= b.top || b.bottom <= a.top));
    }
  }
}

}  // namespace

TEST_CASE("picture: an HGX host is a host with an island with GPUs on one switch") {
  const std::string svg = to_svg(rails_of(1, 8, "assumed"));
  CHECK(contains(svg, tooltip("1 host, 8 GPUs, 8 NICs")));
  CHECK(svg.ends_with("</svg>\n"));
  CHECK(contains(svg, frame("a")));
  CHECK(contains(svg, frame("NVLink island: 8 GPUs, 450 GB/s a GPU")));
  CHECK(contains(svg, label("NVLink island: 8 GPUs, 450 GB/s a GPU")));
  CHECK(contains(svg, label("NVSwitch, 18 links a GPU")));
  CHECK(count(svg, "<title>switch - ") == 8);
  for (int i = 0; i < 8; ++i) {
    CHECK(contains(box(svg, gpu("a", i)), label("GPU " + std::to_string(i))));
    const std::string nic = "a/mlx5_" + std::to_string(i);
    CHECK(contains(box(svg, nic), label("400G IB")));
    CHECK_FALSE(edge(svg, gpu("a", i), nic).empty());
  }
  CHECK(edge(svg, "a/gpu0", "a/mlx5_1").empty());
  CHECK(edge(svg, "a/gpu0", "a/gpu1").empty());
  // A rail with a single host connects nothing, so the rail is not drawn.
  CHECK_FALSE(contains(svg, "rail"));
}

TEST_CASE("picture: links of a pair's own are lines with their count") {
  Topology topology;
  machines::add_host(topology, "a", 4, IslandState::known);
  machines::join_all(topology, "a", {0, 1, 2}, 2);
  machines::link(topology, gpu("a", 2), gpu("a", 3), 6);
  const std::string svg = to_svg(inspect_by_hand(topology));
  const std::string thin = edge(svg, "a/gpu0", "a/gpu2"), thick = edge(svg, "a/gpu2", "a/gpu3");
  CHECK(contains(thin, "stroke-width=\"1.3\""));
  CHECK(contains(thick, "stroke-width=\"3.9\""));
  CHECK(contains(line_with(svg, tooltip("a/gpu0 - a/gpu2: 2 links")), label("2")));
  CHECK(contains(line_with(svg, tooltip("a/gpu2 - a/gpu3: 6 links")), label("6")));
  CHECK(edge(svg, "a/gpu0", "a/gpu3").empty());
  CHECK(contains(svg, "pairs differ"));
  CHECK_FALSE(contains(svg, "NVSwitch"));
}

TEST_CASE("picture: a GPU with fewer links than its like is told apart") {
  Topology topology = machines::hgx(1);
  topology.links[3].count = 16;
  const std::string svg = to_svg(inspect_by_hand(topology));
  CHECK(contains(svg, label("NVSwitch")));
  CHECK(contains(edge(svg, "switch", "a/gpu3"), "#d97706"));
  CHECK(contains(edge(svg, "switch", "a/gpu4"), "#5a8f00"));
  CHECK(contains(svg, label("16")));
}

TEST_CASE("picture: known, absent and unknown links look different") {
  Topology topology;
  machines::add_host(topology, "a", 3, IslandState::known);
  machines::link(topology, gpu("a", 0), gpu("a", 1));
  machines::add_host(topology, "b", 2, IslandState::none);
  machines::add_host(topology, "c", 2, IslandState::unknown);
  const std::string svg = to_svg(inspect_by_hand(topology));
  CHECK(contains(svg, "alone: no links"));
  CHECK(contains(line_with(svg, frame("NVLink island: 2 GPUs, 25 GB/s a GPU")), "#76b900"));
  CHECK(contains(svg, frame("2 GPUs without fast links")));
  CHECK(contains(line_with(svg, frame("links unknown: 2 GPUs")), "stroke-dasharray"));
  CHECK(count(svg, "stroke-dasharray") == 1);
  CHECK(count(svg, "#76b900") == 1);
}

TEST_CASE("picture: trouble is red, warnings orange, information neither; ranks are named") {
  Inspection inspection = rails_of(1, 4, "assumed");
  add_finding(inspection, Severity::info, "a/gpu0", "idle");
  add_finding(inspection, Severity::warning, "a/gpu1");
  add_finding(inspection, Severity::error, "a/gpu1");
  add_finding(inspection, Severity::warning, "a/mlx5_2");
  add_finding(inspection, Severity::error, "a");
  add_finding(inspection, Severity::warning, "rank 1");
  const atoll::RankSite second{.host = "a", .gpu = "a/gpu2"};
  inspection.ranks = {{.host = "a", .gpu = "a/gpu0"}, second, second};
  inspection.plan = atoll::MeshPlan{
      .replicate = 3, .shard = 8, .order = {}, .left_out = {}, .why = "", .findings = {}};
  const std::string svg = to_svg(inspection);
  CHECK_FALSE(contains(box(svg, "a/gpu0"), "#d97706"));
  CHECK(contains(box(svg, "a/gpu1"), "stroke=\"#c81e1e\""));
  CHECK(contains(box(svg, "a/gpu2"), "stroke=\"#d97706\""));
  CHECK(contains(box(svg, "a/mlx5_2"), "stroke=\"#d97706\""));
  CHECK(contains(line_with(svg, frame("a")), "fill=\"#f7f8fa\" stroke=\"#c81e1e\""));
  CHECK_FALSE(contains(svg, "idle"));
  CHECK(svg.find("error: a/gpu1") < svg.find("warning: a/gpu1"));
  // Each GPU shows its ranks, and the top of the picture shows the mesh.
  CHECK(contains(svg, "mesh 3 x 8"));
  CHECK(contains(box(svg, "a/gpu0"), label("rank 0")));
  CHECK(contains(box(svg, "a/gpu2"), label("ranks 1, 2")));
}

TEST_CASE("picture: a NIC that is down is red with its state, beside the GPU that lacks it") {
  Inspection inspection = rails_of(1, 2, "assumed");
  inspection.topology.nics[1].state = "down";
  inspection.affinity[1].use = {"a/mlx5_0"};
  const std::string svg = to_svg(inspection);
  CHECK(contains(box(svg, "a/mlx5_1"), label("mlx5_1")));
  CHECK(contains(box(svg, "a/mlx5_1"), "fill=\"#c81e1e\" text-anchor=\"middle\">400G down"));
  CHECK(contains(edge(svg, "a/gpu1", "a/mlx5_1"), "stroke-dasharray=\"1,5\""));
  CHECK_FALSE(edge(svg, "a/gpu1", "a/mlx5_0").empty());
  CHECK_FALSE(contains(edge(svg, "a/gpu1", "a/mlx5_0"), "stroke-dasharray"));
}

TEST_CASE("picture: NICs that no GPU uses stand aside, virtual ones are left out") {
  Inspection inspection = rails_of(1, 2, "assumed");
  for (int i = 2; i < 12; ++i) add_nic(inspection.topology, "a", i);
  add_nic(inspection.topology, "a", 99);
  inspection.topology.nics.back().is_virtual = true;
  const std::string svg = to_svg(inspection);
  CHECK(contains(box(svg, "a/mlx5_2"), "#f1f2f4"));
  CHECK(contains(svg, label("and 5 more")));
  CHECK_FALSE(contains(svg, "mlx5_99"));
  CHECK(contains(svg, label("1 host, 2 GPUs, 12 NICs, 1 virtual NIC not drawn")));
}

TEST_CASE("picture: rails are lines that join equal NICs of the hosts") {
  const std::string assumed = to_svg(rails_of(3, 4, "assumed"));
  for (int i = 0; i < 4; ++i) {
    const std::string rail = "rail " + std::to_string(i) + " (assumed)";
    CHECK(contains(assumed, label(rail)));
    CHECK(contains(line_with(assumed, tooltip(rail) + "</path>"), "stroke-dasharray=\"5,2\""));
    for (const char* host : {"a", "b", "c"}) {
      const std::string nic = std::string(host) + "/mlx5_" + std::to_string(i);
      CHECK(count(assumed, tooltip(nic + " - " + rail)) == 1);
    }
  }
  const std::string known = to_svg(rails_of(2, 4, "fabric"));
  CHECK_FALSE(line_with(known, tooltip("rail 3") + "</path>").empty());
  CHECK_FALSE(contains(known, "stroke-dasharray"));
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
  const std::string svg = to_svg(inspection);
  CHECK(contains(svg, label("rails 0-1 (assumed)")));
  CHECK_FALSE(contains(svg, "rail 0 (assumed)"));
}

TEST_CASE("picture: equal hosts are shown twice and then counted") {
  const std::string svg = to_svg(inspect_by_hand(atoll::catalog_cluster("hgx-h100x2048")));
  CHECK(count(svg, "<title>hgx-h100-0</title>") == 1);
  CHECK(count(svg, "<g class=\"frame\">") == 4);
  CHECK(contains(svg, tooltip("hgx-h100-2 ... hgx-h100-2047 are like hgx-h100-1 (2046 hosts)")));
  CHECK(svg.size() < 60'000);
}

TEST_CASE("picture: hosts in trouble are shown first") {
  Inspection inspection = inspect_by_hand(atoll::catalog_cluster("hgx-h100x64"));
  add_finding(inspection, Severity::warning, "hgx-h100-17/gpu3");
  add_finding(inspection, Severity::error, "hgx-h100-40/mlx5_3");
  const std::string svg = to_svg(inspection);
  for (const char* host : {"hgx-h100-17", "hgx-h100-40", "hgx-h100-0"})
    CHECK(contains(svg, frame(host)));
  CHECK(contains(svg, "are like hgx-h100-0 (61 hosts)"));
}

TEST_CASE("picture: many kinds of hosts are counted, too") {
  Topology topology;
  for (int i = 1; i <= 9; ++i)
    for (const char* twin : {"x", "y"})
      machines::add_switched(topology, twin + std::to_string(i), i + 1);
  const std::string svg = to_svg(inspect_by_hand(topology));
  CHECK(count(svg, "<g class=\"frame\">") == 2 * 3);
  CHECK(contains(svg, tooltip("y1 is like x1 (1 host)")));
  CHECK(contains(svg, tooltip("and 12 hosts of 6 other kinds")));
}

TEST_CASE("picture: an island that spans hosts is around them") {
  const std::string svg = to_svg(inspect_by_hand(atoll::catalog_cluster("gb200-nvl72")));
  const std::string island = frame("NVLink island: 72 GPUs on 18 hosts, 900 GB/s a GPU");
  CHECK(count(svg, "<g class=\"frame\">") == 1 + 2);
  CHECK(svg.find(island) < svg.find(frame("gb200-nvl72-t00")));
  CHECK_FALSE(edge(svg, "switch", "gb200-nvl72-t01").empty());
  CHECK(contains(svg, "(16 hosts)"));
  CHECK(contains(svg, label("NVSwitch, 18 links a GPU")));
}

TEST_CASE("picture: hosts without GPUs, and nothing at all") {
  Topology topology = machines::cpus(1);
  machines::add_nic(topology, "a", 200);
  const std::string svg = to_svg(inspect_by_hand(topology));
  CHECK(contains(svg, "2 packages, 8 cores, 1 GiB"));
  CHECK(contains(box(svg, "a/mlx5_0"), label("200G IB")));
  CHECK_FALSE(contains(svg, "island"));
  topology.hosts[0].facts = {{"package.0", "4 cores, L3 45 MiB"}, {"package.1", "4 cores"}};
  const std::string processors = to_svg(inspect_by_hand(topology));
  CHECK(contains(processors, label("package 0: 4 cores, L3 45 MiB")));
  CHECK(boxes_of(processors).size() == 3);
  CHECK(contains(to_svg(Inspection{}), label("0 hosts, 0 GPUs, 0 NICs")));
}

TEST_CASE("picture: long findings are broken into lines and do not widen the picture") {
  Inspection inspection = rails_of(1, 2, "assumed");
  const auto before = size_of(to_svg(inspection));
  std::string evidence;
  for (int i = 0; i < 40; ++i) evidence += "word ";
  add_finding(inspection, Severity::warning, "a/gpu0", evidence + std::string(300, 'x') + " end");
  const std::string svg = to_svg(inspection);
  CHECK(size_of(svg).first == before.first);
  CHECK(size_of(svg).second > before.second);
  CHECK(contains(svg, "end</text>"));
  CHECK_FALSE(contains(svg, "...</text>"));
  CHECK_FALSE(contains(svg, std::string(100, 'x')));
}

TEST_CASE("picture: names of NICs are whole, with the limit of their PCIe link") {
  Inspection inspection = rails_of(1, 4, "assumed");
  for (auto& nic : inspection.topology.nics) {
    nic.name = "nic-0101:00:00." + nic.name.substr(5);
    nic.facts = {{"pci.gt_s", "16"}, {"pci.width", "16"}};
  }
  const std::string svg = to_svg(inspection);
  CHECK(contains(box(svg, "a/mlx5_3"), label("nic-0101:00:00.3")));
  CHECK(contains(box(svg, "a/mlx5_3"), label("400G IB, PCIe 252G")));
  check_boxes(svg);
}

TEST_CASE("picture: names cannot end elements or spoil the output") {
  Topology topology;
  machines::add_host(topology, "x\"></g><script>\n]]>", 1);
  topology.gpus[0].model =
      "a & b &lt; \xff\xfe \x1b[31m \xc0\xbc \xed\xa0\x80 \xef\xbf\xbf \xf8 caf\xc3\xa9 "
      "\xf0\x9f\x90\x9f";
  Inspection inspection = inspect_by_hand(topology);
  add_finding(inspection, Severity::error, "y\r", "<quoted>");
  const std::string svg = to_svg(inspection);
  pugi::xml_document document;
  REQUIRE(document.load_string(svg.c_str()));
  CHECK_FALSE(contains(svg, "<script>"));
  CHECK(contains(svg, frame("x\"&gt;&lt;/g&gt;&lt;script&gt; ]]&gt;")));
  CHECK(contains(svg, "a &amp; b &amp;lt; ?? ?[31m ?? ??? ??? ? caf\xc3\xa9 \xf0\x9f\x90\x9f"));
  CHECK(contains(svg, label("error: y?: &lt;quoted&gt;")));
  CHECK_FALSE(contains(svg, "\x1b"));
}

TEST_CASE("picture: boxes never overlap and stay inside the sheet") {
  std::vector<std::string> names{"azure-nd-h100-v5x3", "oci-h100x4", "gb200-nvl72x2", "dgx-1vx2"};
  for (const auto& entry : atoll::catalog()) names.push_back(entry.name);
  for (const std::string& name : names) {
    CAPTURE(name);
    const std::string svg = to_svg(inspect_by_hand(atoll::catalog_cluster(name)));
    CHECK(boxes_of(svg).size() >= 8);
    const auto [width, height] = size_of(svg);
    check_boxes(svg);
    CHECK(width < 1600);
    CHECK(width / height < 4);
  }
}
