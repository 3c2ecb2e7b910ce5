// Both sides of a connection to the store prove that they know the token of the job before either
// trusts the other. The token itself never travels.
//
//   rank -> store  hello: magic, protocol, version of the library, 32 random bytes
//   store -> rank  challenge: the same of the store
//   rank -> store  proof: HMAC(token, "rank", hello, challenge)
//   store -> rank  proved: HMAC(token, "store", hello, challenge)
//
// HMAC is HMAC-SHA-256 of libsodium. The roles differ, so a proof that is sent back to its author
// proves nothing; each side contributes random bytes, so a recorded proof is of no use later. The
// rank proves itself first: a stranger that connects to the store receives only random bytes. A
// process that has taken the port of the store learns one proof, but neither token nor identity.
// The proofs do not encrypt the connection.
#pragma once

#include <string>
#include <string_view>

#include "core/store_protocol.hpp"

namespace atoll_v1::atoll::store {

enum class Side {
  rank,
  store,
};

// Returns "atoll 0.1.0 (store protocol 4)".
std::string described(const Greeting& greeting);
// Returns whether processes with this greeting and of this library can share a job. Below 1.0,
// libraries with equal major and minor numbers can.
bool is_compatible(const Greeting& greeting);
Greeting own_greeting();  // without random bytes

class Handshake {
 public:
  Handshake(Side side, std::string_view token, Greeting own = own_greeting());

  // The body of this side's hello or challenge.
  const std::string& greeting() const noexcept { return own_; }
  // Accepts the body of the peer's challenge or hello. Throws Error(bad_data) if it is none. The
  // functions below need it.
  void hear(std::string_view greeting);
  const Greeting& peer() const noexcept { return peer_; }

  std::string proof() const { return proof_of(side_); }
  // Compares in a time that does not depend on where the proofs differ.
  bool accepts(std::string_view proof_of_peer) const;

 private:
  std::string proof_of(Side side) const;

  Side side_;
  std::string token_;
  std::string own_;
  std::string theirs_;
  Greeting peer_;
};

}  // namespace atoll_v1::atoll::store
