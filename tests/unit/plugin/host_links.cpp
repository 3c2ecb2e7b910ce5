// Tests the byte streams between hosts without a network: order over several connections,
// checksums, the decision that a network is cut, and the handshake, also when someone replays it.
#include <arpa/inet.h>
#include <doctest/doctest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "host/tcp_checksum.hpp"
#include "host/tcp_cut.hpp"
#include "host/tcp_handshake.hpp"
#include "host/tcp_link.hpp"
#include "host/tcp_rendezvous.hpp"
#include "unit/plugin/sdk_error.hpp"

using namespace atoll_host_backend;
using namespace std::chrono_literals;

namespace {

using Bytes = std::vector<std::byte>;

Bytes pattern(std::size_t count) {
  Bytes result(count);
  for (std::size_t i = 0; i < count; ++i) {
    result[i] = static_cast<std::byte>((i * 131 + i / 251) & 0xFF);
  }
  return result;
}

// Both ends of connections, with a wire between them that a test can change.
struct Wires {
  explicit Wires(std::size_t count, Checksum checksum) {
    for (std::size_t i = 0; i < count; ++i) {
      int near[2], far[2];
      REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, near) == 0);
      REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, far) == 0);
      out.push_back({Fd(near[0]), "near"});
      in.push_back({Fd(far[0]), "far"});
      from.emplace_back(near[1]);
      to.emplace_back(far[1]);
    }
    sender = make_link(std::move(out), checksum);
    receiver = make_link(std::move(in), checksum);
  }

  // Carries all waiting bytes to the receiver; `change` may change them.
  void carry(const std::function<void(std::span<std::byte>)>& change) {
    std::vector<std::byte> buffer(8192);
    for (std::size_t i = 0; i < from.size(); ++i) {
      for (;;) {
        const ssize_t n = ::recv(from[i].get(), buffer.data(), buffer.size(), MSG_PEEK);
        if (n <= 0) break;
        std::vector<std::byte> piece(buffer.begin(), buffer.begin() + n);
        if (change) change(piece);
        const ssize_t passed = ::send(to[i].get(), piece.data(), piece.size(), MSG_DONTWAIT);
        if (passed <= 0) break;
        REQUIRE(::recv(from[i].get(), buffer.data(), static_cast<std::size_t>(passed), 0) ==
                passed);
      }
    }
  }

  Streams out, in;
  std::vector<Fd> from, to;
  std::unique_ptr<Link> sender, receiver;
};

// Sends `data` in pieces of `send_piece` and receives it in pieces of `recv_piece` bytes.
Bytes transfer(Wires& wires, const Bytes& data, std::size_t send_piece, std::size_t recv_piece,
               const std::function<void(std::span<std::byte>)>& change = {}) {
  Bytes got(data.size());
  std::size_t sent = 0, received = 0;
  for (int idle = 0; received < data.size() && idle < 1000; ++idle) {
    if (sent < data.size()) {
      const std::size_t end = std::min(data.size(), (sent / send_piece + 1) * send_piece);
      const auto piece = std::span(data).subspan(sent, end - sent);
      const auto head = piece.first(std::min<std::size_t>(piece.size(), 56));
      const std::size_t n = wires.sender->send(head, piece.subspan(head.size()));
      sent += n;
      if (n > 0) idle = 0;
    }
    wires.carry(change);
    const std::size_t end = std::min(data.size(), (received / recv_piece + 1) * recv_piece);
    const std::size_t n = wires.receiver->recv(std::span(got).subspan(received, end - received));
    received += n;
    if (n > 0) idle = 0;
  }
  CHECK(received == data.size());
  return got;
}

Identity identity(int rank, const char* token = "secret") {
  return {token, "group", rank, "host" + std::to_string(rank), 0};
}

// The connections of rank 0 of a group of two hosts with one rank each.
struct Listening {
  Listening() {
    for (std::size_t rank = 0; rank < 2; ++rank) {
      places[rank].size = sizeof(places[rank]);
      places[rank].world_rank = places[rank].host = static_cast<std::int32_t>(rank);
      places[rank].address = "127.0.0.1";
      all[rank] = &places[rank];
    }
    group.size = sizeof(group);
    group.nranks = 2;
    group.placements = all.data();
    group.tuning = "connections 1\n";
    rendezvous.emplace(identity(0), Network(group), Limits{10s, 10s});
  }
  std::array<atoll_placement, 2> places{};
  std::array<const atoll_placement*, 2> all{};
  atoll_group group{};
  std::optional<Rendezvous> rendezvous;
};

