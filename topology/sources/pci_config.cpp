// Reads capabilities in PCI configuration space. Layouts: PCI Local Bus Specification 3.0, chapter
// 6, for the first 256 bytes and their list of capabilities; PCI Express Base Specification,
// chapter 7, for the extended list after them and for the registers. Linux lists names and numbers
// in include/uapi/linux/pci_regs.h.
#include "sources/pci_config.hpp"

#include <array>
#include <cstddef>

namespace atoll_v1::atoll::topology_sources {
namespace {

constexpr std::size_t header_size = 64, conventional_size = 256, extended_size = 4096;

constexpr std::size_t vendor_at = 0x00, status_at = 0x06, header_type_at = 0x0e, first_at = 0x34;
constexpr unsigned status_has_capabilities = 0x10;
constexpr unsigned capability_express = 0x10;
constexpr unsigned capability_acs = 0x0d, capability_ats = 0x0f;  // ids of PCI capabilities

// Offset of the device control register in the PCI Express capability.
constexpr std::size_t device_control_at = 8;
constexpr unsigned control_relaxed_ordering = 1U << 4;
constexpr unsigned control_read_request_shift = 12;

constexpr std::size_t acs_control_at = 6, ats_control_at = 6;
// ACS control bits for request redirect, completion redirect and upstream forwarding.
constexpr unsigned acs_redirecting = (1U << 2) | (1U << 3) | (1U << 4);
constexpr unsigned ats_enabled = 1U << 15;

unsigned little_endian(std::span<const char> bytes) {
  unsigned value = 0;
  for (std::size_t i = bytes.size(); i-- > 0;)
    value = value << 8 | static_cast<unsigned char>(bytes[i]);
  return value;
}

// Reads the first 256 bytes at once, and later bytes on demand.
class Config {
 public:
  explicit Config(const ReadConfig& read) : read_(read), conventional_(read(0, start_)) {}

  bool has_conventional() const { return conventional_ >= conventional_size; }
  unsigned byte(std::size_t at) const { return little_endian(std::span(start_).subspan(at, 1)); }
  unsigned word(std::size_t at) const { return little_endian(std::span(start_).subspan(at, 2)); }
  // Reads up to four bytes of the extended configuration space; empty where nothing can be read.
  std::optional<unsigned> extended(std::size_t at, std::size_t bytes) const {
    std::array<char, 4> buffer{};
    const std::span<char> wanted = std::span(buffer).first(bytes);
    if (at + bytes > extended_size || read_(at, wanted) < bytes) return std::nullopt;
    return little_endian(wanted);
  }

 private:
  const ReadConfig& read_;
  std::array<char, conventional_size> start_{};
  std::size_t conventional_;
};

// Returns the offset of a capability; 0 when it is absent, empty when the list is damaged. Lists of
// damaged devices may point anywhere or in circles, so this and find_extended() limit the steps.
std::optional<std::size_t> find_capability(const Config& config, unsigned id) {
  constexpr int most = (conventional_size - header_size) / 4;
  if ((config.word(status_at) & status_has_capabilities) == 0) return 0;
  // Only normal devices and PCI bridges: CardBus bridges keep the list at another offset.
  if ((config.byte(header_type_at) & 0x7fU) > 1) return 0;
  std::size_t at = config.byte(first_at) & 0xfcU;
  for (int i = 0; i < most; ++i) {
    if (at == 0) return 0;
    if (at < header_size) return std::nullopt;
    if (config.byte(at) == id) return at;
    at = config.byte(at + 1) & 0xfcU;
  }
  return std::nullopt;
}

std::optional<std::size_t> find_extended(const Config& config, unsigned id) {
  constexpr int most = (extended_size - conventional_size) / 4;
  std::size_t at = conventional_size;
  for (int i = 0; i < most; ++i) {
    const auto header = config.extended(at, 4);
    if (!header) return std::nullopt;
    if (i == 0 && (*header == 0 || *header == 0xffffffffU)) return 0;
    if ((*header & 0xffffU) == id) return at;
    at = (*header >> 20) & 0xffcU;
    if (at == 0) return 0;
    if (at < conventional_size) return std::nullopt;
  }
  return std::nullopt;
}

// Returns whether any of `bits` is set in the control word of an extended capability.
std::optional<bool> extended_bits(const Config& config, unsigned id, std::size_t control,
                                  unsigned bits) {
  const auto at = find_extended(config, id);
  if (!at) return std::nullopt;
  if (*at == 0) return false;
  const auto word = config.extended(*at + control, 2);
  return word ? std::optional((*word & bits) != 0) : std::nullopt;
}

void read_device_control(const Config& config, PciSettings& settings) {
  const std::size_t express = find_capability(config, capability_express).value_or(0);
  if (express == 0 || express + device_control_at + 2 > conventional_size) return;
  const unsigned control = config.word(express + device_control_at);
  const unsigned read_request = (control >> control_read_request_shift) & 7U;
  if (read_request <= 5) settings.max_read_request = 128U << read_request;
  settings.relaxed_ordering = (control & control_relaxed_ordering) != 0;
}

}  // namespace

PciSettings read_pci_settings(const ReadConfig& read, std::uintmax_t size) {
  const Config config(read);
  PciSettings settings;
  const bool has_extended = size > conventional_size;
  // Without privileges the kernel shows only the first 64 bytes, the header.
  settings.is_cut = !config.has_conventional() ||
                    (has_extended && !config.extended(conventional_size, 4).has_value());
  if (!config.has_conventional() || config.word(vendor_at) == 0xffffU) return settings;
  read_device_control(config, settings);
  if (settings.is_cut) return settings;
  // A device with 256 bytes of configuration space has no extended capabilities.
  settings.acs_redirects =
      has_extended ? extended_bits(config, capability_acs, acs_control_at, acs_redirecting) : false;
  settings.ats =
      has_extended ? extended_bits(config, capability_ats, ats_control_at, ats_enabled) : false;
  return settings;
}

}  // namespace atoll_v1::atoll::topology_sources
