// Sends the input to a store, as a stranger, as a peer that has sent its hello, as a rank that has
// joined, or as an observer. The first byte selects which. If its bit 2 is set, the rest is cut
// into messages (store_messages.hpp). After any input the store must still serve: no stranger may
// keep a rank out.
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdlib>
#include <string>
#include <string_view>

#include "atoll/error.hpp"
#include "atoll/log.hpp"
#include "core/log.hpp"
#include "core/socket.hpp"
#include "store/client.hpp"
#include "store/server.hpp"
#include "store_messages.hpp"

namespace net = atoll::net;
namespace store = atoll::store;

namespace {

const store::Application application{"token", {0, 2, "host", 1}};

net::Clock::time_point soon() { return net::Clock::now() + std::chrono::seconds(20); }

net::Address place() {
  static const std::string name = "atoll/fuzz/" + std::to_string(::getpid());
  return net::local_socket(name);
}

// Sends the bytes and reads until the store closes the connection.
void converse(int socket, const std::string& bytes) {
  std::array<char, 4096> received;
  try {
    net::send_all(socket, bytes);
    ::shutdown(socket, SHUT_WR);
    for (;;) {
      if (!net::wait_for(socket, POLLIN, soon())) std::abort();  // the store hangs
      if (::recv(socket, received.data(), received.size(), 0) <= 0) return;
    }
  } catch (const atoll::Error&) {  // the store has closed the connection already
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const unsigned char* data, std::size_t size) {
  if (size == 0 || size > 65'536) return 0;
  atoll::log::set_level(atoll::log::Level::off);
  const std::string_view rest(reinterpret_cast<const char*>(data) + 1, size - 1);
  const unsigned char how = data[0];
  const std::string bytes = (how & 4) != 0 ? store_fuzz::messages_of(rest) : std::string(rest);

  store::ServerOptions options;
  options.listeners.push_back(net::listen_on(place()));
  options.token = application.token;
  options.secret = "secret";
  options.size = application.join.size;
  store::Server server(std::move(options));
  const net::Fd socket = net::connect_to(place(), soon());
  if ((how & 3) == 2) {
    store::apply(socket.get(), application, soon(), soon());
    converse(socket.get(), bytes);
  } else {
    std::string opening;
    if ((how & 3) == 1) {
      const store::Handshake handshake(store::Side::rank, application.token);
      opening = store::encode_frame(store::Kind::hello, 0, handshake.greeting());
    }
    if ((how & 3) == 3) {
      store::shake_hands(socket.get(), application.token, soon());
      opening = store::encode_frame(store::Kind::observe, 0, "");
    }
    converse(socket.get(), opening + bytes);
    const net::Fd rank = net::connect_to(place(), soon());
    store::apply(rank.get(), application, soon(), soon());
  }
  server.finish(std::chrono::milliseconds(0));
  return 0;
}
