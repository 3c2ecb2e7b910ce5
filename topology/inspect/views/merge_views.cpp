// Merges several views of one host into one topology.
//
// Vocabulary: a *view* is the host as one source describes it. The *origin* of a view is the name
// of the source. A *group* is one device in all views that show the device, the most trusted view
// first. Steps:
//   1. Match the devices of the views (view_devices.cpp).
//   2. Settle each member of a group: use the value of the first view that has one. A different
//      value in a later view is a conflict, unless the value is a reading that changes by itself.
//   3. Settle the links between GPUs as a whole, because a part of a link matrix proves nothing.
//   4. Copy other links, paths, documents and conflicts, with the ids of the merged topology.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <set>

#include "atoll/tooling/load.hpp"
#include "facts.hpp"
#include "gpu_models.hpp"
#include "inspect/derived.hpp"
#include "inspect/views/views.hpp"
#include "parse_number.hpp"
#include "sources/small_file.hpp"
#include "wording.hpp"

namespace atoll_v1::atoll {
namespace {

using namespace topology_sources;

// Largest length of notes in bytes. A text in atoll's JSON form has at most 4,096 bytes.
constexpr std::size_t longest_notes = 4'000;

bool same_text(std::string_view a, std::string_view b) { return lower_case(a) == lower_case(b); }

bool same_number(double a, double b, double tolerance) {
  return std::abs(a - b) <= tolerance * std::max(std::abs(a), std::abs(b));
}

// True if two texts are the same GUID, such as "0x506b4b0300cbb4e2" and "506b:4b03:00cb:b4e2". NCCL
// prints GUIDs with their bytes in reverse order, so both orders are accepted.
bool same_guid(std::string_view a, std::string_view b) {
  const auto digits = [](std::string_view text) {
    std::string result = lower_case(text.starts_with("0x") ? text.substr(2) : text);
    std::erase_if(result, [](char c) { return c == ':' || c == '-'; });
    return result.size() < 16 ? std::string(16 - result.size(), '0') + result : result;
  };
  const std::string one = digits(a), other = digits(b);
  std::string swapped;
  for (std::size_t i = one.size(); i >= 2; i -= 2) swapped += one.substr(i - 2, 2);
  return one == other || swapped == other;
}

struct ModelWords {
  std::set<std::string> all, memory;
};

ModelWords words_of_model(std::string_view model) {
  ModelWords words;
  each_word(lower_case(model), " -_", [&](std::string_view word) {
    if (word.ends_with("gb")) words.memory.emplace(word);
    if (word != "nvidia" && word != "tesla" && word != "amd") words.all.emplace(word);
  });
  return words;
}

// True if two names can mean the same GPU model: "NVIDIA H100 80GB HBM3" matches "H100" and "H100
// SXM", but not "H100 PCIe".
bool same_model(std::string_view a, std::string_view b) {
  const ModelWords one = words_of_model(a), other = words_of_model(b);
  if (std::ranges::includes(one.all, other.all) || std::ranges::includes(other.all, one.all))
    return true;
  const bool same_memory = one.memory.empty() || other.memory.empty() || one.memory == other.memory;
  return same_memory && find_gpu_model(a) != nullptr && find_gpu_model(a) == find_gpu_model(b);
}

// True for facts that may differ between views of one host: readings that change by themselves, and
// facts about the process that made the view.
bool is_passing(std::string_view name) {
  constexpr std::array passing{fact::hwloc_version, fact::host_hash, fact::memlock_bytes,
                               fact::hidden,        fact::container, fact::net_interfaces};
  return is_momentary(name) || std::ranges::find(passing, name) != passing.end() ||
         name.starts_with(fact::source_prefix);
}

bool same_fact(std::string_view name, std::string_view a, std::string_view b) {
  if (is_passing(name) || same_text(a, b)) return true;
  if (name == fact::node_guid) return same_guid(a, b);
  const auto x = parse_number<double>(a), y = parse_number<double>(b);
  // Sizes of memory may differ by 5 %, because not every source includes the memory that the driver
  // reserves.
  return x && y && same_number(*x, *y, name == fact::memory_bytes ? 0.05 : 1e-6);
}

std::string text_of(int number) { return number < 0 ? "" : std::to_string(number); }
std::string text_of(const std::string& text) { return text; }

bool is_fast(const TopologyLink& link) { return link.type == "nvlink" || link.type == "xgmi"; }

// True when the driver reports the UUID of the NVLink fabric that the GPU has joined.
bool reports_fabric(const TopologyGpu& gpu) {
  const std::string_view cluster = get_fact(gpu.facts, fact::fabric_cluster);
  return get_fact(gpu.facts, fact::fabric_state) == "completed" &&
         cluster.find_first_not_of("0-") != std::string_view::npos;
}

using Pair = std::pair<std::string, std::string>;

class ViewMerger {
 public:
  ViewMerger(std::string_view host, const std::vector<Topology>& views,
             const std::vector<std::string>& origins)
      : host_(host), views_(views), origins_(origins) {}

