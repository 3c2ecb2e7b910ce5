// Plans a mesh when islands or hosts are unequal, because an island lost a GPU or a host got fewer
// ranks.
//
// Idea: with all ranks, the shard axis either divides every island, and is often short, or it
// crosses islands. Without a few ranks the islands may be equal again. The modelled communication
// time of a step (step_model.cpp) decides. Steps:
//   1. consider the shard axes that use all ranks: the divisors of the number of ranks. If the size
//      of the model is known, its memory must suffice. Otherwise memory sets no lower limit, and no
//      sharding at all would communicate least; so the axis must be at least half the largest
//      neighbourhood, and must fill it before it may cross islands;
//   2. choose the axis with the least modelled time; a wider axis must be at least 10 % faster;
//   3. consider meshes over equal parts of the islands, which leave out at most a quarter of the
//      ranks. Fewer ranks also compute longer, but the computing time is unknown here. Such a mesh
//      wins if the job is faster even when it computes for twice the communication time of all
//      ranks.
#include "mesh/planning.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "wording.hpp"

namespace atoll_v1::atoll {
namespace {

// A longer shard axis must take less than this share of the shorter axis's communication time.
constexpr double worth_widening = 0.9;
constexpr double most_left_out = 0.25;  // largest share of the ranks that may be left out
constexpr double computing = 2;   // assumed computing time, relative to the communication time
constexpr double wire_bytes = 2;  // bytes of a parameter in bf16

struct Alternative {
  MeshPlan mesh;
  double seconds = 0;
  bool crosses = false;
};

std::string shape_text(const MeshPlan& mesh) {
  const std::string shape = fmt::format("{}x{}", mesh.replicate, mesh.shard);
  return mesh.tensor == 1 ? shape : fmt::format("{}x{}", shape, mesh.tensor);
}

class UnevenPlanner {
 public:
  explicit UnevenPlanner(const MeshRequest& request)
      : request_(request),
        sites_(request.rates.sites),
        groups_(request.rates.groups),
        tensor_(request.options.tensor),
        ranks_(static_cast<int>(sites_.ranks.size())),
        slots_(ranks_ / tensor_),
        gbytes_(request.options.params ? *request.options.params * wire_bytes / 1e9 : 1),
        model_(request.rates),
        names_(request.rates.topology) {
    for (const RankGroup& group : groups_.wide) widest_ = std::max(widest_, group.size() / tensor_);
    least_ = std::max(1, (widest_ + 1) / 2);
    if (request.need) least_ = static_cast<int>(request.need->gpus_needed() - 1) / tensor_ + 1;
  }

  MeshPlan plan() {
    const Alternative all = with_all();
    const double compute = computing * all.seconds;
    const std::optional<Alternative> fewer = without_some(compute);
    const bool wins = fewer && pace(*fewer, compute) < pace(all, compute);
    MeshPlan plan = all.mesh;
    if (wins) plan.left_out = fewer->mesh.left_out;
    plan.why = explain(all, wins);
    plan.findings.push_back(finding(all, fewer, wins));
    return plan;
  }

 private:
  double share_kept(const Alternative& one) const {
    return static_cast<double>(one.mesh.order.size()) / ranks_;
  }

  // Returns the time of a step, scaled to the work that all ranks do in a step.
  double pace(const Alternative& one, double compute) const {
    return (compute + one.seconds) / share_kept(one);
  }

  Alternative measure(MeshPlan mesh) {
    Alternative one{.mesh = std::move(mesh)};
    one.seconds = model_.seconds(one.mesh, gbytes_);
    one.crosses = model_.crosses(one.mesh);
    return one;
  }

  bool may_shard(int shard) const {
    if (slots_ % shard != 0 || shard < least_) return false;
    // If the size of the model is unknown, accept the longest axis that stays inside the islands,
    // and all axes that are long enough to fill the largest island.
    return request_.need || shard >= widest_ || shard == shard_in_islands(groups_, tensor_);
  }

  Alternative with_all() {
    std::optional<Alternative> best;
    for (int shard = 1; shard <= slots_; ++shard) {
      if (!may_shard(shard)) continue;
      Alternative one = measure(arrange(groups_, shard, tensor_));
      if (!best || one.seconds < worth_widening * best->seconds) best = std::move(one);
    }
    return std::move(*best);  // `best` has a value: one row of all ranks is always allowed
  }

