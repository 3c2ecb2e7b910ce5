#include "collectives/shared_memory/passing.hpp"

#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "collectives/shared_memory/unix_socket.hpp"

namespace atoll_collectives {
namespace {

// Largest number of descriptors that Linux accepts in one message (SCM_MAX_FD).
constexpr std::size_t most_descriptors = 253;

using UserRoom = std::array<char, CMSG_SPACE(sizeof(ucred))>;
using FullRoom =
    std::array<char, CMSG_SPACE(sizeof(ucred)) + CMSG_SPACE(most_descriptors * sizeof(int))>;

// Owns all descriptors of a control message and keeps the first.
Fd first_of(const cmsghdr& rights) noexcept {
  Fd first;
  const std::size_t count = (rights.cmsg_len - CMSG_LEN(0)) / sizeof(int);
  for (std::size_t i = 0; i < count; ++i) {
    int fd = -1;
    std::memcpy(&fd, CMSG_DATA(&rights) + i * sizeof(fd), sizeof(fd));
    Fd received(fd);
    if (i == 0) first = std::move(received);
  }
  return first;
}

}  // namespace

Passing::Passing(const std::string& address) : socket_(open_datagram_socket(UnixAddress(address))) {
  const int on = 1;
  if (::setsockopt(socket_.get(), SOL_SOCKET, SO_PASSCRED, &on, sizeof(on)) != 0)
    throw atoll_sdk::system_error("setsockopt SO_PASSCRED", errno);
}

int Passing::send(const std::string& address, std::span<const std::byte> message,
                  int fd) const noexcept {
  UnixAddress to(address);
  // The const_cast is safe, because sendmsg() does not write to the buffer.
  iovec data{const_cast<std::byte*>(message.data()), message.size()};
  msghdr header{};
  header.msg_name = &to.socket;
  header.msg_namelen = to.size;
  header.msg_iov = &data;
  header.msg_iovlen = 1;
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
  if (fd >= 0) {
    header.msg_control = control.data();
    header.msg_controllen = control.size();
    cmsghdr* rights = CMSG_FIRSTHDR(&header);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(rights), &fd, sizeof(fd));
  }
  return ::sendmsg(socket_.get(), &header, MSG_NOSIGNAL) >= 0 ? 0 : errno;
}

std::optional<Passing::Parcel> Passing::receive(std::span<std::byte> message) const noexcept {
  iovec data{message.data(), message.size()};
  msghdr header{};
  header.msg_iov = &data;
  header.msg_iovlen = 1;
  // First reads the message without removing it, into a buffer with room for the sender's identity
  // only. The kernel stores the identity first, so no room is left for descriptors and it installs
  // none.
  alignas(cmsghdr) UserRoom room{};
  header.msg_control = room.data();
  header.msg_controllen = room.size();
  const ssize_t n = ::recvmsg(socket_.get(), &header, MSG_PEEK | MSG_TRUNC | MSG_CMSG_CLOEXEC);
  if (n < 0) return std::nullopt;
  Parcel parcel;
  parcel.bytes = static_cast<std::size_t>(n);
  const cmsghdr* from = CMSG_FIRSTHDR(&header);
  if (from != nullptr && from->cmsg_level == SOL_SOCKET && from->cmsg_type == SCM_CREDENTIALS) {
    ucred sender{};
    std::memcpy(&sender, CMSG_DATA(from), sizeof(sender));
    parcel.user = sender.uid;
    parcel.is_ours = sender.uid == ::getuid();  // the kernel states the sender's real user
  }
  // Then removes the message; only a message of this user may bring descriptors.
  alignas(cmsghdr) FullRoom full{};
  header.msg_control = parcel.is_ours ? full.data() : nullptr;
  header.msg_controllen = parcel.is_ours ? full.size() : 0;
  if (::recvmsg(socket_.get(), &header, MSG_CMSG_CLOEXEC) < 0) return std::nullopt;
  if (!parcel.is_ours) return parcel;
  parcel.is_cut = (header.msg_flags & MSG_CTRUNC) != 0;
  for (cmsghdr* c = CMSG_FIRSTHDR(&header); c != nullptr; c = CMSG_NXTHDR(&header, c)) {
    if (c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS) parcel.file = first_of(*c);
  }
  return parcel;
}

bool Passing::is_momentary(int error) noexcept {
  return error == EAGAIN || error == EINTR || error == ENOBUFS || error == ETOOMANYREFS;
}

}  // namespace atoll_collectives
