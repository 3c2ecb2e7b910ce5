// What identifies this host, and the addresses at which others reach it.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "atoll/namespace.hpp"

namespace atoll_v1::atoll::net {

// Up to 63 characters of letters, digits, '-' and '.'; anything else of the kernel's name becomes
// '-'.
std::string host_name();

// "name/boot id/network namespace": processes with equal ids reach each other over loopback. No
// '|',
// ',' or white space in it.
std::string host_id();

// The numeric addresses of the interfaces that the list names, in its order, one per rail;
// separated by commas, without blanks. For "" one address: of the default route's interface, else
// of the first other one that is up, else loopback. IPv4 before IPv6. Error(invalid_argument) for
// an interface that does not exist, has no address or stands twice, and for more than 16.
std::vector<std::string> rail_addresses(std::string_view interfaces);

// The first of them.
std::string host_address(std::string_view interfaces);

// `bytes` random bytes of the kernel, as hexadecimal digits.
std::string random_token(std::size_t bytes);

}  // namespace atoll_v1::atoll::net
