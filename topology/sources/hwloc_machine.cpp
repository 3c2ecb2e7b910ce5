#include "sources/hwloc_machine.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "atoll/error.hpp"

namespace atoll_v1::atoll::topology_sources {

std::string_view HwlocOsDevice::info(std::string_view key) const {
  const auto found = std::ranges::find(infos, key, &std::pair<std::string, std::string>::first);
  return found == infos.end() ? std::string_view() : std::string_view(found->second);
}

std::vector<unsigned> hex_numbers(std::string_view text,
                                  std::initializer_list<std::string_view> separators) {
  std::vector<unsigned> numbers;
  for (const std::string_view separator : separators) {
    unsigned value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, 16);
    if (error != std::errc()) return {};
    text.remove_prefix(static_cast<std::size_t>(end - text.data()));
    if (!text.starts_with(separator)) return {};
    text.remove_prefix(separator.size());
    numbers.push_back(value);
  }
  return numbers;
}

std::string busid(const HwlocPciDevice& device) {
  return fmt::format("{:08x}:{:02x}:{:02x}.{:x}", device.domain, device.bus, device.slot,
                     device.function);
}

bool parse_busid(std::string_view text, HwlocPciDevice& device) {
  const auto numbers = hex_numbers(text, {":", ":", ".", ""});
  if (numbers.empty() || numbers[1] > 0xff || numbers[2] > 0x1f || numbers[3] > 7) return false;
  device.domain = numbers[0];
  device.bus = numbers[1];
  device.slot = numbers[2];
  device.function = numbers[3];
  return true;
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