  Topology merge() {
    check_views();
    devices_ = match_devices(host_, views_, origins_);
    settle_host();
    for (const auto& group : devices_.gpus) settle_gpu(group);
    for (const auto& group : devices_.nics) settle_nic(group);
    compare_devices();
    settle_links();
    join_other_links();
    join_paths();
    join_reports();
    show_hidden_switches(merged_);
    fill_link_rates(merged_);
    return std::move(merged_);
  }

 private:
  void check_views() const {
    if (views_.empty() || views_.size() != origins_.size())
      throw Error(ErrorCode::invalid_argument, fmt::format("host {}: {} views, but {} origins",
                                                           host_, views_.size(), origins_.size()));
    for (std::size_t view = 0; view < views_.size(); ++view)
      if (views_[view].hosts.size() != 1)
        throw Error(
            ErrorCode::bad_data,
            fmt::format("{}: the file describes {}, but a view of {} must describe one host",
                        origins_[view], plural(views_[view].hosts.size(), "host"), host_));
  }

  // Returns the id in the merged topology for an id in a view. The ids of a host's switches begin
  // with the old id of the host ("OLD/...", "OLD:nvswitch1"). Ids of switches that belong to no
  // host do not change.
  std::string renamed(std::size_t view, const std::string& id) const {
    const auto& ids = devices_.ids[view];
    if (const auto found = ids.find(id); found != ids.end()) return found->second;
    const std::string& old = views_[view].hosts.front().id;
    if (!id.starts_with(old)) return id;
    const std::string rest = id.substr(old.size());
    const bool is_of_host = rest.empty() || rest.starts_with('/') || rest.starts_with(":nvswitch");
    return is_of_host ? host_ + rest : id;
  }

  // The value that one view (one source's description of the host) gives for a property.
  struct Claim {
    std::size_t view = 0;
    std::string text;
  };

  void add_conflict(const std::string& subject, std::string_view member, const Claim& believed,
                    const Claim& contradiction) {
    merged_.conflicts.push_back(
        {.subject = subject,
         .member = std::string(member),
         .believed = fmt::format("{} ({})", believed.text, origins_[believed.view]),
         .contradiction =
             fmt::format("{} ({})", contradiction.text, origins_[contradiction.view])});
  }

  // Returns the device from the first view that has a value, or null when no view has a value. Each
  // different value in a later view becomes a conflict.
  template <class Device, class Text, class Same>
  const Device* settle(const DeviceGroup<Device>& group, std::string_view member, const Text& text,
                       const Same& same) {
    const Device* believed = nullptr;
    std::vector<Claim> claims;
    for (const Sight<Device>& sight : group.sights) {
      Claim claim{sight.view, std::string(text(*sight.device))};
      if (claim.text.empty()) continue;
      if (believed == nullptr) believed = sight.device;
      const bool is_known = std::ranges::any_of(
          claims, [&](const Claim& earlier) { return same(earlier.text, claim.text); });
      if (is_known) continue;
      claims.push_back(std::move(claim));
      if (claims.size() > 1) add_conflict(group.id, member, claims.front(), claims.back());
    }
    return believed;
  }

