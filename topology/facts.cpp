#include "facts.hpp"

#include <algorithm>
#include <array>
#include <cmath>

#include "parse_number.hpp"

namespace atoll_v1::atoll {

std::optional<double> number_fact(const Facts& facts, std::string_view name) {
  const auto value = parse_number<double>(get_fact(facts, name));
  return value && std::isfinite(*value) ? value : std::nullopt;
}

std::map<int, std::string_view> packages_of(const TopologyHost& host) {
  std::map<int, std::string_view> packages;
  for (auto at = host.facts.lower_bound(fact::package_prefix);
       at != host.facts.end() && at->first.starts_with(fact::package_prefix); ++at)
    if (const auto number =
            parse_number<int>(std::string_view(at->first).substr(fact::package_prefix.size())))
      packages.emplace(*number, at->second);
  return packages;
}

bool is_momentary(std::string_view name) noexcept {
  constexpr std::array names{fact::pci_gt_s,      fact::pci_gbyte_s, fact::pci_replays,
                             fact::nvlink_errors, fact::throttle,    fact::errors,
                             fact::congestion,    fact::shm_left};
  return std::ranges::find(names, name) != names.end();
}

}  // namespace atoll_v1::atoll
