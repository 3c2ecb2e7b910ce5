#include "rendezvous_ranks/rank.hpp"

#include <fmt/format.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <stdexcept>

#include "core/parse.hpp"
#include "world/introduction.hpp"

namespace rendezvous_bench {
namespace {

using store::Kind;
using store::Packer;

constexpr std::uint32_t timeout_ms = 120'000;

}  // namespace

void Rank::send(Kind kind, const std::string& body) {
  net::send_all(socket_.get(), store::encode_frame(kind, 1, body));
}

void Rank::exchange(std::string_view key, std::string_view value) {
  send(Kind::exchange, Packer().number(timeout_ms).text(key).text(value).number(0).take());
}

void Rank::connect(const net::Address& to, int client) {
  phase_ = Phase::connecting;
  input_.clear();
  socket_ = net::Fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  const int on = 1;
  ::setsockopt(socket_.get(), IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &on, sizeof on);
  // Each process uses its own source address, because one address has too few ports for many runs.
  sockaddr_in from{};
  from.sin_family = AF_INET;
  from.sin_addr.s_addr = htonl(INADDR_LOOPBACK + 1 + static_cast<std::uint32_t>(client));
  if (::bind(socket_.get(), reinterpret_cast<const sockaddr*>(&from), sizeof from) != 0 ||
      (::connect(socket_.get(), reinterpret_cast<const sockaddr*>(to.bytes.data()),
                 static_cast<socklen_t>(to.bytes.size())) != 0 &&
       errno != EINPROGRESS)) {
    throw std::runtime_error(fmt::format("rank {}: connect: {}", number_, std::strerror(errno)));
  }
  net::configure_stream(socket_.get());
}

std::string Rank::host_text(int rank) const {
  const int host = rank / per_host_;
  const std::string name = fmt::format("node{:05}", host);
  return atoll::encode(atoll::Introduction{name,
                                           fmt::format("{}/{:016x}", name, atoll::fnv1a(name)),
                                           {fmt::format("10.1.{}.{}", host / 250, host % 250)},
                                           std::chrono::seconds(1800),
                                           "",
                                           ""});
}

void Rank::check_placement(std::string_view payload) const {
  const auto values = store::decode_values(payload, static_cast<std::size_t>(size_));
  for (int rank = 0; rank < size_; ++rank) {
    if (values[static_cast<std::size_t>(rank)] != host_text(rank)) {
      throw std::runtime_error(fmt::format("rank {} has a wrong host of rank {}", number_, rank));
    }
  }
}

void Rank::fetch_keys() {
  Packer packer;
  packer.number(timeout_ms).number(keys_read);
  for (int i = 0; i < keys_read; ++i) {
    packer.text(fmt::format("group/host/{}", (number_ + i * 7) % size_));
  }
  send(Kind::get, packer.take());
}

void Rank::handle(const std::string& body) {
  const store::Answer answer = store::decode_answer(body);
  if (answer.problem) throw std::runtime_error(std::string(answer.payload));
  switch (phase_) {
    case Phase::lost:
    case Phase::connecting:
    case Phase::done:
      break;
    case Phase::challenged:
      handshake_->hear(answer.payload);
      send(Kind::proof, handshake_->proof());
      phase_ = Phase::proving;
      break;
    case Phase::proving:
      if (!handshake_->accepts(answer.payload)) throw std::runtime_error("wrong proof");
      handshake_.reset();
      send(Kind::join, store::encode(store::Join{number_, size_, "node", number_ + 1}));
      phase_ = Phase::joining;
      break;
    case Phase::joining:
      exchange("atoll/placement", host_text(number_));
      phase_ = Phase::placing;
      break;
    case Phase::placing:
      // Only some ranks decode the values: decoding on all of them would dominate the time.
      if (number_ % 509 == 0) check_placement(answer.payload);
      exchange("atoll/pid", Packer().number(static_cast<std::uint32_t>(number_)).take());
      phase_ = Phase::counting;
      break;
    case Phase::counting:
      send(
          Kind::put,
          Packer().number(0).text(fmt::format("group/host/{}", number_)).text("inbox 4711").take());
      phase_ = Phase::putting;
      break;
    case Phase::putting:
      exchange("group", "bandwidth=auto\nalgorithm=auto\n");
      phase_ = Phase::agreeing;
      break;
    case Phase::agreeing:
      fetch_keys();
      phase_ = Phase::fetching;
      break;
    case Phase::fetching:
      send(Kind::release, Packer()
                              .number(0)
                              .text("group/")
                              .text("")
                              .number(static_cast<std::uint32_t>(size_))
                              .take());
      send(Kind::farewell, Packer().number(0).take());
      phase_ = Phase::leaving;
      break;
    case Phase::leaving:
      phase_ = Phase::done;
      break;
  }
}

void Rank::advance(bool is_plain) {
  static std::array<char, 256 * 1024> chunk;
  if (phase_ == Phase::connecting) {
    phase_ = Phase::challenged;
    if (is_plain) return;
    handshake_ = std::make_unique<store::Handshake>(store::Side::rank, token);
    send(Kind::hello, handshake_->greeting());
    return;
  }
  const ssize_t received = ::recv(socket_.get(), chunk.data(), chunk.size(), MSG_DONTWAIT);
  if (received < 0 && errno == EAGAIN) return;
  if (received <= 0 && phase_ <= Phase::joining) {
    phase_ = Phase::lost;  // the rank has not joined yet, so it connects again
    return;
  }
  if (received <= 0) throw std::runtime_error(fmt::format("rank {}: connection lost", number_));
  if (is_plain) {
    phase_ = Phase::done;
    return;
  }
  if (phase_ <= Phase::counting) bytes_ += static_cast<std::size_t>(received);
  input_.append(chunk.data(), static_cast<std::size_t>(received));
  while (input_.size() >= store::header_bytes) {
    const std::size_t length = store::decode_header(input_).length;
    if (input_.size() < store::header_bytes + length) return;
    const std::string body = input_.substr(store::header_bytes, length);
    input_.erase(0, store::header_bytes + length);
    if (input_.empty()) input_.shrink_to_fit();
    handle(body);
  }
}

}  // namespace rendezvous_bench