  std::optional<Alternative> without_some(double compute) {
    std::optional<Alternative> best;
    const auto consider = [&](const std::vector<RankGroup>& units) {
      std::set<int> sizes;
      for (const RankGroup& unit : units) sizes.insert(unit.size());
      for (const int size : sizes) {
        if (size / tensor_ < least_) continue;
        MeshPlan mesh = trim(units, size);
        const auto lost = static_cast<double>(mesh.left_out.size());
        if (lost == 0 || lost > most_left_out * ranks_) continue;
        Alternative one = measure(std::move(mesh));
        if (!best || pace(one, compute) < pace(*best, compute)) best = std::move(one);
      }
    };
    consider(groups_.near);
    if (tensor_ == 1 && groups_.wide.size() != groups_.near.size()) consider(groups_.wide);
    return best;
  }

  std::pair<int, int> rail_position(int rank) const {
    return {sites_.at(rank).rail, sites_.at(rank).number};
  }

  // Builds rows of `size` ranks from each unit. A larger unit leaves out the positions that a unit
  // of `size` ranks lacks, so that columns stay on their rails.
  MeshPlan trim(const std::vector<RankGroup>& units, int size) const {
    MeshPlan mesh;
    mesh.shard = size / tensor_;
    mesh.tensor = tensor_;
    std::set<std::pair<int, int>> positions;
    const auto model = std::ranges::find(units, size, &RankGroup::size);
    for (const int rank : model->ranks) positions.insert(rail_position(rank));
    for (const RankGroup& unit : units) {
      std::vector<int> first, last;
      for (const int rank : unit.ranks)
        (positions.contains(rail_position(rank)) ? first : last).push_back(rank);
      first.insert(first.end(), last.begin(), last.end());
      const auto kept = first.begin() + std::ptrdiff_t{unit.size() / size} * size;
      mesh.left_out.insert(mesh.left_out.end(), kept, first.end());
      std::sort(first.begin(), kept,
                [&](int a, int b) { return sites_.position(a) < sites_.position(b); });
      mesh.order.insert(mesh.order.end(), first.begin(), kept);
    }
    mesh.replicate = static_cast<int>(mesh.order.size()) / size;
    std::ranges::sort(mesh.left_out);
    return mesh;
  }

  // --- texts for people ---

  std::string name_of(int rank) const {
    const int gpu = sites_.at(rank).gpu;
    return gpu < 0 ? fmt::format("rank {}", rank)
                   : names_.device(request_.rates.topology.gpus[at_index(gpu)].id);
  }

  std::vector<int> by_position(std::vector<int> ranks) const {
    std::ranges::sort(ranks, {}, [&](int rank) { return sites_.position(rank); });
    return ranks;
  }

  std::string names_of(const std::vector<int>& ranks) const {
    std::vector<std::string> names;
    for (const int rank : by_position(ranks)) names.push_back(name_of(rank));
    return enumerate(names);
  }

  std::string sizes() const {
    return sizes_text(alike(groups_.near) ? groups_.wide : groups_.near);
  }

  std::string each() const { return request_.need ? "" : " for each GB of parameters"; }

  // Describes the shard axis: "shard over 4 GPUs", or "shard over 4 x 2 GPUs" with tensor ranks.
  std::string row_text(const MeshPlan& mesh) const {
    const std::string_view user = all_have_gpus(sites_) ? "GPU" : "rank";
    if (tensor_ == 1) return "shard over " + plural(at_index(mesh.shard), user);
    return fmt::format("shard over {} x {}", mesh.shard, plural(at_index(tensor_), user));
  }

  std::string explain(const Alternative& all, bool wins) const {
    const std::string what = row_text(all.mesh);
    const int replicate = all.mesh.replicate;
    std::string text;
    if (request_.need)
      text = fmt::format("{}, at {}: {} needed; ", request_.need->product, request_.need->gives,
                         plural(static_cast<std::size_t>(request_.need->gpus_needed()),
                                all_have_gpus(sites_) ? "GPU" : "rank"));
    if (!all.crosses && all.mesh.shard == shard_in_islands(groups_, tensor_))
      text += fmt::format(
          "{}, the largest number that divides the ranks of every {} ({}); replicate over {}", what,
          shared_noun(sites_, groups_.near), sizes(), plural(at_index(replicate), "group"));
    else
      text += fmt::format(
          "{}{}; islands or hosts are unequal ({}), and among the meshes that use all ranks and "
          "shard over {} or more, this one communicates least: {} a step{} (modelled: {})",
          what,
          replicate == 1 ? ""
                         : fmt::format(", replicate over {}", plural(at_index(replicate), "group")),
          sizes(), least_, time(all.seconds), each(), model_.rates_text());
    if (wins) text += "; it would be faster without some ranks (see the finding mesh_uneven)";
    return text;
  }

  static std::string time(double seconds) {
    return seconds < 1 ? fmt::format("{:.3g} ms", seconds * 1e3) : fmt::format("{:.3g} s", seconds);
  }

