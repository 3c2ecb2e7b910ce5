// Lists the information that an export to NCCL's topology file loses. The exported file is read
// again, and everything that differs from the original topology is counted by kind. Devices are
// matched by bus id or name, links by their ends.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

#include "facts.hpp"
#include "inspect/importers/nccl_tree.hpp"
#include "wording.hpp"

namespace atoll_v1::atoll::nccl {
namespace {

// Maps the id of each host to its position.
using Numbers = std::map<std::string_view, std::size_t>;

Numbers numbers_of_hosts(const Topology& topology) {
  Numbers numbers;
  for (const TopologyHost& host : topology.hosts) numbers.emplace(host.id, numbers.size());
  return numbers;
}

struct LinkSum {
  int count = 0;
  double gbyte_s = 0;
  bool has_rate = true;
  bool is_shared = false;  // true if one end is a switch that belongs to no host
};

// Adds up the links of a topology by ends and type. An end has the same name in the original and in
// the exported topology.
class LinkSums {
 public:
  LinkSums(const Topology& topology, const Numbers& hosts) : hosts_(hosts) {
    for (const TopologyGpu& gpu : topology.gpus)
      if (const auto host = hosts.find(gpu.host); host != hosts.end())
        gpus_[gpu.id] = fmt::format("{}:{}", host->second, gpu.busid.empty() ? gpu.id : gpu.busid);
    for (const TopologyLink& link : topology.links) {
      const std::string a = end(link.a, link.type), b = end(link.b, link.type);
      LinkSum& sum = sums_[fmt::format("{} {} {}", std::min(a, b), std::max(a, b), link.type)];
      sum.count += link.count;
      sum.gbyte_s += link.gbyte_s.value_or(0);
      sum.has_rate = sum.has_rate && link.gbyte_s.has_value();
      sum.is_shared = a == shared || b == shared;
    }
  }

  const std::map<std::string, LinkSum>& sums() const { return sums_; }

 private:
  static constexpr std::string_view shared = "shared switch";

  std::string end(const std::string& id, std::string_view type) const {
    if (const auto gpu = gpus_.find(id); gpu != gpus_.end()) return gpu->second;
    const auto slash = std::min(id.size(), id.rfind('/'));
    const auto host = hosts_.find(std::string_view(id).substr(0, slash));
    if (host == hosts_.end()) return std::string(shared);
    const bool is_switch = type == "nvlink" || type == "xgmi";
    return fmt::format("{}:{}", host->second, is_switch ? "switch" : id.substr(slash));
  }

  const Numbers& hosts_;
  std::map<std::string_view, std::string> gpus_;
  std::map<std::string, LinkSum> sums_;
};

constexpr std::string_view all = "all that is known";
constexpr std::string_view no_busid = "all that is known (without a bus id)";
// Every device needs a place on PCIe in the file, even if atoll does not know its real place.
constexpr std::string_view no_place =
    "the real place on PCIe (unknown to atoll; NCCL uses the place in the file)";

class Loss {
 public:
  explicit Loss(const Rereading& rereading)
      : topology_(rereading.topology),
        again_(rereading.again),
        from_document_(rereading.from_document),
        again_hosts_(numbers_of_hosts(again_)) {
    for (std::size_t i = 0; i < rereading.hosts.size(); ++i) hosts_[rereading.hosts[i]] = i;
  }

  std::vector<std::string> find() {
    compare_hosts();
    compare_gpus();
    compare_nics();
    compare_links();
    for (const auto& [kind, number] : numbers_)
      lines_.push_back(fmt::format("{} of {}", kind.first, plural(number, kind.second)));
    for (const auto& [noun, names] : facts_) {
      const std::vector<std::string> list(names.begin(), names.end());
      lines_.push_back(fmt::format("facts of {}s: {}", noun, enumerate(list)));
    }
    add_rest();
    return std::move(lines_);
  }

 private:
  void count(std::string_view what, std::string_view noun, bool is_lost) {
    if (is_lost) ++numbers_[{what, noun}];
  }

  void compare_facts(std::string_view noun, const Facts& facts, const Facts& again) {
    for (const auto& [name, value] : facts)
      if (get_fact(again, name) != value) facts_[noun].insert(name);
  }

  // Returns a map from (position of the host, name) to devices. take() sets the devices that it
  // returns to null.
  template <class Device>
  static std::map<std::pair<std::size_t, std::string>, const Device*> by_name(
      const std::vector<Device>& devices, const Numbers& hosts, std::string Device::*name) {
    std::map<std::pair<std::size_t, std::string>, const Device*> found;
    for (const Device& device : devices)
      if (const auto host = hosts.find(device.host); host != hosts.end())
        found.try_emplace({host->second, device.*name}, &device);
    return found;
  }

  template <class Device>
  const Device* take(std::map<std::pair<std::size_t, std::string>, const Device*>& devices,
                     const std::string& host, const std::string& name) const {
    const auto number = hosts_.find(host);
    if (number == hosts_.end()) return nullptr;
    const auto found = devices.find({number->second, name});
    return found == devices.end() ? nullptr : std::exchange(found->second, nullptr);
  }

