// Fuzzes the messages with which ranks of different hosts prove their identity. Bit 1 of the first
// byte selects the answer instead of the hello. If bit 0 is set, the hello is signed with the right
// token, so that the checks behind the proof run as well.
#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <cstring>

#include "host/tcp_handshake.hpp"
#include "script.hpp"

namespace {

using fuzz::require;
using namespace atoll_host_backend;

Identity identity(int rank) { return {"secret", "group", rank, "host", 0}; }

void hello(const unsigned char* data, std::size_t size, bool has_token) {
  static const Handshake low(identity(0)), high(identity(1));
  Arrival<Signed<Hello>> arrival;
  const auto rest = arrival.rest();
  std::memcpy(rest.data(), data, std::min(size, rest.size()));
  Signed<Hello>& message = arrival.message;
  if (has_token) message = high.sign(message.body);
  if (!low.accepts(message)) return;
  require(has_token);
  const Hello& body = message.body;
  require(body.from > 0 && body.to == 0 && body.stream >= 0 && body.nports <= body.ports.size());
  for (const char c : text_of(body.host)) require(c >= ' ' && c <= '~');
  const auto answer = low.answer(body);
  require(high.proves(body, answer));
  require(low.confirms(body, answer.body, high.confirmation(body, answer.body)));
}

void answer(const unsigned char* data, std::size_t size) {
  static const Handshake high(identity(1));
  static const Signed<Hello> mine = high.hello(0, 0, Purpose::connect, {});
  Signed<Answer> message;
  std::memcpy(&message, data, std::min(size, sizeof(message)));
  require(!high.proves(mine.body, message));  // nobody can guess a proof
  Digest last{};
  std::memcpy(last.data(), data, std::min(size, last.size()));
  require(!high.confirms(mine.body, message.body, last));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const unsigned char* data, std::size_t size) {
  if (size == 0) return 0;
  if ((data[0] & 2) != 0) {
    answer(data + 1, size - 1);
  } else {
    hello(data + 1, size - 1, (data[0] & 1) != 0);
  }
  return 0;
}
