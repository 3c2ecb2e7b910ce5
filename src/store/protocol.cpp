#include "store/protocol.hpp"

#include <fmt/format.h>
#include <sodium.h>

#include <algorithm>
#include <unordered_map>

#include "atoll/version.hpp"
#include "core/assert.hpp"
#include "core/errors.hpp"
#include "core/host.hpp"

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

static_assert(proof_bytes == crypto_auth_hmacsha256_BYTES);

const unsigned char* octets(std::string_view text) noexcept {
  return reinterpret_cast<const unsigned char*>(text.data());
}

// Returns "0.1" for "0.1.7".
std::string_view series(std::string_view library) { return library.substr(0, library.rfind('.')); }

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

Packer& Packer::wide_number(std::uint64_t value) {
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

std::uint64_t Unpacker::wide_number() { return read_little_endian<std::uint64_t>(take(8)); }

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

std::string encode(const Greeting& greeting) {
  return Packer()
      .number(magic)
      .number(greeting.protocol)
      .text(greeting.library)
      .text(greeting.nonce)
      .take();
}

Greeting decode_greeting(std::string_view body) {
  Unpacker in(body);
  if (in.number() != magic) throw Error(ErrorCode::bad_data, "the peer does not speak atoll");
  Greeting greeting;
  greeting.protocol = in.number();
  if (greeting.protocol < first_version_with_proofs) return greeting;
  greeting.library = in.text(max_library_bytes);
  greeting.nonce = in.text(nonce_bytes);
  in.finish();
  const bool printable = std::ranges::all_of(greeting.library, [](char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || c == '.' || c == '-' || c == '+';
  });
  if (!printable || greeting.nonce.size() != nonce_bytes) {
    throw Error(ErrorCode::bad_data, "store message: malformed greeting");
  }
  return greeting;
}

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

std::string encode(const Join& join) {
  return Packer()
      .number(static_cast<std::uint32_t>(join.rank))
      .number(static_cast<std::uint32_t>(join.size))
      .text(join.host)
      .number(static_cast<std::uint32_t>(join.pid))
      .take();
}

Join decode_join(std::string_view body) {
  Unpacker in(body);
  Join join;
  join.rank = static_cast<int>(in.number());
  join.size = static_cast<int>(in.number());
  join.host = in.text(max_host_bytes);
  join.pid = static_cast<int>(in.number());
  in.finish();
  return join;
}

std::vector<Run> runs_of(std::span<const int> ranks) {
  std::vector<Run> runs;
  for (const int rank : ranks) {
    const auto next = static_cast<std::uint32_t>(rank);
    if (!runs.empty()) {
      Run& run = runs.back();
      if (run.count == 1) run.step = next - run.first;
      if (next == run.first + run.step * run.count) {
        ++run.count;
        continue;
      }
    }
    runs.push_back({next, 1, 1});
  }
  return runs;
}

void pack(Packer& packer, const std::vector<Run>& runs) {
  packer.number(static_cast<std::uint32_t>(runs.size()));
  for (const Run& run : runs) packer.number(run.first).number(run.step).number(run.count);
}

std::vector<Run> unpack_runs(Unpacker& in, int size) {
  constexpr std::size_t run_bytes = 12;
  const std::uint32_t count = in.number();
  require(count <= in.left() / run_bytes, ErrorCode::bad_data,
          "store message: {} runs of ranks do not fit into it", count);
  std::vector<Run> runs(count);
  std::uint64_t least = 0;
  for (Run& run : runs) {
    run.first = in.number();
    run.step = in.number();
    run.count = in.number();
    const std::uint64_t last =
        run.first + std::uint64_t{run.step} * (run.count == 0 ? 0 : run.count - 1);
    require(run.first >= least && run.step >= 1 && run.count >= 1 &&
                run.count <= static_cast<std::uint64_t>(size) &&
                last < static_cast<std::uint64_t>(size),
            ErrorCode::bad_data,
            "store message: the ranks of an exchange are not ascending ranks of the job");
    least = last + 1;
  }
  return runs;
}

std::vector<int> ranks_of(const std::vector<Run>& runs) {
  std::vector<int> ranks;
  for (const Run& run : runs) {
    for (std::uint32_t i = 0; i < run.count; ++i) {
      ranks.push_back(static_cast<int>(run.first + i * run.step));
    }
  }
  return ranks;
}

std::string encode_values(std::span<const std::string_view> values) {
  std::unordered_map<std::string_view, std::uint32_t> index_of;
  std::vector<std::string_view> different;
  std::vector<std::pair<std::uint32_t, std::uint32_t>> runs;
  for (const std::string_view value : values) {
    const auto next = static_cast<std::uint32_t>(different.size());
    const auto [entry, is_new] = index_of.try_emplace(value, next);
    if (is_new) different.push_back(value);
    if (runs.empty() || runs.back().first != entry->second) runs.emplace_back(entry->second, 0);
    ++runs.back().second;
  }
  Packer packer;
  packer.number(static_cast<std::uint32_t>(different.size()));
  for (const std::string_view value : different) packer.text(value);
  if (different.size() < values.size()) {
    for (const auto& [index, count] : runs) packer.number(index).number(count);
  }
  return packer.take();
}

std::vector<std::string> decode_values(std::string_view body, std::size_t count) {
  const auto malformed = [] {
    return Error(ErrorCode::bad_data, "store message: malformed result of an exchange");
  };
  Unpacker in(body);
  const std::uint32_t different = in.number();
  if (different > count || different > in.left() / 4) throw malformed();
  std::vector<std::string> values;
  values.reserve(count);
  for (std::uint32_t i = 0; i < different; ++i) values.emplace_back(in.text(max_value_bytes));
  if (different == count) {
    in.finish();
    return values;
  }
  const std::vector<std::string> table = std::exchange(values, {});
  values.reserve(count);
  while (in.left() > 0) {
    const std::uint32_t index = in.number(), repeat = in.number();
    if (index >= table.size() || repeat > count - values.size()) throw malformed();
    values.insert(values.end(), repeat, table[index]);
  }
  if (values.size() != count) throw malformed();
  return values;
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
    packer.number(static_cast<std::uint32_t>(answer.how))
        .text(answer.text)
        .text(answer.host)
        .number(static_cast<std::uint32_t>(answer.pid));
  }
  return packer.take();
}

std::vector<Answered> decode_answers(std::string_view body) {
  std::vector<Answered> result;
  Unpacker in(body);
  while (in.left() > 0) {
    Answered& answer = result.emplace_back();
    const std::uint32_t how = in.number();
    require(how <= static_cast<std::uint32_t>(Answered::How::departed), ErrorCode::bad_data,
            "store message: unknown kind of answer");
    answer.how = static_cast<Answered::How>(how);
    answer.text = in.text(max_value_bytes);
    answer.host = in.text(max_host_bytes);
    answer.pid = static_cast<int>(in.number());
  }
  return result;
}

}  // namespace atoll_v1::atoll::store