  template <class Device, class Value>
  void settle_member(const DeviceGroup<Device>& group, std::string_view name, Value Device::*member,
                     Device& device, bool (*same)(std::string_view, std::string_view) = same_text) {
    const auto text = [&](const Device& one) { return text_of(one.*member); };
    if (const Device* found = settle(group, name, text, same)) device.*member = found->*member;
  }

  template <class Device>
  void settle_facts(const DeviceGroup<Device>& group, Device& device) {
    for (const Sight<Device>& sight : group.sights)
      for (const auto& [name, value] : sight.device->facts) {
        if (name.starts_with(fact::note_prefix)) {  // each note is about one file, so all stay
          std::string& notes = device.facts[name];
          const bool is_new = notes.find(value) == std::string::npos;
          if (notes.empty())
            notes = value;
          else if (is_new && notes.size() + value.size() < longest_notes)
            notes += "; " + value;
          continue;
        }
        if (device.facts.contains(name)) continue;
        device.facts.emplace(name, value);
        settle(
            group, name, [&](const Device& one) { return get_fact(one.facts, name); },
            [&](std::string_view a, std::string_view b) { return same_fact(name, a, b); });
      }
  }

  // A view may hide parts of a host but never invents parts, so the largest count of all views is
  // used.
  void settle_host() {
    DeviceGroup<TopologyHost> group{.id = host_, .sights = {}};
    TopologyHost host;
    host.id = host.name = host_;
    for (std::size_t view = 0; view < views_.size(); ++view) {
      const TopologyHost& seen = views_[view].hosts.front();
      group.sights.push_back({view, &seen});
      for (int TopologyHost::*count : {&TopologyHost::packages, &TopologyHost::numa_nodes,
                                       &TopologyHost::host_cores, &TopologyHost::host_threads})
        host.*count = std::max(host.*count, seen.*count);
      for (int TopologyHost::*count : {&TopologyHost::cores, &TopologyHost::threads})
        if (host.*count == 0) host.*count = seen.*count;
    }
    const auto memory = [](const TopologyHost& one) {
      return one.memory_bytes == 0 ? "" : std::to_string(one.memory_bytes);
    };
    const auto same = [](std::string_view a, std::string_view b) {
      return same_fact(fact::memory_bytes, a, b);
    };
    if (const auto* found = settle(group, "memory_bytes", memory, same))
      host.memory_bytes = found->memory_bytes;
    settle_facts(group, host);
    merged_.hosts.push_back(std::move(host));
  }

  // Merges the members that GPUs and NICs have in common, and all facts of the device.
  template <class Device>
  Device settle_device(const DeviceGroup<Device>& group) {
    Device device;
    device.id = group.id;
    device.host = host_;
    settle_member(group, "busid", &Device::busid, device);
    settle_member(group, "numa", &Device::numa, device);
    settle_member(group, "package", &Device::package, device);
    for (const auto& sight : group.sights)
      if (device.pci_path.empty()) device.pci_path = sight.device->pci_path;
    settle_facts(group, device);
    return device;
  }

  void settle_gpu(const DeviceGroup<TopologyGpu>& group) {
    TopologyGpu gpu = settle_device(group);
    settle_member(group, "uuid", &TopologyGpu::uuid, gpu);
    settle_member(group, "model", &TopologyGpu::model, gpu, same_model);
    settle_member(group, "index", &TopologyGpu::index, gpu);
    for (const auto& sight : group.sights)
      if (gpu.partitions.empty()) gpu.partitions = sight.device->partitions;
    if (!indices_.insert(gpu.index).second) gpu.index = -1;
    merged_.gpus.push_back(std::move(gpu));
  }

