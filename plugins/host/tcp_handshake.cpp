#include "host/tcp_handshake.hpp"

#include <algorithm>
#include <utility>

namespace atoll_host_backend {
namespace {

constexpr std::uint32_t hello_magic = 0x41544854;
constexpr std::uint32_t hello_version = 4;

template <class Body>
void append(std::vector<std::uint8_t>& to, const Body& body) {
  const auto* octets = reinterpret_cast<const std::uint8_t*>(&body);
  to.insert(to.end(), octets, octets + sizeof(body));
}

}  // namespace

HostName packed_name(std::string_view name) {
  HostName result{};
  std::copy_n(name.data(), std::min(name.size(), result.size() - 1), result.data());
  return result;
}

std::string text_of(const HostName& name) {
  std::string result(name.begin(), std::ranges::find(name, '\0'));
  for (char& c : result) {
    if (c < ' ' || c > '~') c = '?';
  }
  return result.empty() ? "unknown" : result;
}

Handshake::Handshake(Identity identity)
    : identity_(std::move(identity)), group_(atoll_collectives::sha256(identity_.group)) {}

Signed<Hello> Handshake::hello(int to, int stream, Purpose purpose,
                               std::span<const std::uint16_t> ports) const {
  Hello body{};
  body.magic = hello_magic;
  body.version = hello_version;
  body.from = identity_.rank;
  body.to = to;
  body.stream = stream;
  body.purpose = static_cast<std::int32_t>(purpose);
  body.checksum = identity_.checksum;
  body.nports = static_cast<std::uint32_t>(std::min(ports.size(), body.ports.size()));
  body.group = group_;
  body.nonce = atoll_collectives::random_digest();
  body.host = packed_name(identity_.host);
  std::copy_n(ports.begin(), body.nports, body.ports.begin());
  return sign(body);
}

Signed<Hello> Handshake::sign(const Hello& hello) const {
  return {hello, proof("hello", hello, nullptr)};
}

bool Handshake::proves(const Hello& hello, const Signed<Answer>& answer) const {
  return atoll_collectives::equal(answer.proof, proof("answer", hello, &answer.body));
}

Digest Handshake::confirmation(const Hello& hello, const Answer& answer) const {
  return proof("confirm", hello, &answer);
}

bool Handshake::accepts(const Signed<Hello>& hello) const {
  const Hello& body = hello.body;
  // Strangers rarely send the right first bytes, and a comparison costs less than a proof.
  if (body.magic != hello_magic || body.version != hello_version) return false;
  if (!atoll_collectives::equal(hello.proof, proof("hello", body, nullptr))) return false;
  const bool known_purpose = body.purpose == static_cast<std::int32_t>(Purpose::connect) ||
                             body.purpose == static_cast<std::int32_t>(Purpose::call);
  return known_purpose && body.to == identity_.rank && body.from != identity_.rank &&
         body.from >= 0 && body.stream >= 0 && body.group == group_ &&
         body.nports <= body.ports.size();
}

Signed<Answer> Handshake::answer(const Hello& hello) const {
  Signed<Answer> result;
  result.body.nonce = atoll_collectives::random_digest();
  result.body.host = packed_name(identity_.host);
  result.body.checksum = identity_.checksum;
  result.proof = proof("answer", hello, &result.body);
  return result;
}

bool Handshake::confirms(const Hello& hello, const Answer& answer,
                         const Digest& confirmation) const {
  return atoll_collectives::equal(confirmation, proof("confirm", hello, &answer));
}

Digest Handshake::proof(std::string_view role, const Hello& hello, const Answer* answer) const {
  std::vector<std::uint8_t> message(role.begin(), role.end());
  append(message, hello);
  if (answer != nullptr) append(message, *answer);
  return atoll_collectives::hmac(identity_.token, message);
}

}  // namespace atoll_host_backend
