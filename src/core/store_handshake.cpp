#include "core/store_handshake.hpp"

#include <fmt/format.h>
#include <sodium.h>

#include "atoll/version.hpp"
#include "core/host.hpp"

namespace atoll_v1::atoll::store {
namespace {

static_assert(proof_bytes == crypto_auth_hmacsha256_BYTES);

const unsigned char* octets(std::string_view text) noexcept {
  return reinterpret_cast<const unsigned char*>(text.data());
}

// Returns "0.1" for "0.1.7".
std::string_view series(std::string_view library) { return library.substr(0, library.rfind('.')); }

}  // namespace

Greeting own_greeting() { return {version, std::string(ATOLL_VERSION), {}}; }

std::string described(const Greeting& greeting) {
  return greeting.library.empty()
             ? fmt::format("an atoll with store protocol {}", greeting.protocol)
             : fmt::format("atoll {} (store protocol {})", greeting.library, greeting.protocol);
}

bool is_compatible(const Greeting& greeting) {
  return greeting.protocol == version && series(greeting.library) == series(ATOLL_VERSION);
}

Handshake::Handshake(Side side, std::string_view token, Greeting own) : side_(side), token_(token) {
  own.nonce = net::random_bytes(nonce_bytes);
  own_ = encode(own);
}

void Handshake::hear(std::string_view greeting) {
  peer_ = decode_greeting(greeting);
  theirs_ = greeting;
}

// Each text is preceded by its length, so no two different conversations have the same bytes.
std::string Handshake::proof_of(Side side) const {
  const bool own_is_hello = side_ == Side::rank;
  const std::string message =
      Packer()
          .text(side == Side::rank ? "atoll store: rank" : "atoll store: store")
          .text(own_is_hello ? own_ : theirs_)
          .text(own_is_hello ? theirs_ : own_)
          .take();
  std::string proof(proof_bytes, '\0');
  crypto_auth_hmacsha256_state state;
  ::crypto_auth_hmacsha256_init(&state, octets(token_), token_.size());
  ::crypto_auth_hmacsha256_update(&state, octets(message), message.size());
  ::crypto_auth_hmacsha256_final(&state, reinterpret_cast<unsigned char*>(proof.data()));
  ::sodium_memzero(&state, sizeof state);
  return proof;
}

bool Handshake::accepts(std::string_view proof_of_peer) const {
  const std::string expected = proof_of(side_ == Side::rank ? Side::store : Side::rank);
  return proof_of_peer.size() == expected.size() &&
         ::sodium_memcmp(proof_of_peer.data(), expected.data(), expected.size()) == 0;
}

}  // namespace atoll_v1::atoll::store
