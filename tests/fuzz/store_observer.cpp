// Sends the input to an observer in place of the store, and prints the answers as `atoll-topo
// --top` does. The first byte selects what the input is:
//   0  what the observer receives from the start; nothing may pass as a proof of the store
//   1  what it receives after it has asked
//   2  the same, cut into messages (store_messages.hpp)
//   3  two answers, with the length of the first in two bytes
// If bit 2 is set, each answer is that of one rank, and not of the store.
#include "store/observer.hpp"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "atoll/error.hpp"
#include "core/log.hpp"
#include "core/terminal_safe.hpp"
#include "flight/observation.hpp"
#include "script.hpp"
#include "store/protocol.hpp"
#include "store_messages.hpp"
#include "top_report.hpp"

namespace net = atoll::net;
namespace store = atoll::store;

namespace {

using fuzz::require;
using std::chrono::milliseconds;

const std::string token = "token";

net::Clock::time_point soon() { return net::Clock::now() + std::chrono::seconds(5); }

const net::Address& place() {
  static const net::Address address =
      net::local_socket("atoll/fuzz/observer/" + std::to_string(::getpid()));
  return address;
}

std::string frame(store::Kind kind, std::string_view payload) {
  return store::encode_frame(kind, 0, store::Packer().number(0).take().append(payload));
}

std::string receive(int socket) {
  std::array<char, store::header_bytes> header{};
  net::receive_all(socket, header, soon());
  std::string body(store::decode_header({header.data(), header.size()}).length, '\0');
  net::receive_all(socket, body, soon());
  return body;
}

// Completes the handshake with the observer, as a store that knows the token.
void welcome(int socket) {
  store::Handshake handshake(store::Side::store, token);
  handshake.hear(receive(socket));
  net::send_all(socket, frame(store::Kind::challenge, handshake.greeting()));
  require(handshake.accepts(receive(socket)));
  net::send_all(socket, frame(store::Kind::proved, handshake.proof()));
  receive(socket);
  net::send_all(socket, frame(store::Kind::welcome, ""));
  receive(socket);
}

void serve(int listener, const std::string& bytes, bool proves) {
  require(net::wait_for(listener, POLLIN, soon()));
  const net::Fd socket(::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC));
  try {
    if (proves) {
      welcome(socket.get());
    } else {
      receive(socket.get());
    }
    net::send_all(socket.get(), bytes);
  } catch (const atoll::Error&) {  // the observer has closed the connection
  }
  ::shutdown(socket.get(), SHUT_WR);
  std::array<char, 4096> rest;
  while (::recv(socket.get(), rest.data(), rest.size(), 0) > 0) {
  }
}

std::string of_one_rank(std::string text) {
  return store::encode({store::Answered{store::Answered::How::answered, std::move(text), "h", 1}});
}

std::string bytes_of(fuzz::Script& script, unsigned how) {
  if (how % 4 < 2) return script.rest();
  if (how % 4 == 2) return store_fuzz::messages_of(script.rest());
  std::array<std::string, 2> answers;
  answers[0] = script.text(script.number<std::uint16_t>());
  answers[1] = script.rest();
  std::string bytes;
  for (std::string& answer : answers) {
    if ((how & 4) != 0) answer = of_one_rank(std::move(answer));
    bytes += frame(store::Kind::answer, answer);
  }
  return bytes;
}

// No byte of a rank may reach the terminal unless it is printable.
void check(const std::vector<store::Answered>& answers,
           const std::vector<atoll::ObservedRank>& ranks) {
  require(answers.size() == ranks.size());
  const auto again = store::decode_answers(store::encode(answers));
  require(again.size() == answers.size());
  for (const atoll::ObservedRank& rank : ranks) {
    require(rank.step >= -1 && rank.monotonic_ns >= 0);
    require(atoll::terminal_safe(rank.host).size() == rank.host.size());
    for (const auto& communicator : rank.communicators) require(communicator.running >= -1);
  }
}

void look_twice(store::Observer& observer) {
  std::vector<atoll::ObservedRank> before;
  for (int i = 0; i < 2; ++i) {
    const auto answers = observer.look(milliseconds(0));
    if (!answers) return;
    std::vector<atoll::ObservedRank> ranks;
    for (const store::Answered& rank : *answers) ranks.push_back(atoll::observed_rank(rank));
    check(*answers, ranks);
    const topo::View view{"here", ranks, before};
    require(!topo::table_of(view, {}).empty() && !topo::table_of(view, {24, 80}).empty());
    require(!topo::json_of(view).empty());
    before = std::move(ranks);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const unsigned char* data, std::size_t size) {
  if (size == 0 || size > 65'536) return 0;
  atoll::log::set_level(atoll::log::Level::off);
  static const net::Fd listener = net::listen_on(place());
  fuzz::Script script({data, size});
  const unsigned how = script.number();
  const bool proves = how % 4 != 0;
  const std::string bytes = bytes_of(script, how);
  const std::jthread store_side([&] { serve(listener.get(), bytes, proves); });
  try {
    store::Observer observer({place()}, token, soon());
    require(proves);  // a peer without the token has passed as the store
    look_twice(observer);
  } catch (const atoll::Error&) {
  }
  return 0;
}
