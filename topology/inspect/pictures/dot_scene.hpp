// What a picture of a machine shows: texts and marks, no places. Hosts that look alike are shown
// once or twice and then counted.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "atoll/inspect/inspection.hpp"
#include "wording.hpp"

namespace atoll_v1::atoll::drawing {

// The worst finding about a thing; information is not shown.
enum class Mark {
  none,
  warning,
  error
};

struct GpuBox {
  std::string id;
  std::vector<std::string> lines;  // "GPU 3", "rank 11"
  std::string tooltip;
  Mark mark = Mark::none;
  int package = -1;
};

struct NicBox {
  std::string id, name, note;  // "mlx5_0", "400G IB"
  std::string tooltip;
  Mark mark = Mark::none;
  bool is_active = true;
};

// NICs that the same GPUs send through, drawn as one pile.
struct NicStack {
  std::vector<NicBox> nics = {};
  std::vector<std::size_t> users = {};  // GPUs, by their position in the host
  std::vector<std::size_t> near = {};   // GPUs that would use it if it worked
  std::vector<std::size_t> tracks = {};
  std::string more = {};  // "and 3 more"
};

// Links of a pair's own.
struct Arc {
  std::size_t a = 0, b = 0;  // GPUs of the host, a < b
  int count = 0;
  Mark mark = Mark::none;
};

// Links to switches.
struct Stub {
  std::size_t gpu = 0;
  int count = 0;
};

struct IslandBox {
  std::string id, detail;          // "H100 80GB HBM3"
  std::vector<std::string> title;  // "NVLink island:", "8 GPUs,", "450 GB/s a GPU"
  IslandState state = IslandState::unknown;
  std::string fabric;
  Mark mark = Mark::none;
  bool has_frame = true;  // false: the frame is around the whole host
  std::vector<std::size_t> gpus;
  std::vector<Arc> arcs;
  std::vector<Stub> stubs;
};

struct HostBox {
  std::string id, title, detail;
  Mark mark = Mark::none;
  std::vector<GpuBox> gpus;  // in order of the islands
  std::vector<IslandBox> islands;
  std::vector<NicStack> stacks;
  // Equal for hosts that look alike but for their names.
  std::string likeness;
};

// What is told of things that are not drawn: "node2 ... node9 are like node1 (8 hosts)".
struct Summary {
  std::vector<std::string> parts;
  std::vector<std::size_t> tracks;  // those of the thing that they are like
};

// A host, or an island that spans hosts with them.
struct Group {
  std::vector<HostBox> hosts;
  std::vector<Summary> summaries;
  std::optional<IslandBox> around;
};

// Rails that lead to the same places, as one line.
struct Track {
  std::string title;  // "rail 3 (assumed)"
  bool is_assumed = false;
};

struct Trouble {
  Mark mark = Mark::none;
  std::string text;
};

struct Scene {
  std::string heading;
  std::vector<Group> groups;
  std::vector<Summary> summaries;
  std::vector<Track> tracks;
  std::vector<Trouble> troubles;
};

Scene make_scene(const Inspection& inspection);

// --- between the files that make a scene ---

// The parts of an inspection by the host that they belong to.
struct HostParts {
  const TopologyHost* host = nullptr;
  std::vector<std::size_t> gpus;  // positions in the topology
  std::vector<std::size_t> nics;
  std::vector<const TopologyLink*> links;
};

class Parts {
 public:
  explicit Parts(const Inspection& inspection);

  const Inspection& inspection() const { return inspection_; }
  const std::vector<HostParts>& hosts() const { return hosts_; }
  const Topology& topology() const { return inspection_.topology; }
  const DisplayNames& names() const { return names_; }
  // Positions; none: not there.
  std::optional<std::size_t> host(std::string_view id) const { return find(host_of_, id); }
  std::optional<std::size_t> gpu(std::string_view id) const { return find(gpu_of_, id); }
  std::optional<std::size_t> nic(std::string_view id) const { return find(nic_of_, id); }
  std::optional<std::size_t> island(std::string_view gpu) const { return find(island_of_, gpu); }
  const Affinity* affinity(std::string_view gpu) const;
  Mark mark(std::string_view subject) const;
  // "rank 3", "ranks 0, 4"; "" without.
  std::string ranks(std::string_view gpu) const;

 private:
  using Positions = std::unordered_map<std::string_view, std::size_t>;
  static std::optional<std::size_t> find(const Positions& positions, std::string_view id);
  void mark_subjects();

  const Inspection& inspection_;
  DisplayNames names_;
  std::vector<HostParts> hosts_;
  Positions host_of_, gpu_of_, nic_of_, island_of_, affinity_of_;
  std::unordered_map<std::string, Mark> marks_;
  std::unordered_map<std::string_view, std::vector<std::size_t>> ranks_of_;
};

HostBox make_host(const Parts& parts, const HostParts& host);
IslandBox make_island(const Parts& parts, std::size_t island);

}  // namespace atoll_v1::atoll::drawing
