// The content of a picture: boxes with texts and marks. svg_layout.cpp adds the positions. Of many
// hosts that look alike, only one or two are drawn; a summary counts the others.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "atoll/tooling/inspection.hpp"
#include "inspect/pictures/svg_canvas.hpp"
#include "wording.hpp"

namespace atoll_v1::atoll::drawing {

// The mark of a part of the machine is the severity of the worst finding about the part. Findings
// of severity `info` do not appear.

struct GpuBox {
  std::string id;
  std::vector<std::string> lines;  // texts in the box: "GPU 3", "rank 11"
  std::string tooltip;
  Severity mark = Severity::info;
  int package = -1;
  Rect place = {};
};

struct NicBox {
  std::string id, name, note;  // name, such as "mlx5_0"; note, such as "400G IB, PCIe 252G"
  std::string tooltip;
  Severity mark = Severity::info;
  bool is_active = true;
  Rect place = {};
};

// NICs that the same GPUs send through. They are drawn as one stack.
struct NicStack {
  std::vector<NicBox> nics = {};
  // GPUs that send through the stack, as positions in HostBox::gpus.
  std::vector<std::size_t> users = {};
  std::vector<std::size_t> near = {};  // GPUs that would send through the NICs if these were active
  std::vector<std::size_t> tracks = {};  // positions in Scene::tracks of the connected lines
  std::string more = {};                 // text about NICs that are not drawn: "and 3 more"
  Rect last = {};                        // area of the stack's lowest row: its last NIC, or `more`
};

// Direct links between two GPUs.
struct Arc {
  std::size_t a = 0, b = 0;  // positions of the two GPUs in HostBox::gpus; a < b
  int count = 0;
  Severity mark = Severity::info;
};

// Links of a GPU to switches.
struct Stub {
  std::size_t gpu = 0;
  int count = 0;
};

struct Bar {
  Rect place;
  std::string text;
};

struct IslandBox {
  std::string detail;  // the GPU model: "H100 80GB HBM3"
  // Words of the title, which are not split: "NVLink island:", "8 GPUs,", "450 GB/s a GPU"
  std::vector<std::string> title;
  IslandState state = IslandState::unknown;
  std::string fabric;
  Severity mark = Severity::info;
  bool has_frame = true;  // false when the island's frame is drawn around several hosts
  std::vector<std::size_t> gpus;
  std::vector<Arc> arcs;
  std::vector<Stub> stubs;
  Rect frame, text;
  std::vector<std::string> lines;  // title, wrapped to the width of the frame
  std::optional<Bar> bar;          // bar that is drawn for the switches
};

struct HostBox {
  std::string id, title, detail;
  Severity mark = Severity::info;
  std::vector<GpuBox> gpus;  // GPUs of the host, sorted by island
  std::vector<IslandBox> islands;
  std::vector<NicStack> stacks;
  // Describes the appearance of the host without names. Hosts that look alike have equal texts.
  std::string likeness;
  Point at;  // upper left corner of the host, relative to the group
  double width = 0, height = 0;
  double nic_width = 0;  // width of the boxes of NICs, which holds their names and notes
  // Bars that show the processors of the GPUs, or all processors of a host without GPUs.
  std::vector<Bar> packages;
};

// Describes hosts that are not drawn: "node2 ... node9 are like node1 (8 hosts)".
struct Summary {
  std::vector<std::string> parts;
  Rect place = {};
};

// One host, an island that spans hosts together with these hosts, or a summary alone.
struct Group {
  std::vector<HostBox> hosts;
  std::vector<Summary> summaries;
  std::optional<IslandBox> around;
  double width = 0, height = 0;
};

// A line in the picture. It represents all rails that connect the same NICs of the drawn hosts.
struct Track {
  std::string title;  // label of the line: "rail 3 (assumed)"
  bool is_assumed = false;
};

// A finding that is listed below the picture.
struct Problem {
  Severity mark = Severity::info;
  std::string text;
};

struct Scene {
  std::string heading;
  std::vector<Group> groups;
  std::vector<Track> tracks;
  std::vector<Problem> problems;
};

Scene make_scene(const Inspection& inspection);

// A host with its devices and links.
struct HostParts {
  const TopologyHost* host = nullptr;
  std::vector<std::size_t> gpus, nics;  // positions of the devices in the topology
  std::vector<const TopologyLink*> links;
};

// Looks up hosts, devices, marks (worst severity) and ranks of an inspection by id.
class Parts {
 public:
  explicit Parts(const Inspection& inspected);

  const Inspection& inspection;
  const Topology& topology;
  const DisplayNames names;
  const std::vector<std::optional<double>> pcie_limits;  // what find_pcie_limits() returns
  std::vector<HostParts> hosts;
  // Return the position of a part in the inspection; empty when the id is unknown. island() expects
  // the id of a GPU.
  std::optional<std::size_t> host(std::string_view id) const { return find(host_of_, id); }
  std::optional<std::size_t> gpu(std::string_view id) const { return find(gpu_of_, id); }
  std::optional<std::size_t> nic(std::string_view id) const { return find(nic_of_, id); }
  std::optional<std::size_t> island(std::string_view gpu) const { return find(island_of_, gpu); }
  const Affinity* affinity(std::string_view gpu) const;
  Severity mark(std::string_view subject) const;
  // Describes the ranks on a GPU: "rank 3" or "ranks 0, 4"; "" for a GPU without ranks.
  std::string ranks(std::string_view gpu) const;

 private:
  using Positions = std::unordered_map<std::string_view, std::size_t>;
  static std::optional<std::size_t> find(const Positions& positions, std::string_view id);

  Positions host_of_, gpu_of_, nic_of_, island_of_, affinity_of_;
  std::unordered_map<std::string, Severity> marks_;
  std::unordered_map<std::string_view, std::vector<std::size_t>> ranks_of_;
};

// Returns the findings of the doctor and of the planner.
std::vector<const Finding*> findings_of(const Inspection& inspection);

HostBox make_host(const Parts& parts, const HostParts& host);
IslandBox make_island(const Parts& parts, std::size_t island);

inline constexpr double title_font = 12;
inline constexpr double detail_font = 9.5;
inline constexpr double package_font = 9;
inline constexpr double nic_font = 8;
inline constexpr double line_height = 14;
inline constexpr double pad = 10;         // distance between a frame and its content in points
inline constexpr double title_top = 6;    // distance between the frame of a host and its title
inline constexpr double gap = 14;         // distance between frames in points
inline constexpr double arc_height = 15;  // height in points of an arc, for each GPU that it spans

// Computes the positions of everything in a group: one host, or an island that spans hosts. The
// positions of parts of a host are relative to the upper left corner of the host. The positions of
// hosts, summaries and the surrounding island are relative to the group.
void place(Group& group);

}  // namespace atoll_v1::atoll::drawing