  void settle_nic(const DeviceGroup<TopologyNic>& group) {
    TopologyNic nic = settle_device(group);
    settle_member(group, "name", &TopologyNic::name, nic);
    settle_member(group, "adapter", &TopologyNic::adapter, nic, same_guid);
    settle_member(group, "layer", &TopologyNic::layer, nic);
    settle_member(group, "state", &TopologyNic::state, nic);
    const auto rate = [](const TopologyNic& one) {
      return one.rate_gbit_s ? fmt::format("{}", *one.rate_gbit_s) : "";
    };
    const auto same = [](std::string_view a, std::string_view b) { return same_fact("", a, b); };
    if (const TopologyNic* found = settle(group, "rate_gbit_s", rate, same)) {
      nic.rate_gbit_s = found->rate_gbit_s;
      nic.evidence = found->evidence;
    }
    for (const auto& sight : group.sights)
      nic.is_virtual = nic.is_virtual || sight.device->is_virtual;
    merged_.nics.push_back(std::move(nic));
  }

  // Adds a conflict if views have different numbers of GPUs. Also adds a conflict if a view only
  // numbers its NICs (`nvidia-smi topo -m` without a legend) and another view names them, because
  // these NICs cannot be matched.
  void compare_devices() {
    std::optional<std::size_t> first;
    for (std::size_t view = 0; view < views_.size(); ++view) {
      const std::size_t count = views_[view].gpus.size();
      if (count == 0) continue;
      if (!first) first = view;
      const std::size_t believed = views_[*first].gpus.size();
      if (count != believed)
        add_conflict(host_, "gpus", {*first, plural(believed, "GPU")},
                     {view, plural(count, "GPU")});
    }
    std::vector<std::string> named, numbered;
    std::size_t view_of_named = 0, view_of_numbered = 0;
    for (std::size_t i = 0; i < merged_.nics.size(); ++i) {
      const std::string& name = merged_.nics[i].name;
      const bool is_number = name.starts_with("NIC") && name.size() > 3 &&
                             name.find_first_not_of("0123456789", 3) == std::string::npos;
      std::vector<std::string>& names = is_number ? numbered : named;
      if (names.empty())
        (is_number ? view_of_numbered : view_of_named) = devices_.nics[i].sights.front().view;
      names.push_back(name);
    }
    if (!named.empty() && !numbered.empty())
      add_conflict(host_, "nics", {view_of_named, enumerate(named)},
                   {view_of_numbered, enumerate(numbered) + " without their names"});
  }

  LinkView links_of(std::size_t view) const {
    LinkView result{.view = view, .gpus = {}, .links = {}};
    for (const TopologyGpu& gpu : views_[view].gpus) result.gpus.insert(renamed(view, gpu.id));
    for (const TopologyLink& link : views_[view].links) {
      if (!is_fast(link)) continue;
      result.links.push_back(link);
      result.links.back().a = renamed(view, link.a);
      result.links.back().b = renamed(view, link.b);
    }
    return result;
  }

  // Uses the links of the first view that shows links or proves that there are none. Later views
  // add only the links of GPUs that earlier views do not show.
  void settle_links() {
    std::vector<LinkView> telling;
    for (std::size_t view = 0; view < views_.size(); ++view) {
      LinkView links = links_of(view);
      const bool tells = views_[view].hosts.front().gpu_links != IslandState::unknown;
      if (!links.gpus.empty() && (tells || !links.links.empty()))
        telling.push_back(std::move(links));
    }
    if (telling.empty()) return;
    const LinkView* believed = &telling.front();
    for (const LinkView& later : telling) {
      std::set<std::string> both;
      std::ranges::set_intersection(telling.front().gpus, later.gpus,
                                    std::inserter(both, both.end()));
      if (!same_links(telling.front(), later, both))
        add_conflict(host_, "links", {telling.front().view, link_summary(telling.front(), both)},
                     {later.view, link_summary(later, both)});
      else if (!has_rates(*believed) && has_rates(later) && later.gpus == telling.front().gpus)
        believed = &later;
    }
    merged_.links = believed->links;
    std::set<std::string> covered = believed->gpus;
    for (const LinkView& later : telling) {
      for (const TopologyLink& link : later.links) {
        const auto is_new = [&](const std::string& end) {
          return later.gpus.contains(end) && !covered.contains(end);
        };
        if (is_new(link.a) || is_new(link.b)) merged_.links.push_back(link);
      }
      covered.insert(later.gpus.begin(), later.gpus.end());
    }
    merged_.hosts.front().gpu_links =
        merged_.links.empty() ? IslandState::none : IslandState::known;
    check_covered(*believed, covered);
  }

