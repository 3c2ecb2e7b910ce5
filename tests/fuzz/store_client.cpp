// Sends the input to a rank in place of the store. The first byte selects when: during the
// handshake, in which no input may pass as a proof of the store, or as the answer to a request of a
// rank that has joined. If its bit 7 is set, the rest is cut into messages (store_messages.hpp).
#include <sys/socket.h>

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdlib>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "atoll/error.hpp"
#include "core/log.hpp"
#include "store/client.hpp"
#include "store_messages.hpp"

namespace net = atoll::net;
namespace store = atoll::store;

namespace {

using std::chrono::milliseconds;

// Waits for a message of the rank, and answers with the bytes.
void answer(int socket, const std::string& bytes) {
  std::array<char, 4096> request;
  if (::recv(socket, request.data(), request.size(), 0) <= 0) return;
  try {
    net::send_all(socket, bytes);
  } catch (const atoll::Error&) {  // the rank has closed the connection
  }
  ::shutdown(socket, SHUT_WR);
  while (::recv(socket, request.data(), request.size(), 0) > 0) {
  }
}

void request(store::Client& client, int which) {
  const std::vector<std::string> keys{"a", "b"};
  const std::vector<int> ranks{0, 2};
  constexpr milliseconds timeout{1000};
  switch (which) {
    case 0:
      client.put("a", "value", timeout);
      break;
    case 1:
      client.get("a", timeout);
      break;
    case 2:
      if (client.get_all(keys, timeout).size() != keys.size()) std::abort();
      break;
    case 3:
      if (client.exchange("a", "b", timeout).size() != 3) std::abort();
      break;
    case 4:
      if (client.exchange("a", "b", timeout, ranks).size() != ranks.size()) std::abort();
      break;
    default:
      client.ask("who?", "", timeout);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const unsigned char* data, std::size_t size) {
  if (size == 0 || size > 65'536) return 0;
  atoll::log::set_level(atoll::log::Level::off);
  const std::string_view rest(reinterpret_cast<const char*>(data) + 1, size - 1);
  const std::string bytes =
      (data[0] & 0x80) != 0 ? store_fuzz::messages_of(rest) : std::string(rest);
  const int which = (data[0] & 0x7f) % 8;

  std::array<int, 2> ends{-1, -1};
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) != 0) std::abort();
  net::Fd rank(ends[0]);
  const net::Fd peer(ends[1]);
  const std::jthread store_side([&] { answer(peer.get(), bytes); });
  if (which >= 6) {
    try {
      const auto soon = net::Clock::now() + std::chrono::seconds(5);
      store::apply(rank.get(), {"token", {0, 3, "host", 1}}, soon, soon);
      std::abort();  // a peer without the token has passed as the store
    } catch (const atoll::Error&) {
    }
    rank.reset();
    return 0;
  }
  store::Client client(std::move(rank), 0, 3, std::make_shared<atoll::Failure>());
  try {
    request(client, which);
  } catch (const atoll::Error&) {
  }
  return 0;
}