  // Describes the shard axis inside the islands when it was rejected as too short.
  std::string passed_over() {
    const int inside = shard_in_islands(groups_, tensor_);
    if (inside >= least_ || request_.need) return "";
    const Alternative one = measure(arrange(groups_, inside, tensor_));
    return fmt::format("; {} as mesh {}, which needs {:.3g} times the memory of each GPU",
                       time(one.seconds), shape_text(one.mesh),
                       static_cast<double>(widest_) / inside);
  }

  Finding finding(const Alternative& all, const std::optional<Alternative>& fewer, bool wins) {
    Finding finding{.id = "mesh_uneven", .severity = Severity::warning};
    finding.evidence = fmt::format("islands or hosts hold unequal numbers of ranks ({})", sizes());
    finding.consequence =
        fmt::format("a step communicates for {} as {}{}", time(all.seconds), shape_text(all.mesh),
                    all.crosses ? ", where a shard group crosses islands" : ", inside the islands");
    if (fewer)
      finding.consequence += fmt::format("; {} as {} without {}", time(fewer->seconds),
                                         shape_text(fewer->mesh), names_of(fewer->mesh.left_out));
    finding.consequence += passed_over();
    finding.consequence += fmt::format(" (modelled{}: {})", each(), model_.rates_text());
    finding.fix =
        "give every island or host the same number of ranks, and repair lost GPUs and links";
    if (wins) finding.fix = remedy(all, *fewer);
    add_subjects(wins ? fewer->mesh.left_out : smaller(), finding);
    return finding;
  }

  // Returns the fix: which ranks to leave out, and up to which computing time of a step the job is
  // faster without them. This time solves (1 - lost) / (compute + fewer) = 1 / (compute + all),
  // where `lost` is the share of the ranks that is left out, and `fewer` and `all` are
  // communication times.
  std::string remedy(const Alternative& all, const Alternative& fewer) const {
    const double lost = 1 - share_kept(fewer);
    const double compute = ((1 - lost) * all.seconds - fewer.seconds) / lost;
    return fmt::format(
        "leave out {} ({} of {} ranks, {:.3g} %): the job is faster without them while a step "
        "computes for less than {}{}",
        names_of(fewer.mesh.left_out), fewer.mesh.left_out.size(), ranks_, lost * 100,
        time(compute), each());
  }

  // Returns the ranks of all groups that are smaller than the largest.
  std::vector<int> smaller() const {
    const std::vector<RankGroup>& units = alike(groups_.near) ? groups_.wide : groups_.near;
    const int largest = std::ranges::max(units, {}, &RankGroup::size).size();
    std::vector<int> ranks;
    for (const RankGroup& unit : units)
      if (unit.size() < largest) ranks.insert(ranks.end(), unit.ranks.begin(), unit.ranks.end());
    return ranks;
  }

  void add_subjects(const std::vector<int>& ranks, Finding& finding) const {
    for (const int rank : by_position(ranks)) {
      const int gpu = sites_.at(rank).gpu;
      finding.subjects.push_back(gpu < 0 ? fmt::format("rank {}", rank)
                                         : request_.rates.topology.gpus[at_index(gpu)].id);
    }
  }

  const MeshRequest& request_;
  const MeshSites& sites_;
  const RankGroups& groups_;
  int tensor_, ranks_, slots_;  // slots_ is ranks_ / tensor_, the number of tensor groups
  int widest_ = 1, least_ = 1;  // longest useful and shortest allowed shard axis
  double gbytes_;
  StepModel model_;
  DisplayNames names_;
};

}  // namespace

MeshPlan arrange(const RankGroups& groups, int shard, int tensor) {
  const int ranks = static_cast<int>(groups.near_of.size());
  MeshPlan mesh;
  mesh.replicate = ranks / (shard * tensor);
  mesh.shard = shard;
  mesh.tensor = tensor;
  // Rows of whole hosts are ordered by position alone, so that equal positions of hosts share a
  // rail. Rows that are part of a host follow the islands, so that rows end where islands end.
  const bool whole = alike(groups.wide) && shard % groups.wide.front().size() == 0;
  const bool by_host = tensor == 1 && (whole || shard == ranks);
  mesh.order.reserve(at_index(ranks));
  for (const RankGroup& group : by_host ? groups.wide : groups.near)
    mesh.order.insert(mesh.order.end(), group.ranks.begin(), group.ranks.end());
  return mesh;
}

MeshPlan plan_uneven(const MeshRequest& request) { return UnevenPlanner(request).plan(); }

}  // namespace atoll_v1::atoll