// Connects to a port of this host, with time limits for sending and receiving.
Fd connect_to(std::uint16_t port) {
  Fd result(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(port);
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  REQUIRE(::connect(result.get(), reinterpret_cast<const sockaddr*>(&to), sizeof(to)) == 0);
  const timeval limit{3, 0};
  ::setsockopt(result.get(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
  return result;
}

template <class Message>
void send_message(const Fd& socket, const Message& message) {
  REQUIRE(::send(socket.get(), &message, sizeof(message), MSG_NOSIGNAL) ==
          static_cast<ssize_t>(sizeof(message)));
}

template <class Message>
ssize_t receive_message(const Fd& socket, Message& message) {
  return ::recv(socket.get(), &message, sizeof(message), MSG_WAITALL);
}

}  // namespace

TEST_CASE("CRC-32C has the values of RFC 3720, with and without the instruction") {
  const Bytes zeros(32);
  const Bytes ones(32, std::byte{0xFF});
  Bytes rising(32);
  for (std::size_t i = 0; i < 32; ++i) rising[i] = static_cast<std::byte>(i);
  CHECK(crc32c(zeros) == 0x8A9136AA);
  CHECK(crc32c(ones) == 0x62A8AB43);
  CHECK(crc32c(rising) == 0x46DD794E);
  const Bytes data = pattern(1031);
  for (std::size_t n = 0; n <= data.size(); n += 13) {
    const auto part = std::span(data).first(n);
    CHECK(crc32c(part) == crc32c_portable(part));
  }
}

TEST_CASE("bytes keep their order for all sizes of pieces, with and without checksums") {
  for (const auto checksum : {Checksum::none, Checksum::crc32c}) {
    for (const std::size_t connections : {1U, 3U}) {
      for (const auto& [send_piece, recv_piece] :
           std::vector<std::pair<std::size_t, std::size_t>>{{56, 56},
                                                            {100'000, 7'777},
                                                            {7'777, 100'000},
                                                            {65'536, 65'536},
                                                            {300'000, 300'000}}) {
        CAPTURE(connections);
        CAPTURE(send_piece);
        Wires wires(connections, checksum);
        const Bytes data = pattern(send_piece < 100 ? 5'600 : 700'001);
        CHECK(transfer(wires, data, send_piece, recv_piece) == data);
      }
    }
  }
}

TEST_CASE(
    "with checksums one changed bit anywhere is an error, and wrong data is never handed out") {
  const Bytes data = pattern(20'000);
  // Positions in the header, at its end, in the payload, and at the end of the payload.
  for (const std::size_t position : {0U, 3U, 5U, 9U, 15U, 16U, 1'000U, 20'015U}) {
    CAPTURE(position);
    Wires wires(1, Checksum::crc32c);
    std::size_t passed = 0;
    const auto flip = [&](std::span<std::byte> piece) {
      if (position >= passed && position < passed + piece.size()) {
        piece[position - passed] ^= std::byte{0x10};
      }
      passed += piece.size();
    };
    const std::string text = atoll_test::sdk_error(
        [&] { transfer(wires, data, data.size(), data.size(), flip); }, ATOLL_BAD_DATA);
    CHECK_MESSAGE(text.find("CRC-32C") != std::string::npos, text);
  }
}

TEST_CASE("a network is cut after the limit only if retransmissions have no answer") {
  const auto start = CutWatch::Clock::now();
  Health health{100, 50, true, 5, 15s};
  // Returns after how many simulated seconds the watch reports a cut network, or -1 if it does not
  // within `seconds`.
  const auto first_cut = [&](int seconds, const std::function<void(int)>& change) {
    CutWatch watch;
    for (int i = 0; i <= seconds; ++i) {
      change(i);
      if (watch.look(health, start + std::chrono::seconds(i), 10s)) return i;
    }
    return -1;
  };
  CHECK(first_cut(30, [](int) {}) == 10);
  // Few retransmissions or a recent answer are no cut: a stopped process's kernel still answers.
  CHECK(first_cut(90, [&](int) { health = {100, 50, true, 0, 1s}; }) == -1);
  CHECK(first_cut(90, [&](int) { health = {100, 50, true, 2, 15s}; }) == -1);
  CHECK(first_cut(90, [&](int) { health = {100, 50, true, 9, 2s}; }) == -1);
  // Without unacknowledged data the watch reports no cut; the kernel's keepalive finds it.
  CHECK(first_cut(90, [&](int) { health = {100, 50, false, 9, 99s}; }) == -1);
  // After progress, the time until a cut begins again.
  CHECK(first_cut(30, [&](int i) { health = {i < 8 ? 100U : 101U, 50, true, 5, 15s}; }) == 18);
  // The time of a computation between two operations does not count.
  CutWatch watch;
  health = {100, 50, true, 5, 60s};
  CHECK(!watch.look(health, start, 10s));
  CHECK(!watch.look(health, start + 60s, 10s));
}

TEST_CASE("both sides of a handshake prove the token") {
  const Handshake low(identity(0)), high(identity(1)), stranger(identity(1, "guess"));
  const auto hello = high.hello(0, 3, Purpose::connect, {});
  REQUIRE(low.accepts(hello));
  CHECK(text_of(hello.body.host) == "host1");
  const auto answer = low.answer(hello.body);
  CHECK(high.proves(hello.body, answer));
  const auto last = high.confirmation(hello.body, answer.body);
  CHECK(low.confirms(hello.body, answer.body, last));

  CHECK(!low.accepts(stranger.hello(0, 3, Purpose::connect, {})));
  CHECK(!stranger.proves(hello.body, answer));
  CHECK(!high.proves(hello.body, stranger.answer(hello.body)));
  // A recorded handshake proves nothing, because each answer has new random bytes.
  CHECK(!low.confirms(hello.body, low.answer(hello.body).body, last));
}

TEST_CASE("a replayed hello is refused while the first is pending, and does not disturb it") {
  Listening listening;
  const std::uint16_t port = listening.rendezvous->ports().front();
  const Handshake high(identity(1));
  const auto hello = high.hello(0, 0, Purpose::connect, {});
  const Fd first = connect_to(port);
  send_message(first, hello);
  Signed<Answer> answer;
  REQUIRE(receive_message(first, answer) == static_cast<ssize_t>(sizeof(answer)));
  for (int i = 0; i < 200; ++i) {
    const Fd replay = connect_to(port);
    send_message(replay, hello);
    char byte = 0;
    const ssize_t got = receive_message(replay, byte);
    REQUIRE(got <= 0);
    REQUIRE((got == 0 || errno == ECONNRESET));
  }
  send_message(first, high.confirmation(hello.body, answer.body));
  pollfd news{listening.rendezvous->news(), POLLIN, 0};
  CHECK(::poll(&news, 1, 3000) == 1);
  CHECK(listening.rendezvous->take(1).size() == 1);
}

TEST_CASE("any changed byte of a hello is refused") {
  const Handshake low(identity(0)), high(identity(1));
  const auto hello = high.hello(0, 0, Purpose::call, std::vector<std::uint16_t>{1, 2, 3});
  REQUIRE(low.accepts(hello));
  for (std::size_t i = 0; i < sizeof(hello); ++i) {
    auto changed = hello;
    reinterpret_cast<unsigned char*>(&changed)[i] ^= 0x40U;
    CHECK_MESSAGE(!low.accepts(changed), "byte " << i);
  }
}

TEST_CASE("a hello for another rank or group, or with wrong numbers, is refused") {
  const Handshake low(identity(0)), high(identity(1));
  CHECK(!low.accepts(high.hello(2, 0, Purpose::connect, {})));
  CHECK(!low.accepts(low.hello(0, 0, Purpose::connect, {})));
  CHECK(!low.accepts(high.hello(0, -1, Purpose::connect, {})));
  CHECK(!low.accepts(high.hello(0, 0, static_cast<Purpose>(7), {})));
  Identity other = identity(1);
  other.group = "another";
  CHECK(!low.accepts(Handshake(other).hello(0, 0, Purpose::connect, {})));
}

TEST_CASE("host names that arrive cannot change a terminal") {
  CHECK(text_of(packed_name("node7")) == "node7");
  CHECK(text_of(packed_name("a\x1b[31mb\n")) == "a?[31mb?");
  CHECK(text_of(packed_name(std::string(100, 'x'))) == std::string(63, 'x'));
  CHECK(text_of(packed_name("")) == "unknown");
}
