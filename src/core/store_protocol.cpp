#include "core/store_protocol.hpp"

#include "core/assert.hpp"
#include "core/errors.hpp"

namespace atoll_v1::atoll::store {
namespace {

template <class T>
void append_little_endian(std::string& bytes, T value) {
  for (std::size_t i = 0; i < sizeof value; ++i) {
    bytes += static_cast<char>(static_cast<unsigned char>(value >> (8 * i)));
  }
}

template <class T>
T read_little_endian(std::string_view bytes) {
  T value = 0;
  for (std::size_t i = 0; i < sizeof value; ++i) {
    value |= static_cast<T>(static_cast<unsigned char>(bytes[i])) << (8 * i);
  }
  return value;
}

constexpr std::uint32_t last_error_code = static_cast<std::uint32_t>(ErrorCode::internal);

}  // namespace

Header decode_header(std::string_view bytes) {
  ATOLL_ASSERT(bytes.size() >= header_bytes,
               "decode_header: the header of a store message is not complete");
  return {read_little_endian<std::uint32_t>(bytes),
          read_little_endian<std::uint32_t>(bytes.substr(4)),
          read_little_endian<std::uint64_t>(bytes.substr(8))};
}

std::string encode_header(const Header& header) {
  std::string result;
  append_little_endian(result, header.length);
  append_little_endian(result, header.kind);
  append_little_endian(result, header.request);
  return result;
}

std::string encode_frame(Kind kind, std::uint64_t request, std::string_view body) {
  return encode_header(
             {static_cast<std::uint32_t>(body.size()), static_cast<std::uint32_t>(kind), request})
      .append(body);
}

Packer& Packer::number(std::uint32_t value) {
  append_little_endian(bytes_, value);
  return *this;
}

Packer& Packer::text(std::string_view value) {
  append_little_endian(bytes_, static_cast<std::uint32_t>(value.size()));
  bytes_.append(value);
  return *this;
}

std::string_view Unpacker::take(std::size_t count) {
  require(count <= bytes_.size() - offset_, ErrorCode::bad_data,
          "store message: {} bytes expected at offset {}, but the message has {} bytes", count,
          offset_, bytes_.size());
  const std::string_view result = bytes_.substr(offset_, count);
  offset_ += count;
  return result;
}

std::uint32_t Unpacker::number() { return read_little_endian<std::uint32_t>(take(4)); }

std::string_view Unpacker::text(std::size_t most) {
  const std::size_t length = number();
  require(length <= most, ErrorCode::bad_data,
          "store message: a text of {} bytes at offset {}; at most {} are allowed", length, offset_,
          most);
  return take(length);
}

std::string_view Unpacker::rest() { return take(bytes_.size() - offset_); }

void Unpacker::finish() const {
  require(offset_ == bytes_.size(), ErrorCode::bad_data,
          "store message: {} bytes are left over at offset {}", bytes_.size() - offset_, offset_);
}

std::string encode(const Hello& hello) {
  return Packer()
      .number(magic)
      .number(version)
      .text(hello.token)
      .number(static_cast<std::uint32_t>(hello.rank))
      .number(static_cast<std::uint32_t>(hello.size))
      .text(hello.host)
      .number(static_cast<std::uint32_t>(hello.pid))
      .take();
}

Hello decode_hello(std::string_view body) {
  Unpacker in(body);
  if (in.number() != magic || in.number() != version) {
    throw Error(ErrorCode::bad_data, "store message: unknown protocol or protocol version");
  }
  Hello hello;
  hello.token = in.text(max_token_bytes);
  hello.rank = static_cast<int>(in.number());
  hello.size = static_cast<int>(in.number());
  hello.host = in.text(256);
  hello.pid = static_cast<int>(in.number());
  in.finish();
  return hello;
}

Answer decode_answer(std::string_view body) {
  Unpacker in(body);
  const std::uint32_t status = in.number();
  Answer result{std::nullopt, in.rest()};
  if (status > last_error_code) result.problem = ErrorCode::internal;
  if (status >= 1 && status <= last_error_code) result.problem = static_cast<ErrorCode>(status);
  return result;
}

std::string encode(const std::vector<Answered>& answers) {
  Packer packer;
  for (const Answered& answer : answers) {
    packer.number(static_cast<std::uint32_t>(answer.how)).text(answer.text);
  }
  return packer.take();
}

std::vector<Answered> decode_answers(std::string_view body) {
  std::vector<Answered> result;
  Unpacker in(body);
  for (std::size_t left = body.size(); left > 0; left -= result.back().text.size() + 8) {
    const std::uint32_t how = in.number();
    if (how > static_cast<std::uint32_t>(Answered::How::departed)) {
      throw Error(ErrorCode::bad_data, "store message: unknown kind of answer");
    }
    result.push_back({static_cast<Answered::How>(how), std::string(in.text(max_value_bytes))});
  }
  return result;
}

bool equal_secrets(std::string_view expected, std::string_view given) noexcept {
  std::size_t difference = expected.size() ^ given.size();
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const char other = given.empty() ? '\0' : given[i % given.size()];
    difference |= static_cast<unsigned char>(expected[i] ^ other);
  }
  return difference == 0;
}

}  // namespace atoll_v1::atoll::store
