#include "sources/pci_address.hpp"

#include <fmt/format.h>

#include "parse_number.hpp"

namespace atoll_v1::atoll::topology_sources {

std::vector<unsigned> hex_numbers(std::string_view text,
                                  std::initializer_list<std::string_view> separators) {
  std::vector<unsigned> numbers;
  for (const std::string_view separator : separators) {
    const auto value = take_number<unsigned>(text, 16);
    if (!value || !text.starts_with(separator)) return {};
    text.remove_prefix(separator.size());
    numbers.push_back(*value);
  }
  return numbers;
}

bool parse_busid(std::string_view text, PciAddress& at) {
  constexpr std::string_view digits = "0123456789abcdefABCDEF";
  const auto numbers = hex_numbers(text, {":", ":", ".", ""});
  const auto dot = text.find('.');
  if (numbers.empty() || numbers[1] > 0xff || numbers[2] > 0x1f || numbers[3] > 7 ||
      text.find_first_not_of(digits, dot + 1) != std::string_view::npos)
    return false;
  at = {numbers[0], numbers[1], numbers[2], numbers[3]};
  return true;
}

std::string busid(const PciAddress& at) {
  return fmt::format("{:08x}:{:02x}:{:02x}.{:x}", at.domain, at.bus, at.slot, at.function);
}

std::string normal_busid(std::string_view text) {
  PciAddress at;
  return parse_busid(text, at) ? busid(at) : "";
}

std::filesystem::path pci_folder(const std::filesystem::path& sysfs, std::string_view busid) {
  PciAddress at;
  if (!parse_busid(busid, at)) return {};
  return sysfs / "bus/pci/devices" /
         fmt::format("{:04x}:{:02x}:{:02x}.{:x}", at.domain, at.bus, at.slot, at.function);
}

}  // namespace atoll_v1::atoll::topology_sources
