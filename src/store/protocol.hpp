// Encodes and decodes the messages of the rendezvous store. A frame has a header of 16 bytes
// (length of the body, kind, request number; little endian) and a body of u32 numbers and strings
// (u32 length, then bytes); wire_protocol.md lists the bodies. The input comes from the network, so
// lengths are checked before use and malformed data throws Error(bad_data).
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "atoll/error.hpp"
#include "store/store.hpp"

namespace atoll_v1::atoll::store {

constexpr std::uint32_t magic = 0x4c4c5441;  // "ATLL" in little endian, which identifies a greeting
// Version of the protocol. Greetings and proofs keep their format in all versions from 3 on, so
// that processes of two versions prove themselves to each other before they name the difference.
constexpr std::uint32_t version = 7;
constexpr std::uint32_t first_version_with_proofs = 3;

constexpr std::size_t header_bytes = 16;
constexpr std::size_t nonce_bytes = 32;
constexpr std::size_t proof_bytes = 32;
constexpr std::size_t max_library_bytes = 32;
constexpr std::size_t max_unproven_bytes = 512;  // longest message before the peer's proof
constexpr std::size_t max_join_bytes = 1024;
constexpr std::size_t max_secret_bytes = 256;
constexpr std::size_t max_host_bytes = 256;
constexpr std::size_t max_key_bytes = 256;
constexpr std::size_t max_keys = std::size_t{1} << 20;  // maximum number of keys in one request
constexpr std::size_t max_value_bytes = std::size_t{16} << 20;
constexpr std::size_t max_request_bytes = max_value_bytes + 1024;
constexpr std::size_t max_answer_bytes = std::size_t{1} << 30;  // enough for values of many ranks

enum class Kind : std::uint32_t {
  hello = 1,  // ranks and observers send the kinds from `hello` to `regroup`
  put = 2,
  get = 3,
  exchange = 4,
  fail = 5,
  farewell = 6,
  ask = 7,
  reply = 8,
  proof = 9,
  join = 10,
  cancel = 11,
  release = 12,
  observe = 13,
  announce = 14,
  regroup = 15,
  welcome = 16,  // the store sends the kinds from `welcome` on
  answer = 17,
  refusal = 18,
  failure = 19,
  question = 20,
  challenge = 21,
  proved = 22,
  ended = 23,
  departure = 24,
};

struct Header {
  std::uint32_t length = 0;
  std::uint32_t kind = 0;
  std::uint64_t request = 0;
};

Header decode_header(std::string_view bytes);  // `bytes` must have at least header_bytes bytes
std::string encode_header(const Header& header);
std::string encode_frame(Kind kind, std::uint64_t request, std::string_view body);

class Packer {
 public:
  Packer& number(std::uint32_t value);
  Packer& wide_number(std::uint64_t value);
  Packer& text(std::string_view value);
  std::string take() { return std::move(bytes_); }

 private:
  std::string bytes_;
};

class Unpacker {
 public:
  explicit Unpacker(std::string_view bytes) : bytes_(bytes) {}
  std::uint32_t number();
  std::uint64_t wide_number();
  std::string_view text(std::size_t most);  // returns a view into the message
  std::string_view rest();
  std::size_t left() const noexcept { return bytes_.size() - offset_; }
  void finish() const;  // throws if the message has unread bytes left

 private:
  std::string_view take(std::size_t count);
  std::string_view bytes_;
  std::size_t offset_ = 0;
};

// The first message of each side of a connection: hello and challenge.
struct Greeting {
  std::uint32_t protocol = version;
  std::string library;  // version of libatoll, such as "0.1.0"
  std::string nonce;    // random bytes; empty in protocols without proofs
};
std::string encode(const Greeting& greeting);
Greeting decode_greeting(std::string_view body);

enum class Side {
  rank,
  store,
};

// Returns text such as "atoll 0.1.0 (store protocol 7)".
std::string described(const Greeting& greeting);
// Returns whether processes with this greeting and of this library can share a job. Below 1.0,
// libraries with equal major and minor numbers can.
bool is_compatible(const Greeting& greeting);
Greeting own_greeting();  // returns this library's greeting, without random bytes

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
class Handshake {
 public:
  Handshake(Side side, std::string_view token, Greeting own = own_greeting());

  // The body of this side's hello or challenge.
  const std::string& greeting() const noexcept { return own_; }
  // Accepts the body of the peer's challenge or hello. Throws Error(bad_data) if it is malformed.
  // Must be called before the functions below.
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

// The identity of a rank, which it sends only after the store has proved itself.
struct Join {
  int rank = 0;
  int size = 0;
  std::string host;
  int pid = 0;
};
std::string encode(const Join& join);
Join decode_join(std::string_view body);

// Ranks that take part in an exchange, as runs: `count` ranks from `first` in steps of `step`.
// Groups of a mesh need few runs, so each rank can send the list.
struct Run {
  std::uint32_t first = 0;
  std::uint32_t step = 1;
  std::uint32_t count = 0;
  bool operator==(const Run&) const = default;
};
std::vector<Run> runs_of(std::span<const int> ranks);  // `ranks` must be in ascending order
void pack(Packer& packer, const std::vector<Run>& runs);
// Throws Error(bad_data) unless the runs name ascending ranks below `size`.
std::vector<Run> unpack_runs(Unpacker& in, int size);
std::vector<int> ranks_of(const std::vector<Run>& runs);

// The result of an exchange. Equal values travel once: the body has the different values in the
// order of their first rank and, if some are equal, the index of each rank's value as runs (u32
// index, u32 count).
std::string encode_values(std::span<const std::string_view> values);
// `count` is the number of ranks that took part.
std::vector<std::string> decode_values(std::string_view body, std::size_t count);

// The body of every frame that the store sends: either 0 and the result, or an ErrorCode and its
// message.
struct Answer {
  std::optional<ErrorCode> problem;
  std::string_view payload;
};
Answer decode_answer(std::string_view body);

// Encode and decode the answers of all ranks to a question, indexed by rank.
std::string encode(const std::vector<Answered>& answers);
std::vector<Answered> decode_answers(std::string_view body);

// Name of the question that the store asks all ranks on behalf of an observer. An observer cannot
// choose another question.
constexpr std::string_view observer_question = "observe";

}  // namespace atoll_v1::atoll::store
