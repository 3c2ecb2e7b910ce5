#include "verbs/address.hpp"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <ifaddrs.h>
#include <netinet/in.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string_view>

namespace atoll_verbs_backend {
namespace {

constexpr int gid_bits = 128;
constexpr int mapped_bits = 96;  // length in bits of the prefix of a GID with an IPv4 address
constexpr int usual_bits = 64;

std::string_view name_of(Fabric fabric) {
  switch (fabric) {
    case Fabric::infiniband:
      return "InfiniBand";
    case Fabric::roce_v1:
      return "RoCE v1";
    case Fabric::roce_v2:
      return "RoCE v2";
  }
  return "";
}

bool is_link_local(const ibv_gid& gid) { return gid.raw[0] == 0xfe && gid.raw[1] >> 6 == 2; }

std::string text_of(Fabric fabric, const ibv_gid& gid, int bits) {
  const bool is_ipv4 = is_mapped_ipv4(gid) && bits >= mapped_bits;
  std::array<char, INET6_ADDRSTRLEN> text{};
  ::inet_ntop(is_ipv4 ? AF_INET : AF_INET6, gid.raw + (is_ipv4 ? mapped_bits / 8 : 0), text.data(),
              text.size());
  return fmt::format("{} {}/{}", name_of(fabric), text.data(), is_ipv4 ? bits - mapped_bits : bits);
}

int ones(std::span<const std::uint8_t> mask) {
  int bits = 0;
  for (const auto byte : mask) bits += std::popcount(byte);
  return bits;
}

// Returns the bits of the prefix if the interface has the address, or -1.
int bits_on(const ifaddrs& interface, const ibv_gid& gid) {
  if (interface.ifa_addr == nullptr || interface.ifa_netmask == nullptr) return -1;
  const bool is_ipv4 = is_mapped_ipv4(gid);
  if (interface.ifa_addr->sa_family != (is_ipv4 ? AF_INET : AF_INET6)) return -1;
  const std::size_t bytes = is_ipv4 ? sizeof(in_addr) : sizeof(in6_addr);
  const std::size_t at =
      is_ipv4 ? offsetof(sockaddr_in, sin_addr) : offsetof(sockaddr_in6, sin6_addr);
  const auto part = [&](const sockaddr* address) {
    return std::span(reinterpret_cast<const std::uint8_t*>(address) + at, bytes);
  };
  const auto own = std::span(gid.raw).last(bytes);
  if (!std::ranges::equal(part(interface.ifa_addr), own)) return -1;
  return (is_ipv4 ? mapped_bits : 0) + ones(part(interface.ifa_netmask));
}

}  // namespace

bool is_mapped_ipv4(const ibv_gid& gid) {
  constexpr std::array<std::uint8_t, 12> prefix{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
  return std::equal(prefix.begin(), prefix.end(), gid.raw);
}

int prefix_bits(const ibv_gid& gid) {
  if (is_link_local(gid)) return usual_bits;
  ifaddrs* all = nullptr;
  if (::getifaddrs(&all) != 0) return gid_bits;
  const std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> owner(all, ::freeifaddrs);
  for (const ifaddrs* one = all; one != nullptr; one = one->ifa_next) {
    if (const int bits = bits_on(*one, gid); bits >= 0) return bits;
  }
  return gid_bits;
}

std::string text_of(const Address& address) {
  return text_of(address.fabric, address.gid, address.subnet_bits);
}

std::string subnet_of(const Address& address) {
  ibv_gid prefix{};
  for (int bit = 0; bit < address.subnet_bits; ++bit) {
    const auto mask = static_cast<std::uint8_t>(0x80U >> static_cast<unsigned>(bit % 8));
    prefix.raw[bit / 8] |= static_cast<std::uint8_t>(address.gid.raw[bit / 8] & mask);
  }
  return text_of(address.fabric, prefix, address.subnet_bits);
}

std::string reach_of(const Address& address) {
  if (address.fabric != Fabric::roce_v2 || is_link_local(address.gid)) return subnet_of(address);
  return is_mapped_ipv4(address.gid) ? "RoCE v2 IPv4" : "RoCE v2 IPv6";
}

}  // namespace atoll_verbs_backend
