// Settings of a PCI device, read from its configuration space.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>

namespace atoll_v1::atoll::topology_sources {

// A member is empty when it could not be read or its value is invalid.
struct PciSettings {
  std::optional<unsigned> max_read_request;  // maximum read request in bytes
  std::optional<bool> relaxed_ordering;      // true if the device may use relaxed ordering
  std::optional<bool> ats;                   // true if address translation services are enabled
  std::optional<bool> acs_redirects;         // true if peer traffic is sent up to the root complex
  bool is_cut = false;  // true if some bytes are missing because only root may read them
};

// Reads bytes at an offset and returns how many it read.
using ReadConfig = std::function<std::size_t(std::size_t offset, std::span<char> bytes)>;

// `size` is the size of the configuration space. Reads as few bytes as possible, because on
// hardware every four bytes are a request on the bus. Safe for any content.
PciSettings read_pci_settings(const ReadConfig& read, std::uintmax_t size);

}  // namespace atoll_v1::atoll::topology_sources
