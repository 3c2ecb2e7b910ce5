// The TCP calls that the store needs. Unless stated otherwise, failures throw Error(io) with the
// address and the message of the operating system.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "atoll/namespace.hpp"
#include "core/descriptor.hpp"

namespace atoll_v1::atoll {

// Remembers the process that made it. is_here() is true in that process and false in its children.
// Unlike a comparison of getpid(), it makes no system call, so every collective can ask.
class ProcessMark {
 public:
  ProcessMark() noexcept;
  bool is_here() const noexcept { return forks_ == forks_before_.load(std::memory_order_relaxed); }

 private:
  static std::atomic<unsigned> forks_before_;  // forks between the first mark and this process
  unsigned forks_;
};

}  // namespace atoll_v1::atoll

namespace atoll_v1::atoll::net {

using Clock = std::chrono::steady_clock;

// A socket address of the kernel: IPv4, IPv6, or a Unix socket with an abstract name.
struct Address {
  std::vector<std::byte> bytes;  // address as the kernel stores it, a sockaddr
};

// Returns all TCP addresses of a host name or numeric address; throws Error(not_found) with the
// name.
std::vector<Address> resolve(std::string_view host, int port);
// Returns the Unix socket with this abstract name, which processes of the network namespace share.
Address local_socket(std::string_view name);
bool is_local_socket(const Address& address) noexcept;
bool is_loopback(const Address& address) noexcept;
// Returns true for "localhost" and loopback addresses. Returns false for a host name, even if this
// host resolves it to loopback (Debian maps it to 127.0.1.1 in /etc/hosts).
bool names_loopback(std::string_view host);
std::string numeric_host(const Address& address);
// Returns "127.0.0.1 port 80", or "local socket NAME".
std::string name_of(const Address& address);
int port_of(const Address& address) noexcept;

Fd listen_on(const Address& address);
// Returns a nonblocking socket, or an empty Fd with the reason in errno.
Fd accept_from(int listener);
// Makes a TCP socket send small messages at once, and notice within half a minute that the peer's
// host has lost power.
void configure_stream(int socket) noexcept;
// Makes the kernel close a TCP connection if the network is cut or the peer's host has lost power:
// after `limit` without traffic and six unanswered keepalive probes, one per second, or when data
// has had no acknowledgment for `limit` + 6 s.
void notice_cut(int socket, std::chrono::seconds limit) noexcept;
Fd connect_to(const Address& address, Clock::time_point deadline);  // returns a blocking socket
Address local_address(int socket);
Address peer_address(int socket);
// Returns whether the process at the other end of a Unix socket has the effective user of this
// process. The kernel answers, so no process can pretend.
bool peer_has_own_user(int socket) noexcept;
// Waits for one of the `events` of poll(), or for an error; returns false at the deadline, and
// within 1 s after `stop` becomes true.
bool wait_for(int socket, short events, Clock::time_point deadline,
              const std::atomic<bool>* stop = nullptr);

// Sends until the deadline, and returns the number of bytes that were sent. Throws Error(peer_lost)
// if the connection ends.
std::size_t send_some(int socket, std::string_view data, Clock::time_point deadline);
// Transfer all bytes, or throw Error(peer_lost) if the connection ends and Error(timeout) at the
// deadline; `stop` is that of wait_for().
void send_all(int socket, std::string_view data,
              Clock::time_point deadline = Clock::time_point::max());
void receive_all(int socket, std::span<char> data,
                 Clock::time_point deadline = Clock::time_point::max(),
                 const std::atomic<bool>* stop = nullptr);

}  // namespace atoll_v1::atoll::net
