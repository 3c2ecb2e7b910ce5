#include "core/host.hpp"

#include <fmt/format.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sodium.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>
#include <memory>
#include <sstream>
#include <system_error>

#include "core/errors.hpp"
#include "core/parse.hpp"
#include "core/terminal_safe.hpp"

namespace atoll_v1::atoll::net {
namespace {

constexpr std::size_t most_rails = 16;

struct Interface {
  std::string name;
  std::string address;
  unsigned flags = 0;
};

bool is_link_local(const sockaddr* address) {
  sockaddr_in6 v6{};
  std::memcpy(&v6, address, sizeof v6);
  return IN6_IS_ADDR_LINKLOCAL(&v6.sin6_addr);
}

// Lists IPv4 before IPv6 addresses. Link-local IPv6 addresses are omitted, because they are only
// valid with a scope id that a peer does not know.
std::vector<Interface> list_interfaces() {
  ifaddrs* raw = nullptr;
  if (::getifaddrs(&raw) != 0) {
    // Without this error the list would be empty, and a name in ATOLL_INTERFACE would seem to be
    // wrong.
    const bool is_short = errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS;
    require(!is_short, ErrorCode::io, "cannot list the network interfaces of this host: {}",
            std::generic_category().message(errno));
    return {};
  }
  const std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> list(raw, &::freeifaddrs);
  std::vector<Interface> result;
  for (const int family : {AF_INET, AF_INET6}) {
    for (const ifaddrs* item = list.get(); item != nullptr; item = item->ifa_next) {
      if (item->ifa_addr == nullptr || item->ifa_addr->sa_family != family) continue;
      if (family == AF_INET6 && is_link_local(item->ifa_addr)) continue;
      std::array<char, NI_MAXHOST> text{};
      const socklen_t length = family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
      if (::getnameinfo(item->ifa_addr, length, text.data(), static_cast<socklen_t>(text.size()),
                        nullptr, 0, NI_NUMERICHOST) != 0) {
        continue;
      }
      result.push_back({item->ifa_name, text.data(), item->ifa_flags});
    }
  }
  return result;
}

// Returns the fields of each line of a table of the kernel.
std::vector<std::vector<std::string>> fields_in(const char* table) {
  std::vector<std::vector<std::string>> result;
  std::ifstream lines(table);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    result.emplace_back(std::istream_iterator<std::string>(words),
                        std::istream_iterator<std::string>());
  }
  return result;
}

// Returns the interfaces of the default routes, those of IPv4 first; see proc(5).
std::vector<std::string> default_interfaces() {
  std::vector<std::string> names;
  // Fields: interface, destination, gateway, flags, two counts, metric, mask.
  for (const auto& fields : fields_in("/proc/net/route")) {
    if (fields.size() > 7 && fields[1] == "00000000" && fields[7] == "00000000")
      names.push_back(fields.front());
  }
  // Fields: first the destination and the prefix length, last the interface.
  for (const auto& fields : fields_in("/proc/net/ipv6_route")) {
    const bool is_default = fields.size() > 2 && fields[1] == "00" &&
                            fields[0].find_first_not_of('0') == std::string::npos;
    if (is_default && fields.back() != "lo") names.push_back(fields.back());
  }
  return names;
}

const Interface* find_interface(const std::vector<Interface>& all, std::string_view name) {
  const auto found = std::ranges::find(all, name, &Interface::name);
  return found == all.end() ? nullptr : &*found;
}

std::string default_address(const std::vector<Interface>& all) {
  for (const std::string& name : default_interfaces()) {
    if (const Interface* item = find_interface(all, name)) return item->address;
  }
  const auto up = std::ranges::find_if(all, [](const Interface& item) {
    return (item.flags & IFF_UP) != 0 && (item.flags & IFF_LOOPBACK) == 0;
  });
  return up == all.end() ? "127.0.0.1" : up->address;
}

}  // namespace

std::string host_name() {
  std::array<char, 256> text{};
  if (::gethostname(text.data(), text.size() - 1) != 0) return "unknown";
  std::string result(text.data());
  result.resize(std::min<std::size_t>(result.size(), 63));
  for (char& c : result) {
    const auto letter = static_cast<unsigned char>(c);
    if (letter > 127 || (std::isalnum(letter) == 0 && c != '-' && c != '.')) c = '-';
  }
  return result.empty() ? "unknown" : result;
}

std::string host_id() {
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  struct stat space {};
  if (::stat("/proc/self/ns/net", &space) != 0) space.st_ino = 0;
  // The id is short, because every rank reads the ids of all hosts. A digest of 64 bits is enough,
  // because the id contains the name of the host as well.
  return fmt::format("{}/{:016x}", host_name(), fnv1a(fmt::format("{}/{}", boot, space.st_ino)));
}

std::vector<std::string> rail_addresses(std::string_view interfaces) {
  const std::vector<Interface> all = list_interfaces();
  if (interfaces.empty()) return {default_address(all)};
  const auto reject = [&](std::string_view why) {
    std::vector<std::string_view> known;
    for (const Interface& item : all) {
      if (std::ranges::find(known, item.name) == known.end()) known.push_back(item.name);
    }
    throw invalid("ATOLL_INTERFACE=\"{}\": {}; interfaces with an address: {}",
                  terminal_safe(interfaces), terminal_safe(why),
                  known.empty() ? "none" : fmt::format("{}", fmt::join(known, ", ")));
  };
  std::vector<std::string_view> names;
  std::vector<std::string> result;
  for (const std::string_view piece : split(interfaces, ',')) {
    const std::string_view name = trimmed(piece);
    if (std::ranges::find(names, name) != names.end()) {
      reject(fmt::format("interface {} is listed twice; name it once", name));
    }
    if (name.empty()) reject("a name is empty; write interface names separated by single commas");
    const Interface* const item = find_interface(all, name);
    if (item == nullptr && ::if_nametoindex(std::string(name).c_str()) == 0) {
      reject(fmt::format("there is no interface {}", name));
    }
    if (item == nullptr) {
      reject(
          fmt::format("interface {0} has no address: give it one (`ip addr add ADDRESS/BITS dev "
                      "{0}`) or leave it out",
                      name));
    }
    names.push_back(name);
    result.push_back(item->address);
  }
  if (result.size() > most_rails) reject(fmt::format("at most {} rails", most_rails));
  return result;
}

std::string random_bytes(std::size_t bytes) {
  static const bool is_ready = ::sodium_init() >= 0;
  require(is_ready, ErrorCode::internal, "libsodium cannot start: no random numbers");
  std::string result(bytes, '\0');
  ::randombytes_buf(result.data(), result.size());
  return result;
}

std::string random_token(std::size_t bytes) {
  std::string digits;
  for (const char c : random_bytes(bytes))
    digits += fmt::format("{:02x}", static_cast<unsigned char>(c));
  return digits;
}

}  // namespace atoll_v1::atoll::net
