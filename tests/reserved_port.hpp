// Reserves a loopback port at which the ranks of one job can meet.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <string>
#include <system_error>

namespace atoll_test {

// Keeps a port bound without listening on it. Rank 0 can still listen on the port, because both
// sides set SO_REUSEADDR, but the system gives the port to no other bind and no outgoing
// connection. Without a reservation, another process sometimes takes the port when many tests run
// side by side.
class ReservedPort {
 public:
  ReservedPort() : socket_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    const int yes = 1;
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof address;
    auto* generic = reinterpret_cast<sockaddr*>(&address);
    if (socket_ < 0 || ::setsockopt(socket_, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes) != 0 ||
        ::bind(socket_, generic, length) != 0 || ::getsockname(socket_, generic, &length) != 0) {
      const int reason = errno;
      if (socket_ >= 0) ::close(socket_);
      throw std::system_error(reason, std::generic_category(), "a port of loopback");
    }
    number_ = ntohs(address.sin_port);
  }
  ReservedPort(const ReservedPort&) = delete;
  ReservedPort& operator=(const ReservedPort&) = delete;
  ~ReservedPort() { ::close(socket_); }

  int number() const noexcept { return number_; }
  std::string address() const { return "127.0.0.1:" + std::to_string(number_); }

 private:
  int socket_;
  int number_ = 0;
};

}  // namespace atoll_test
