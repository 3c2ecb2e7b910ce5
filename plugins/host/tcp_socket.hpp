// Functions on TCP sockets: addresses, listening, options.
#pragma once

#include <netdb.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include "core/descriptor.hpp"

namespace atoll_host_backend {

using atoll_v1::atoll::net::Fd;

using Addresses = std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)>;

// Resolves a host name or address. Returns null if it does not resolve.
Addresses resolve(const std::string& host, std::uint16_t port, int flags);

Fd stream_socket(int family);

// Listens at `address`, or at all addresses of this host if `address` cannot be bound. Throws
// Error(ATOLL_IO).
Fd listen_at(const std::string& address);
std::uint16_t port_of(int socket);

// Binds a socket to a source address, and returns false with errno if that fails. The port is
// chosen later by connect(), so that it must be unique only per peer.
bool bind_source(int socket, const std::string& address);

// Sets the options of a data connection. The kernel ends an idle connection whose peer has not
// answered for `cut`, and then not answered several probes either.
void tune(int socket, std::chrono::nanoseconds cut);

// Returns "ADDRESS port PORT" of this end or of the other end of a connection.
std::string own_end(int socket);
std::string other_end(int socket);

// Returns the IP address of the other end as text, without a prefix for IPv4 in IPv6.
std::string other_address(int socket);

std::string host_name();

}  // namespace atoll_host_backend
