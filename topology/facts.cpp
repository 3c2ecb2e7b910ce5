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

bool is_momentary(std::string_view name) noexcept {
  constexpr std::array names{fact::pci_gt_s,      fact::pci_gbyte_s, fact::pci_replays,
                             fact::nvlink_errors, fact::throttle,    fact::errors,
                             fact::congestion,    fact::shm_left};
  return std::ranges::find(names, name) != names.end();
}

}  // namespace atoll_v1::atoll
