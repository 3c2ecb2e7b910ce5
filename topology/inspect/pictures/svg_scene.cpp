// Chooses the hosts to draw, the hosts to summarise, and the lines between them.
//
// Hosts that look alike are a *kind*. Small machines are drawn completely. Of a large machine, one
// host of each kind is drawn; kinds with findings have priority. A *group* is one host, or an
// island that spans hosts together with these hosts. A *track* is one line for all rails that
// connect the same NICs of the drawn hosts.
#include "inspect/pictures/svg_scene.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <numeric>
#include <set>

namespace atoll_v1::atoll::drawing {
namespace {

constexpr std::size_t most_hosts = 4;    // largest number of hosts that are drawn in full
constexpr std::size_t most_islands = 2;  // largest number of drawn islands that span hosts
constexpr std::size_t most_hosts_in_island = 3;
constexpr std::size_t most_summaries = 3;
constexpr std::size_t most_tracks = 16;
constexpr std::size_t most_problems = 8;

struct Candidate {
  std::string name, last_name;        // names of the first and the last host
  std::vector<std::size_t> likeness;  // numbers that are equal for hosts or islands that look alike
  Severity mark = Severity::info;
  std::size_t hosts = 1;
};

struct Choice {
  std::vector<std::size_t> drawn;
  std::vector<Summary> told;
};

using Kind = std::vector<std::size_t>;  // positions of hosts or islands that look alike

std::vector<Kind> kinds_of(const std::vector<Candidate>& candidates) {
  std::map<std::vector<std::size_t>, std::size_t> kind_of;
  std::vector<Kind> kinds;
  for (std::size_t i = 0; i < candidates.size(); ++i) {
    const auto [at, is_new] = kind_of.try_emplace(candidates[i].likeness, kinds.size());
    if (is_new) kinds.emplace_back();
    kinds[at->second].push_back(i);
  }
  std::ranges::stable_sort(kinds, std::ranges::greater(),
                           [&](const Kind& kind) { return candidates[kind.front()].mark; });
  return kinds;
}

std::string count_hosts(const std::vector<Candidate>& candidates, const Kind& kind) {
  std::size_t hosts = 0;
  for (const std::size_t i : kind) hosts += candidates[i].hosts;
  return plural(hosts, "host");
}

// Returns the parts of a text such as "node2 ... node9 are like node1 (8 hosts)".
std::vector<std::string> describe(const std::vector<Candidate>& candidates, const Kind& rest,
                                  std::size_t like) {
  const std::string& first = candidates[rest.front()].name;
  const std::string& last = candidates[rest.back()].last_name;
  std::vector<std::string> parts{first};
  if (first != last) parts.push_back(fmt::format("... {}", last));
  parts.push_back(fmt::format("{} like {}", first == last ? "is" : "are", candidates[like].name));
  parts.push_back(fmt::format("({})", count_hosts(candidates, rest)));
  return parts;
}

Choice choose(const std::vector<Candidate>& candidates, std::size_t most) {
  Choice choice;
  if (candidates.size() <= most) {
    choice.drawn.resize(candidates.size());
    std::iota(choice.drawn.begin(), choice.drawn.end(), std::size_t{0});
    return choice;
  }
  std::vector<Kind> kinds = kinds_of(candidates);
  Kind others;
  std::size_t other_kinds = 0;
  for (Kind& kind : kinds) {
    if (choice.drawn.size() >= most || choice.told.size() >= most_summaries) {
      others.insert(others.end(), kind.begin(), kind.end());
      ++other_kinds;
      continue;
    }
    // If all hosts look alike, two are drawn: in a picture of one host, the rails would connect
    // nothing.
    const std::size_t drawn = kinds.size() == 1 ? std::min<std::size_t>(2, most) : 1;
    const std::size_t like = kind[drawn - 1];
    choice.drawn.insert(choice.drawn.end(), kind.begin(),
                        kind.begin() + static_cast<std::ptrdiff_t>(drawn));
    kind.erase(kind.begin(), kind.begin() + static_cast<std::ptrdiff_t>(drawn));
    if (!kind.empty()) choice.told.push_back({describe(candidates, kind, like)});
  }
  if (!others.empty())
    choice.told.push_back(
        {{"and " + count_hosts(candidates, others), "of " + plural(other_kinds, "other kind")}});
  std::ranges::sort(choice.drawn);
  return choice;
}

// The hosts of a group, and the island around these hosts if the group has one.
struct Outline {
  std::vector<std::size_t> hosts;
  std::optional<std::size_t> island;
};

std::vector<Outline> outlines_of(const Parts& parts) {
  const auto& islands = parts.inspection.islands;
  // For each host, the island that spans several hosts and contains all GPUs of this host.
  std::map<std::size_t, std::size_t> around;
  for (std::size_t i = 0; i < islands.size(); ++i) {
    if (islands[i].hosts.size() < 2) continue;
    std::vector<std::size_t> hosts;
    bool is_alone = true;
    for (const std::string& id : islands[i].hosts) {
      const auto host = parts.host(id);
      if (!host) continue;
      hosts.push_back(*host);
      for (const std::size_t gpu : parts.hosts[*host].gpus)
        is_alone = is_alone && parts.island(parts.topology.gpus[gpu].id) == i;
    }
    if (is_alone)
      for (const std::size_t host : hosts) around[host] = i;
  }
  std::vector<Outline> outlines;
  std::map<std::size_t, std::size_t> outline_of;  // for each island, the position in `outlines`
  for (std::size_t host = 0; host < parts.hosts.size(); ++host) {
    const auto found = around.find(host);
    if (found == around.end()) {
      outlines.push_back({{host}, std::nullopt});
      continue;
    }
    const auto [at, is_new] = outline_of.try_emplace(found->second, outlines.size());
    if (is_new) outlines.push_back({{}, found->second});
    outlines[at->second].hosts.push_back(host);
  }
  return outlines;
}

Severity worst_mark(const HostBox& host) {
  Severity worst = host.mark;
  for (const GpuBox& gpu : host.gpus) worst = std::max(worst, gpu.mark);
  for (const NicStack& stack : host.stacks)
    for (const NicBox& nic : stack.nics) worst = std::max(worst, nic.mark);
  return worst;
}

// Returns the data that is needed to choose the groups to draw. The boxes of all hosts are not
// kept, because they would need much memory.
std::vector<Candidate> candidates_of(const Parts& parts) {
  std::unordered_map<std::string, std::size_t> numbers;  // maps the look of a host to a number
  std::vector<Candidate> candidates;
  for (const HostParts& host : parts.hosts) {
    HostBox box = make_host(parts, host);
    const Severity mark = worst_mark(box);
    const auto at = numbers.try_emplace(std::move(box.likeness), numbers.size()).first;
    candidates.push_back(
        {.name = box.title, .last_name = box.title, .likeness = {at->second}, .mark = mark});
  }
  return candidates;
}

Candidate candidate_of(const std::vector<Candidate>& hosts, const Outline& outline) {
  if (!outline.island) return hosts[outline.hosts.front()];
  Candidate candidate{.name = hosts[outline.hosts.front()].name,
                      .last_name = hosts[outline.hosts.back()].name,
                      .likeness = {},
                      .hosts = outline.hosts.size()};
  for (const std::size_t host : outline.hosts) {
    candidate.mark = std::max(candidate.mark, hosts[host].mark);
    candidate.likeness.push_back(hosts[host].likeness.front());
  }
  std::ranges::sort(candidate.likeness);
  return candidate;
}

Group make_group(const Parts& parts, const std::vector<Candidate>& hosts, const Outline& outline) {
  std::vector<Candidate> candidates;
  for (const std::size_t host : outline.hosts) candidates.push_back(hosts[host]);
  const Choice choice = choose(candidates, most_hosts_in_island);
  Group group;
  for (const std::size_t drawn : choice.drawn) {
    group.hosts.push_back(make_host(parts, parts.hosts[outline.hosts[drawn]]));
    if (outline.island)
      for (IslandBox& island : group.hosts.back().islands) island.has_frame = false;
  }
  group.summaries = choice.told;
  if (outline.island) {
    group.around = make_island(parts, *outline.island);
    group.around->detail = group.hosts.front().islands.front().detail;
  }
  return group;
}

// Position of a NIC stack: its group, its host in the group, its place in the host.
using StackPlace = std::array<std::size_t, 3>;

std::map<std::string, StackPlace, std::less<>> stack_places(const std::vector<Group>& groups) {
  std::map<std::string, StackPlace, std::less<>> places;  // for each NIC id, the place of its stack
  for (std::size_t g = 0; g < groups.size(); ++g)
    for (std::size_t h = 0; h < groups[g].hosts.size(); ++h)
      for (std::size_t s = 0; s < groups[g].hosts[h].stacks.size(); ++s)
        for (const NicBox& nic : groups[g].hosts[h].stacks[s].nics) places[nic.id] = {g, h, s};
  return places;
}

bool joins_hosts(const Parts& parts, const Rail& rail) {
  std::set<std::string_view> hosts;
  for (const std::string& id : rail.nics)
    if (const auto nic = parts.nic(id)) hosts.insert(parts.topology.nics[*nic].host);
  return hosts.size() > 1;
}

void add_tracks(const Parts& parts, Scene& scene) {
  struct Line {
    std::set<StackPlace> places;
    std::vector<int> rails;
    bool is_assumed = false;
  };
  const auto places = stack_places(scene.groups);
  std::vector<Line> lines;
  std::map<std::pair<bool, std::set<StackPlace>>, std::size_t> line_of;
  for (const Rail& rail : parts.inspection.rails) {
    if (!joins_hosts(parts, rail)) continue;
    std::set<StackPlace> ends;
    for (const std::string& nic : rail.nics)
      if (const auto found = places.find(nic); found != places.end()) ends.insert(found->second);
    if (ends.empty()) continue;
    const bool is_assumed = rail.evidence == "assumed";
    const auto [at, is_new] = line_of.try_emplace({is_assumed, ends}, lines.size());
    if (is_new) lines.push_back({std::move(ends), {}, is_assumed});
    lines[at->second].rails.push_back(rail.index);
  }
  std::size_t left_out = 0;
  for (Line& line : lines) {
    if (scene.tracks.size() == most_tracks) {
      left_out += line.rails.size();
      continue;
    }
    std::ranges::sort(line.rails);
    for (const StackPlace& at : line.places)
      scene.groups[at[0]].hosts[at[1]].stacks[at[2]].tracks.push_back(scene.tracks.size());
    scene.tracks.push_back(
        {fmt::format("{} {}{}", line.rails.size() == 1 ? "rail" : "rails",
                     number_ranges(line.rails), line.is_assumed ? " (assumed)" : ""),
         line.is_assumed});
  }
  if (left_out > 0) scene.heading += fmt::format(", {} not drawn", plural(left_out, "more rail"));
}

void add_problems(const Parts& parts, Scene& scene) {
  std::vector<const Finding*> findings = findings_of(parts.inspection);
  std::erase_if(findings, [](const Finding* f) { return f->severity == Severity::info; });
  std::ranges::stable_sort(findings, std::ranges::greater(), &Finding::severity);
  for (const Finding* finding : findings) {
    if (scene.problems.size() == most_problems) {
      scene.problems.push_back(
          {Severity::info,
           fmt::format("and {}", plural(findings.size() - most_problems, "more finding"))});
      break;
    }
    std::vector<std::string> subjects;
    for (const std::string& subject : finding->subjects)
      subjects.push_back(parts.names.device(subject));
    const std::string who = enumerate(subjects, 3);
    scene.problems.push_back(
        {finding->severity, fmt::format("{}: {}{}{}", name(finding->severity), who,
                                        who.empty() ? "" : ": ", finding->evidence)});
  }
}

std::string heading_of(const Inspection& inspection) {
  const Topology& topology = inspection.topology;
  const auto hidden = std::ranges::count_if(topology.nics, &TopologyNic::is_virtual);
  std::string text = fmt::format(
      "{}, {}, {}", plural(topology.hosts.size(), "host"), plural(topology.gpus.size(), "GPU"),
      plural(topology.nics.size() - static_cast<std::size_t>(hidden), "NIC"));
  if (hidden > 0)
    text += fmt::format(", {} not drawn", plural(static_cast<std::size_t>(hidden), "virtual NIC"));
  if (inspection.plan) {
    text += fmt::format(", mesh {} x {}", inspection.plan->replicate, inspection.plan->shard);
    if (inspection.plan->tensor > 1) text += fmt::format(" x {}", inspection.plan->tensor);
  }
  return text;
}

}  // namespace

Scene make_scene(const Inspection& inspection) {
  const Parts parts(inspection);
  const std::vector<Candidate> hosts = candidates_of(parts);
  const std::vector<Outline> outlines = outlines_of(parts);
  std::vector<Candidate> candidates;
  bool spans_hosts = false;
  for (const Outline& outline : outlines) {
    candidates.push_back(candidate_of(hosts, outline));
    spans_hosts = spans_hosts || outline.island;
  }
  const Choice choice = choose(candidates, spans_hosts ? most_islands : most_hosts);
  Scene scene;
  scene.heading = heading_of(inspection);
  for (const std::size_t drawn : choice.drawn)
    scene.groups.push_back(make_group(parts, hosts, outlines[drawn]));
  add_tracks(parts, scene);
  for (const Summary& told : choice.told) scene.groups.emplace_back().summaries = {told};
  add_problems(parts, scene);
  return scene;
}

}  // namespace atoll_v1::atoll::drawing
