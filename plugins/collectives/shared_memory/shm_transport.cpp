#include "collectives/shared_memory/shm_transport.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <linux/futex.h>
#include <sys/syscall.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <charconv>
#include <climits>
#include <cstring>
#include <string_view>

#include "collectives/shared_memory/unix_socket.hpp"
#include "sdk/backend.hpp"

namespace atoll_collectives {
namespace {

// Sizes of ring buffers in bytes. A ring holds several pieces, so that the writer and the reader
// can work at the same time. All rings of a rank together should stay in the caches.
constexpr std::size_t piece_bytes = 128 * 1024;
constexpr std::size_t largest_ring = 512 * 1024;
constexpr std::size_t smallest_staging = 64 * 1024;
constexpr std::size_t inbox_budget = 4 * 1024 * 1024;

std::size_t ring_bytes_for(std::size_t rings) {
  if (rings == 0) return smallest_staging;
  return std::clamp(std::bit_floor(inbox_budget / rings), smallest_staging, largest_ring);
}

void futex_wait(std::atomic<std::uint32_t>& word, std::uint32_t value,
                std::chrono::nanoseconds limit) {
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(limit);
  const timespec time{static_cast<time_t>(seconds.count()),
                      static_cast<long>((limit - seconds).count())};
  // The result of the futex call is ignored, because the caller checks its condition again after
  // every return.
  ::syscall(SYS_futex, &word, FUTEX_WAIT, value, &time, nullptr, 0);
}

void futex_wake(std::atomic<std::uint32_t>& word) {
  ::syscall(SYS_futex, &word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

std::uint32_t number(Opened opened) { return static_cast<std::uint32_t>(opened); }

// The first bytes of a message that passes an inbox to another rank: "atinpas1".
constexpr std::uint64_t message_magic = 0x317361706e697461;

struct InboxMessage {
  std::uint64_t magic;
  std::int64_t local;
  Digest word;
};

// Returns the address at which a rank receives the inboxes of other ranks.
std::string address_of(const std::string& inbox) { return inbox + ".inboxes"; }

std::string to_hex(const Digest& word) { return fmt::format("{:02x}", fmt::join(word, "")); }

bool from_hex(std::string_view text, Digest& word) {
  if (text.size() != 2 * word.size()) return false;
  for (std::size_t i = 0; i < word.size(); ++i) {
    const char* const at = text.data() + 2 * i;
    if (std::from_chars(at, at + 2, word[i], 16).ptr != at + 2) return false;
  }
  return true;
}

}  // namespace

ShmTransport::ShmTransport(std::vector<int> ranks, int rank, Doorbell doorbell)
    : ranks_(std::move(ranks)),
      index_(static_cast<std::size_t>(ranks_.back()) + 1, -1),
      word_(random_digest()) {
  for (std::size_t i = 0; i < ranks_.size(); ++i) {
    index_[static_cast<std::size_t>(ranks_[i])] = static_cast<int>(i);
  }
  self_ = local_index(rank);
  peers_.resize(ranks_.size());
  own_ = Segment::create(ranks_.size() - 1, ring_bytes_for(ranks_.size() - 1));
  for (std::size_t i = 0; i < peers_.size(); ++i) {
    if (i == self_) continue;
    const std::size_t slot = i < self_ ? i : i - 1;
    peers_[i].incoming = &own_->ring(slot);
    peers_[i].incoming_data = own_->data(slot);
  }
  passing_.emplace(address_of(own_->name()));
  if (doorbell == Doorbell::futex_or_socket) {
    socket_ = open_datagram_socket(UnixAddress(own_->name()));
  }
}

ShmTransport::~ShmTransport() {
  if (process_ != ::getpid()) return;  // a forked child must not close the rank's inbox
  own_->inbox().closed.store(1, std::memory_order_seq_cst);
  for (const auto& peer : peers_) {
    if (peer.inbox) ring_doorbell(*peer.inbox);
  }
}

std::size_t ShmTransport::local_index(int rank) const {
  return static_cast<std::size_t>(index_.at(static_cast<std::size_t>(rank)));
}

std::string ShmTransport::published() const {
  return fmt::format("{}:{}:{}", own_->name(), own_->ring_bytes(), to_hex(word_));
}

void ShmTransport::await_peer(int rank, const std::string& published) {
  Peer& from = peer(rank);
  const auto first = published.find(':');
  const auto second = published.find(':', first + 1);
  if (second != std::string::npos) {
    from.name = published.substr(0, first);
    std::from_chars(published.data() + first + 1, published.data() + second, from.ring_bytes);
  }
  // Refuses sizes that no rank uses: with one near 2^64, the size of the inbox would overflow.
  if (second == std::string::npos || !std::has_single_bit(from.ring_bytes) ||
      from.ring_bytes > largest_ring ||
      !from_hex(std::string_view(published).substr(second + 1), from.word)) {
    throw Error(
        ATOLL_BAD_DATA,
        fmt::format("rank {} published an invalid shared memory address '{}'", rank, published));
  }
}

bool ShmTransport::advance() {
  if (!passing_) return true;
  for (std::size_t i = 0; i < peers_.size(); ++i) {
    if (i != self_ && !peers_[i].passed) pass_inbox(i);
  }
  for (int i = 0; i < Passing::most_at_once && receive_inbox(); ++i) {
  }
  auto least = Opened::connected;  // lowest state that any other rank has reached
  for (const Peer& peer : peers_) {
    if (peer.incoming == nullptr) continue;
    const auto theirs = Opened{peer.incoming->opened.load(std::memory_order_acquire)};
    least = std::min(least, peer.inbox ? theirs : Opened::not_attached);
  }
  if (least == Opened::not_attached) return false;
  // A rank that gives up has not stored `connected`, so either all ranks open or none does.
  for (const Peer& peer : peers_) {
    if (peer.inbox)
      peer.outgoing->opened.store(number(Opened::connected), std::memory_order_release);
  }
  if (least != Opened::connected) return false;
  own_->close_file();
  passing_.reset();
  return true;
}

void ShmTransport::pass_inbox(std::size_t local) {
  Peer& to = peers_[local];
  const InboxMessage message{message_magic, static_cast<std::int64_t>(self_), word_};
  const int error =
      passing_->send(address_of(to.name), std::as_bytes(std::span(&message, 1)), own_->file());
  to.passed = error == 0;
  // ECONNREFUSED means that the rank has ended or given up. The caller learns that from the store.
  if (error == 0 || error == ECONNREFUSED || Passing::is_momentary(error)) return;
  throw NoSharedMemory(fmt::format("the Unix socket of rank {} cannot be reached: {}",
                                   ranks_[local], std::strerror(error)));
}

// Receives one message; returns false if the queue is empty. Ignores a message without the random
// value (`word`) that its sender has published in the store.
bool ShmTransport::receive_inbox() {
  InboxMessage message{};
  const auto parcel = passing_->receive(std::as_writable_bytes(std::span(&message, 1)));
  if (!parcel) return false;
  const auto local = static_cast<std::size_t>(message.local);
  if (parcel->bytes != sizeof(message) || message.magic != message_magic ||
      local >= peers_.size() || local == self_ || !equal(message.word, peers_[local].word)) {
    return true;
  }
  if (!parcel->is_ours) {
    throw NoSharedMemory(fmt::format("rank {} runs as user {}, but this rank as user {}",
                                     ranks_[local], parcel->user, ::getuid()));
  }
  if (!peers_[local].inbox) attach(local, *parcel);
  return true;
}

void ShmTransport::attach(std::size_t local, const Passing::Parcel& parcel) {
  if (!parcel.file) {
    if (atoll_v1::atoll::net::lacks_descriptors()) throw system_error("receiving an inbox", EMFILE);
    throw NoSharedMemory(fmt::format(
        "the kernel did not pass the memory of rank {}; a security policy may forbid it",
        ranks_[local]));
  }
  Peer& to = peers_[local];
  to.inbox = Segment::attach(parcel.file.get(), to.name, ranks_.size() - 1, to.ring_bytes);
  const std::size_t slot = self_ < local ? self_ : self_ - 1;
  to.outgoing = &to.inbox->ring(slot);
  to.outgoing_data = to.inbox->data(slot);
  to.outgoing->opened.store(number(Opened::attached), std::memory_order_release);
}

std::vector<int> ShmTransport::absent() const {
  std::vector<int> result;
  for (std::size_t i = 0; i < peers_.size(); ++i) {
    if (i == self_) continue;
    const auto opened = peers_[i].incoming->opened.load(std::memory_order_acquire);
    if (!peers_[i].inbox || opened == number(Opened::not_attached)) result.push_back(ranks_[i]);
  }
  // If all other ranks have attached to this rank, some of them still wait for each other.
  for (std::size_t i = 0; result.empty() && i < peers_.size(); ++i) {
    if (i == self_) continue;
    const auto opened = peers_[i].incoming->opened.load(std::memory_order_acquire);
    if (opened != number(Opened::connected)) result.push_back(ranks_[i]);
  }
  return result;
}

std::size_t ShmTransport::send(int rank, std::span<const std::byte> data) {
  Peer& to = peer(rank);
  if (to.inbox->inbox().closed.load(std::memory_order_acquire) != 0) {
    throw Error(ATOLL_PEER_LOST, "that rank has closed the communicator");
  }
  std::byte* const ring = to.outgoing_data.data();
  const std::size_t n =
      to.outgoing->write(to.outgoing_data.size(), std::min(data.size(), piece_bytes),
                         [&](std::size_t at, std::size_t offset, std::size_t bytes) {
                           std::memcpy(ring + at, data.data() + offset, bytes);
                         });
  if (n > 0) ring_doorbell(*to.inbox);
  return n;
}

std::size_t ShmTransport::recv(int rank, std::span<std::byte> data) {
  Peer& from = peer(rank);
  const std::byte* const ring = from.incoming_data.data();
  const auto n = from.incoming->read_until_closed(
      from.inbox->inbox().closed, from.incoming_data.size(), std::min(data.size(), piece_bytes),
      [&](std::size_t at, std::size_t offset, std::size_t bytes) {
        std::memcpy(data.data() + offset, ring + at, bytes);
      });
  if (!n) throw Error(ATOLL_PEER_LOST, "that rank has closed the communicator");
  if (*n > 0) ring_doorbell(*from.inbox);
  return *n;
}

void ShmTransport::wake(const Segment& segment, Sleeper how) const noexcept {
  if (how == Sleeper::futex) {
    futex_wake(segment.inbox().bell.rung);
  } else if (how == Sleeper::socket && socket_) {
    // Errors of sendto() can be ignored: if the socket's queue is full, its owner wakes anyway, and
    // if the socket is closed, no rank sleeps on it.
    const UnixAddress address(segment.name());
    ::sendto(socket_.get(), "", 1, MSG_DONTWAIT | MSG_NOSIGNAL, address.get(), address.size);
  }
}

void ShmTransport::ring_doorbell(const Segment& segment) const noexcept {
  segment.inbox().bell.ring([&](Sleeper how) { wake(segment, how); });
}

std::uint32_t ShmTransport::ticket() const noexcept { return own_->inbox().bell.ticket(); }

bool ShmTransport::changed(std::uint32_t ticket) const noexcept { return this->ticket() != ticket; }

void ShmTransport::wait(std::uint32_t ticket, std::span<const Need> /*needs*/,
                        std::chrono::nanoseconds limit) {
  auto& bell = own_->inbox().bell;
  if (bell.arm(ticket, Sleeper::futex)) sleep(ticket, limit);
  bell.disarm();
}

void ShmTransport::sleep(std::uint32_t before, std::chrono::nanoseconds limit) noexcept {
  futex_wait(own_->inbox().bell.rung, before, limit);
}

void ShmTransport::notify_sleepers() const noexcept {
  for (const auto& peer : peers_) {
    if (!peer.inbox) continue;
    peer.inbox->inbox().bell.ring_sleeper([&](Sleeper how) { wake(*peer.inbox, how); });
  }
}

ShmTransport::Armed ShmTransport::arm(std::uint32_t ticket, std::span<const Need> /*needs*/,
                                      std::vector<pollfd>& descriptors) {
  if (socket_) descriptors.push_back({socket_.get(), POLLIN, 0});
  return own_->inbox().bell.arm(ticket, Sleeper::socket) ? Armed::sleep : Armed::changed;
}

void ShmTransport::disarm() noexcept {
  own_->inbox().bell.disarm();
  std::array<char, 8> sink{};
  // Reads at most 64 datagrams, because any process may send to this socket and could keep the loop
  // busy forever.
  for (int i = 0; i < 64; ++i) {
    if (::recv(socket_.get(), sink.data(), sink.size(), MSG_DONTWAIT) < 0) return;
  }
}

void ShmTransport::wake() noexcept { ring_doorbell(*own_); }

}  // namespace atoll_collectives
