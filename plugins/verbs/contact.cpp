#include "verbs/contact.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <sstream>

#include "sdk/backend.hpp"

namespace atoll_verbs_backend {
namespace {

constexpr int version = 4;
constexpr std::size_t most_queue_pairs = 4;
constexpr std::size_t largest_ring = 1 << 24;
constexpr std::size_t longest_port = IBV_SYSFS_NAME_MAX + 4;  // a device name and at most ":255"
constexpr int last_fabric = static_cast<int>(Fabric::roce_v2);

using Pairs = std::vector<std::optional<std::size_t>>;

// Connects the ports for which `key` is the same text: the first of one rank with the first of the
// other, and so on, so that both ranks get the same pairs.
template <class Key>
Pairs pair_by(const Key& key, std::span<const Contact::Rail> own,
              std::span<const Contact::Rail> peer) {
  Pairs pairs(own.size());
  std::vector<bool> is_taken(peer.size());
  for (std::size_t i = 0; i < own.size(); ++i) {
    for (std::size_t k = 0; k < peer.size() && !pairs[i]; ++k) {
      if (is_taken[k] || key(peer[k]) != key(own[i])) continue;
      pairs[i] = k;
      is_taken[k] = true;
    }
  }
  return pairs;
}

std::string list_of(std::span<const Contact::Rail> rails) {
  std::vector<std::string> texts;
  for (const auto& rail : rails) {
    texts.push_back(fmt::format("{} ({})", rail.port, text_of(rail.address)));
  }
  return fmt::format("{}", fmt::join(texts, ", "));
}

}  // namespace

Target Contact::target() const {
  Target target{mailbox, {}, ring_bytes, credits};
  for (std::size_t rail = 0; rail < rails.size(); ++rail) target.keys[rail] = rails[rail].key;
  return target;
}

std::string encode(const Contact& contact) {
  std::string text =
      fmt::format("{} {:x} {:x} {:x} {:x} {}", version, contact.first_packet, contact.mailbox,
                  contact.ring_bytes, contact.credits, contact.rails.size());
  for (const auto& rail : contact.rails) {
    text += fmt::format(" {} {} {:02x} {} {:x} {:x} {:x} {:x} {} {:x}", rail.port,
                        static_cast<int>(rail.address.fabric), fmt::join(rail.address.gid.raw, ""),
                        rail.address.subnet_bits, rail.lid, rail.partition, rail.mtu, rail.key,
                        rail.queue_pairs.size(), fmt::join(rail.queue_pairs, " "));
  }
  return text;
}

Contact decode(const std::string& text) {
  std::istringstream in(text);
  Contact contact;
  int found_version = 0;
  std::size_t rails = 0;
  in >> found_version >> std::hex >> contact.first_packet >> contact.mailbox >>
      contact.ring_bytes >> contact.credits >> std::dec >> rails;
  bool is_good = in && found_version == version && rails >= 1 && rails <= most_rails &&
                 contact.ring_bytes >= 1024 && contact.ring_bytes <= largest_ring &&
                 contact.credits >= 1 && contact.credits <= most_credits;
  for (std::size_t i = 0; is_good && i < rails; ++i) {
    auto& rail = contact.rails.emplace_back();
    std::string gid;
    int fabric = 0;
    std::size_t count = 0;
    auto& address = rail.address;
    in >> rail.port >> fabric >> gid >> address.subnet_bits >> std::hex >> rail.lid >>
        rail.partition >> rail.mtu >> rail.key >> std::dec >> count >> std::hex;
    is_good = in && rail.port.size() <= longest_port && gid.size() == 2 * sizeof(address.gid.raw) &&
              count >= 1 && count <= most_queue_pairs && rail.mtu >= IBV_MTU_256 &&
              rail.mtu <= IBV_MTU_4096 &&
              gid.find_first_not_of("0123456789abcdef") == std::string::npos && fabric >= 0 &&
              fabric <= last_fabric && address.subnet_bits >= 0 && address.subnet_bits <= 128;
    if (is_good) address.fabric = static_cast<Fabric>(fabric);
    for (std::size_t byte = 0; is_good && byte < sizeof(address.gid.raw); ++byte) {
      address.gid.raw[byte] =
          static_cast<std::uint8_t>(std::stoi(gid.substr(2 * byte, 2), nullptr, 16));
    }
    rail.queue_pairs.resize(is_good ? count : 0);
    for (auto& number : rail.queue_pairs) in >> number;
    in >> std::dec;
    is_good = is_good && !in.fail();
  }
  // C++ streams accept signs and spaces that encode() does not write, so the texts are compared.
  if (!is_good || encode(contact) != text) {
    throw atoll_sdk::Error(
        ATOLL_BAD_DATA,
        fmt::format("it published an invalid RDMA address '{}' in the store", text.substr(0, 200)));
  }
  return contact;
}

Pairs pair_rails(std::span<const Contact::Rail> own, std::span<const Contact::Rail> peer) {
  const auto has_pair = [](const Pairs& pairs) {
    return std::ranges::any_of(pairs, [](const auto& pair) { return pair.has_value(); });
  };
  using Rail = Contact::Rail;
  const auto name = [](const Rail& rail) { return rail.port + " " + reach_of(rail.address); };
  const auto subnet = [](const Rail& rail) { return subnet_of(rail.address); };
  const auto reach = [](const Rail& rail) { return reach_of(rail.address); };
  if (auto pairs = pair_by(name, own, peer); has_pair(pairs)) return pairs;
  if (auto pairs = pair_by(subnet, own, peer); has_pair(pairs)) return pairs;
  if (auto pairs = pair_by(reach, own, peer); has_pair(pairs)) return pairs;
  throw atoll_sdk::Error(
      ATOLL_MISMATCH,
      fmt::format("no port of this rank can reach a port of that rank. This rank uses {}; that "
                  "rank uses {}: choose ports of one network for both with devices= in ATOLL_RDMA, "
                  "and GIDs of one kind with gid=",
                  list_of(own), list_of(peer)));
}

}  // namespace atoll_verbs_backend