  void compare_hosts() {
    for (const TopologyHost& host : topology_.hosts) {
      const auto number = hosts_.find(host.id);
      if (number == hosts_.end() || number->second >= again_.hosts.size()) continue;
      const TopologyHost& again = again_.hosts[number->second];
      count("the name", "host", !from_document_);
      count("memory and processors", "host",
            host.memory_bytes != again.memory_bytes || host.packages != again.packages ||
                host.host_cores != again.host_cores || host.host_threads != again.host_threads ||
                host.numa_nodes > again.numa_nodes);
      compare_facts("host", host.facts, again.facts);
    }
  }

  void compare_gpus() {
    auto devices = by_name(again_.gpus, again_hosts_, &TopologyGpu::busid);
    for (const TopologyGpu& gpu : topology_.gpus) {
      const TopologyGpu* again = take(devices, gpu.host, gpu.busid);
      if (again == nullptr) {
        count(gpu.busid.empty() ? no_busid : all, "GPU", true);
        continue;
      }
      count(no_place, "GPU", gpu.pci_path.empty());
      count("the UUID", "GPU", gpu.uuid != again->uuid);
      count("the model's name", "GPU", gpu.model != again->model);
      count("the number", "GPU", gpu.index >= 0 && gpu.index != again->index);
      count("the NUMA node", "GPU", gpu.numa != again->numa);
      count("the package", "GPU", gpu.package != again->package);
      count("partitions", "GPU", gpu.partitions != again->partitions);
      compare_facts("GPU", gpu.facts, again->facts);
    }
  }

  void compare_nics() {
    auto devices = by_name(again_.nics, again_hosts_, &TopologyNic::name);
    for (const TopologyNic& nic : topology_.nics) {
      const TopologyNic* again = take(devices, nic.host, nic.name);
      if (again == nullptr) {
        const bool lacks_busid = nic.busid.empty() && !nic.is_virtual;
        count(lacks_busid ? no_busid : all, nic.is_virtual ? "virtual NIC" : "NIC", true);
        continue;
      }
      count(no_place, "NIC", nic.pci_path.empty() && !nic.busid.empty());
      count("the state", "NIC", nic.state != again->state);
      count("the rate", "NIC", nic.rate_gbit_s != again->rate_gbit_s);
      count("the link layer", "NIC", nic.layer != again->layer);
      count("the adapter", "NIC", nic.adapter != again->adapter);
      count("the NUMA node", "NIC", nic.numa != again->numa);
      count("the package", "NIC", nic.package != again->package);
      compare_facts("NIC", nic.facts, again->facts);
    }
  }

  void compare_links() {
    const LinkSums before(topology_, hosts_), after(again_, again_hosts_);
    for (const auto& [key, sum] : before.sums()) {
      const auto found = after.sums().find(key);
      const bool is_lost = found == after.sums().end() || found->second.count < sum.count;
      count("the shared switch at one end", "link", is_lost && sum.is_shared);
      count(all, "link", is_lost && !sum.is_shared);
      if (is_lost || !sum.has_rate) continue;
      const double again = found->second.has_rate ? found->second.gbyte_s : 0;
      count("the rate", "link", std::abs(again - sum.gbyte_s) > 0.001 * sum.gbyte_s);
    }
    if (from_document_ || hosts_.size() < 2) return;
    const bool has_switches = std::ranges::any_of(after.sums(), [](const auto& sum) {
      return !sum.second.is_shared && sum.first.find("switch") != std::string::npos;
    });
    if (has_switches)
      lines_.push_back(
          "the information that each host has its own switches: NCCL merges all switches of a "
          "file");
  }

  void add_rest() {
    const auto add = [&](std::string_view noun, std::size_t before, std::size_t after) {
      if (before > after) lines_.push_back(plural(before - after, noun));
    };
    add("distance from another source", topology_.paths.size(), again_.paths.size());
    add("conflict between sources", topology_.conflicts.size(), again_.conflicts.size());
    const auto is_ours = [](const TopologyDocument& document) {
      return document.format == document_format;
    };
    const auto files =
        static_cast<std::size_t>(std::ranges::count_if(topology_.documents, is_ours));
    if (files > (from_document_ ? 1U : 0U))
      lines_.push_back(fmt::format("other contents of {}", plural(files, "NCCL topology file")));
  }

  const Topology& topology_;
  const Topology& again_;
  bool from_document_;
  Numbers hosts_, again_hosts_;
  std::vector<std::string> lines_;
  // Maps a kind of lost information and a kind of part to the number of parts that lose it.
  std::map<std::pair<std::string_view, std::string_view>, std::size_t> numbers_;
  // Maps a kind of part to the names of the facts that are lost.
  std::map<std::string_view, std::set<std::string>> facts_;
};

}  // namespace

std::vector<std::string> find_lost(const Rereading& rereading) { return Loss(rereading).find(); }

}  // namespace atoll_v1::atoll::nccl
