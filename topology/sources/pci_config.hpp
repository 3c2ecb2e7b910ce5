// The configuration space of a PCI device: what its capabilities are set to.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>

namespace atoll_v1::atoll::topology_sources {

// What is not known, because it could not be read or makes no sense, is empty.
struct PciSettings {
  std::optional<unsigned> max_read_request;  // bytes
  std::optional<bool> relaxed_ordering;      // the device may ask for it
  std::optional<bool> ats;                   // address translation services are on
  std::optional<bool> acs_redirects;         // traffic between devices goes by the root complex
  bool is_cut = false;                       // the kernel shows the rest to root only
};

// Reads bytes at an offset and returns how many there were.
using ReadConfig = std::function<std::size_t(std::size_t offset, std::span<char> bytes)>;

// `size` is what the space claims to have. Asks for little: on hardware every four bytes are a
// request on the bus. Any bytes are safe.
PciSettings read_pci_settings(const ReadConfig& read, std::uintmax_t size);

}  // namespace atoll_v1::atoll::topology_sources
