// Encodes and decodes the messages of the rendezvous store. A frame has a header of 16 bytes
// (length of the body, kind, request number; little endian) and a body of u32 numbers and strings
// (u32 length, then bytes); README.md lists the bodies. The input comes from the network, so
// lengths are checked before use and malformed data throws Error(bad_data).
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "atoll/error.hpp"
#include "core/store.hpp"

namespace atoll_v1::atoll::store {

constexpr std::uint32_t magic = 0x4c4c5441;  // "ATLL" in little endian, which identifies a hello
constexpr std::uint32_t version = 2;

constexpr std::size_t header_bytes = 16;
constexpr std::size_t max_hello_bytes = 1024;
constexpr std::size_t max_token_bytes = 256;
constexpr std::size_t max_key_bytes = 256;
constexpr std::size_t max_value_bytes = std::size_t{16} << 20;
constexpr std::size_t max_request_bytes = max_value_bytes + 1024;
constexpr std::size_t max_answer_bytes = std::size_t{1} << 30;  // enough for values of many ranks

enum class Kind : std::uint32_t {
  hello = 1,  // ranks send the kinds from `hello` to `reply`
  put = 2,
  get = 3,
  exchange = 4,
  fail = 5,
  farewell = 6,
  ask = 7,
  reply = 8,
  welcome = 16,  // the store sends the kinds from `welcome` on
  answer = 17,
  refusal = 18,
  failure = 19,
  question = 20,
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
  Packer& text(std::string_view value);
  std::string take() { return std::move(bytes_); }

 private:
  std::string bytes_;
};

class Unpacker {
 public:
  explicit Unpacker(std::string_view bytes) : bytes_(bytes) {}
  std::uint32_t number();
  std::string_view text(std::size_t most);  // returns a view into the message
  std::string_view rest();
  void finish() const;  // throws if the message has unread bytes left

 private:
  std::string_view take(std::size_t count);
  std::string_view bytes_;
  std::size_t offset_ = 0;
};

// The first message of a connection, which identifies the rank.
struct Hello {
  std::string token;
  int rank = 0;
  int size = 0;
  std::string host;
  int pid = 0;
};
std::string encode(const Hello& hello);
Hello decode_hello(std::string_view body);

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

// Compares secrets in a time that does not depend on where they differ.
bool equal_secrets(std::string_view expected, std::string_view given) noexcept;

}  // namespace atoll_v1::atoll::store
