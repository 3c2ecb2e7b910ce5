#include "verbs/contact.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <sstream>

#include "sdk/guard.hpp"

namespace atoll_verbs_backend {
namespace {

constexpr int version = 2;
constexpr std::size_t most_queue_pairs = 4;
constexpr std::size_t largest_ring = 1 << 24;
constexpr std::size_t longest_port = IBV_SYSFS_NAME_MAX + 4;  // ":255"

}  // namespace

Target Contact::target() const {
  Target target{mailbox, {}, ring_bytes};
  for (std::size_t rail = 0; rail < rails.size(); ++rail) target.keys[rail] = rails[rail].key;
  return target;
}

std::string encode(const Contact& contact) {
  std::string text = fmt::format("{} {:x} {:x} {:x} {}", version, contact.first_packet,
                                 contact.mailbox, contact.ring_bytes, contact.rails.size());
  for (const auto& rail : contact.rails) {
    text += fmt::format(" {} {:02x} {:x} {:x} {:x} {} {:x}", rail.port, fmt::join(rail.gid.raw, ""),
                        rail.lid, rail.mtu, rail.key, rail.queue_pairs.size(),
                        fmt::join(rail.queue_pairs, " "));
  }
  return text;
}

Contact decode(const std::string& text) {
  std::istringstream in(text);
  Contact contact;
  int found_version = 0;
  std::size_t rails = 0;
  in >> found_version >> std::hex >> contact.first_packet >> contact.mailbox >>
      contact.ring_bytes >> std::dec >> rails;
  bool is_good = in && found_version == version && rails >= 1 && rails <= most_rails &&
                 contact.ring_bytes >= 1024 && contact.ring_bytes <= largest_ring;
  for (std::size_t i = 0; is_good && i < rails; ++i) {
    auto& rail = contact.rails.emplace_back();
    std::string gid;
    std::size_t count = 0;
    in >> rail.port >> gid >> std::hex >> rail.lid >> rail.mtu >> rail.key >> std::dec >> count >>
        std::hex;
    is_good = in && rail.port.size() <= longest_port && gid.size() == 2 * sizeof(rail.gid.raw) &&
              count >= 1 && count <= most_queue_pairs && rail.mtu >= IBV_MTU_256 &&
              rail.mtu <= IBV_MTU_4096 &&
              gid.find_first_not_of("0123456789abcdef") == std::string::npos;
    for (std::size_t byte = 0; is_good && byte < sizeof(rail.gid.raw); ++byte) {
      rail.gid.raw[byte] =
          static_cast<std::uint8_t>(std::stoi(gid.substr(2 * byte, 2), nullptr, 16));
    }
    rail.queue_pairs.resize(is_good ? count : 0);
    for (auto& number : rail.queue_pairs) in >> number;
    in >> std::dec;
    is_good = is_good && !in.fail();
  }
  // Streams accept signs, prefixes and spaces that encode() does not write.
  if (!is_good || encode(contact) != text) {
    throw atoll_sdk::Error(
        ATOLL_BAD_DATA,
        fmt::format("it published an invalid RDMA address '{}' in the store", text.substr(0, 200)));
  }
  return contact;
}

std::vector<std::optional<std::size_t>> pair_rails(std::span<const std::string> own,
                                                   std::span<const Contact::Rail> peer) {
  std::vector<std::optional<std::size_t>> pairs(own.size());
  std::vector<bool> is_taken(peer.size());
  bool has_pair = false;
  for (std::size_t i = 0; i < own.size(); ++i) {
    for (std::size_t k = 0; k < peer.size() && !pairs[i]; ++k) {
      if (is_taken[k] || peer[k].port != own[i]) continue;
      pairs[i] = k;
      is_taken[k] = has_pair = true;
    }
  }
  for (std::size_t i = 0; !has_pair && i < std::min(own.size(), peer.size()); ++i) pairs[i] = i;
  return pairs;
}

}  // namespace atoll_verbs_backend
