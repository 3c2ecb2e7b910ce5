#include "facts.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>

namespace atoll_v1::atoll {

std::optional<double> number_fact(const Facts& facts, std::string_view name) {
  const std::string_view text = get_fact(facts, name);
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || error != std::errc() || end != text.data() + text.size() ||
      !std::isfinite(value))
    return std::nullopt;
  return value;
}

bool is_momentary(std::string_view name) noexcept {
  constexpr std::array names{fact::pci_gt_s,      fact::pci_gbyte_s, fact::pci_replays,
                             fact::nvlink_errors, fact::throttle,    fact::errors};
  return std::ranges::find(names, name) != names.end();
}

}  // namespace atoll_v1::atoll