  // Marks all links of the host as unknown if no view shows the links of some GPU. Otherwise this
  // GPU would seem to have no links.
  void check_covered(const LinkView& believed, const std::set<std::string>& covered) {
    std::vector<std::string> silent;
    std::size_t view = 0;
    for (std::size_t i = 0; i < merged_.gpus.size(); ++i) {
      const TopologyGpu& gpu = merged_.gpus[i];
      const GpuModel* model = find_gpu_model(gpu);
      const bool proves_none = model != nullptr && model->kind == LinkKind::never;
      if (covered.contains(gpu.id) || proves_none || reports_fabric(gpu)) continue;
      if (silent.empty()) view = devices_.gpus[i].sights.front().view;
      silent.push_back(gpu.id);
    }
    if (silent.empty()) return;
    add_conflict(host_, "links", {view, fmt::format("unknown for {}", enumerate(silent))},
                 {believed.view, link_summary(believed, believed.gpus)});
    merged_.links.clear();
    merged_.hosts.front().gpu_links = IslandState::unknown;
  }

  // Copies links that do not form islands. The links of each pair of ends come from the first view
  // that has links of this type between them.
  void join_other_links() {
    std::map<std::pair<Pair, std::string>, std::size_t> first;
    for (std::size_t view = 0; view < views_.size(); ++view)
      for (TopologyLink link : views_[view].links) {
        if (is_fast(link)) continue;
        link.a = renamed(view, link.a);
        link.b = renamed(view, link.b);
        const auto at = first.try_emplace({std::minmax(link.a, link.b), link.type}, view).first;
        if (at->second == view) merged_.links.push_back(std::move(link));
      }
  }

  // Copies paths from the first view that has them. If the path matrices of two views
  // disagree, they do so in many cells, so at most one conflict is reported for each view.
  void join_paths() {
    std::map<Pair, std::pair<std::size_t, PathLevel>> stated;
    for (std::size_t view = 0; view < views_.size(); ++view) {
      std::vector<std::pair<Claim, Claim>> different;
      for (TopologyPath path : views_[view].paths) {
        path.a = renamed(view, path.a);
        path.b = renamed(view, path.b);
        const auto [at, is_new] = stated.try_emplace(std::minmax(path.a, path.b), view, path.level);
        if (!is_new && at->second.second != path.level)
          different.push_back({{at->second.first, fmt::format("{} - {}: {}", path.a, path.b,
                                                              name(at->second.second))},
                               {view, std::string(name(path.level))}});
        if (is_new) merged_.paths.push_back(std::move(path));
      }
      if (different.empty()) continue;
      auto& [believed, contradiction] = different.front();
      if (different.size() > 1)
        contradiction.text += fmt::format("; {}", plural(different.size() - 1, "more pair"));
      add_conflict(host_, "paths", believed, contradiction);
    }
  }

  void join_reports() {
    for (std::size_t view = 0; view < views_.size(); ++view) {
      for (TopologyDocument document : views_[view].documents) {
        for (std::string& host : document.hosts) host = renamed(view, host);
        merged_.documents.push_back(std::move(document));
      }
      for (TopologyConflict conflict : views_[view].conflicts) {
        const std::size_t between = conflict.subject.find(" - ");
        const std::string first = renamed(view, conflict.subject.substr(0, between));
        conflict.subject = between == std::string::npos
                               ? first
                               : fmt::format("{} - {}", first,
                                             renamed(view, conflict.subject.substr(between + 3)));
        merged_.conflicts.push_back(std::move(conflict));
      }
    }
  }

  std::string host_;
  const std::vector<Topology>& views_;
  const std::vector<std::string>& origins_;
  MatchedDevices devices_;
  std::set<int> indices_;
  Topology merged_;
};

}  // namespace

Topology merge_views(std::string_view host_name, const std::vector<Topology>& views,
                     const std::vector<std::string>& origins) {
  return ViewMerger(host_name, views, origins).merge();
}

}  // namespace atoll_v1::atoll
