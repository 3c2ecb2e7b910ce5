// Parsing and formatting of PCI addresses ("bus ids") in the forms of the kernel, NVML and atoll.
#pragma once

#include <filesystem>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

namespace atoll_v1::atoll::topology_sources {

// Vendor ids of PCI, as the PCI-SIG assigns them.
inline constexpr unsigned vendor_amazon = 0x1d0f, vendor_cray = 0x17db, vendor_intel = 0x8086;

struct PciAddress {
  unsigned domain = 0, bus = 0, slot = 0, function = 0;
};

// Returns the hexadecimal numbers of a text, each of which is followed by its separator: 0, 0x17
// and 0x1a for "0000:[17-1a]" and the separators {":[", "-", "]"}. Empty when the text does not
// begin in this form.
std::vector<unsigned> hex_numbers(std::string_view text,
                                  std::initializer_list<std::string_view> separators);

// Reads "0000:1b:00.0" or "00000000:1B:00.0". Returns false and leaves `at` unchanged when the text
// is not a bus id.
bool parse_busid(std::string_view text, PciAddress& at);
// Formats an address like TopologyGpu::busid: "00000000:1b:00.0".
std::string busid(const PciAddress& at);

// Normalizes a bus id: "0000:1B:00.0" -> "00000000:1b:00.0"; "" when the text is not a bus id.
std::string normal_busid(std::string_view text);

// The device's folder in sysfs; empty when `busid` is not a bus id.
std::filesystem::path pci_folder(const std::filesystem::path& sysfs, std::string_view busid);

}  // namespace atoll_v1::atoll::topology_sources
