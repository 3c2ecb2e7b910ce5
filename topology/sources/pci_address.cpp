#include "sources/pci_address.hpp"

#include <fmt/format.h>

#include <charconv>

namespace atoll_v1::atoll::topology_sources {
namespace {

// Takes hexadecimal digits and what ends them off the front; false when they are not there.
bool take(std::string_view& text, std::string_view end_mark, unsigned& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, 16);
  if (error != std::errc()) return false;
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  if (!text.starts_with(end_mark)) return false;
  text.remove_prefix(end_mark.size());
  return true;
}

struct Address {
  unsigned domain = 0, bus = 0, device = 0, function = 0;
};

bool parse(std::string_view text, Address& at) {
  return take(text, ":", at.domain) && take(text, ":", at.bus) && take(text, ".", at.device) &&
         take(text, "", at.function) && text.empty() && at.bus <= 0xff && at.device <= 0x1f &&
         at.function <= 7;
}

}  // namespace

std::string normal_busid(std::string_view text) {
  Address at;
  if (!parse(text, at)) return "";
  return fmt::format("{:08x}:{:02x}:{:02x}.{:x}", at.domain, at.bus, at.device, at.function);
}

std::filesystem::path pci_folder(const std::filesystem::path& sysfs, std::string_view busid) {
  Address at;
  if (!parse(busid, at)) return {};
  return sysfs / "bus/pci/devices" /
         fmt::format("{:04x}:{:02x}:{:02x}.{:x}", at.domain, at.bus, at.device, at.function);
}

}  // namespace atoll_v1::atoll::topology_sources
