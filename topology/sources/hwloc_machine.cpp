#include "sources/hwloc_machine.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "atoll/error.hpp"

namespace atoll_v1::atoll::topology_sources {

std::string_view HwlocOsDevice::info(std::string_view key) const {
  const auto found = std::ranges::find(infos, key, &std::pair<std::string, std::string>::first);
  return found == infos.end() ? std::string_view() : std::string_view(found->second);
}

std::string root_path(unsigned domain, unsigned bus) {
  return fmt::format("pci{:04x}:{:02x}", domain, bus);
}

void fail(const HwlocMachine& machine, std::ptrdiff_t offset, std::string_view what) {
  throw Error(ErrorCode::bad_data,
              offset < 0 ? fmt::format("{}: {}", machine.origin, what)
                         : fmt::format("{}: byte {}: {}", machine.origin, offset, what));
}

}  // namespace atoll_v1::atoll::topology_sources
