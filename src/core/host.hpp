// Identity of this host and the addresses at which other hosts reach it.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "atoll/namespace.hpp"

namespace atoll_v1::atoll::net {

// The host name of the kernel, cut to 63 characters. Characters other than letters, digits, '-' and
// '.' are replaced with '-'.
std::string host_name();

// "name/digest", where the digest is that of boot id and network namespace. Processes with equal
// ids reach each other over loopback. Contains no '|', ',' or white space.
std::string host_id();

// Returns one numeric address per interface of a comma-separated list, in the same order; each is
// one rail. IPv4 addresses are preferred. For "" the result is one address: that of the interface
// of the default route, else of the first interface that is up, else loopback. Throws
// Error(invalid_argument) if an interface does not exist, has no address or is listed twice, and
// for more than 16 interfaces.
std::vector<std::string> rail_addresses(std::string_view interfaces);

// Returns random bytes of the kernel.
std::string random_bytes(std::size_t bytes);
// Returns `bytes` random bytes as hexadecimal digits.
std::string random_token(std::size_t bytes);

}  // namespace atoll_v1::atoll::net
