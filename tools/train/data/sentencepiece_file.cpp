#include "data/tokenizer.hpp"

#include <fmt/format.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "fail.hpp"

namespace train {
namespace {

constexpr std::uint64_t length_delimited = 2;
constexpr std::uint64_t first_extension = 200;  // ModelProto allows extensions from field 200 on
constexpr std::size_t known_fields = 6;

[[noreturn]] void refuse(std::string_view file, std::size_t offset, std::string_view reason) {
  fail(ErrorCode::bad_data, "{}: byte {}: not a whole SentencePiece model: {}", file, offset,
       reason);
}

// Reads a base-128 number, low group first; nullopt if the bytes end early or it exceeds 64 bits.
std::optional<std::uint64_t> read_varint(std::string_view bytes, std::size_t& at) {
  std::uint64_t value = 0;
  for (unsigned shift = 0; shift < 64 && at < bytes.size(); shift += 7) {
    const auto byte = static_cast<unsigned char>(bytes[at++]);
    value |= static_cast<std::uint64_t>(byte & 0x7fU) << shift;
    if ((byte & 0x80U) == 0) return value;
  }
  return std::nullopt;
}

}  // namespace

void check_sentencepiece_file(std::string_view bytes, std::string_view file) {
  std::array<bool, known_fields> seen{};
  std::size_t at = 0;
  while (at < bytes.size()) {
    const std::size_t start = at;
    const auto tag = read_varint(bytes, at);
    if (!tag) refuse(file, start, "the file ends inside a field");
    const std::uint64_t field = *tag >> 3;
    const bool known = field >= 1 && field < known_fields;
    if ((*tag & 7) != length_delimited || (!known && field < first_extension)) {
      refuse(file, start, fmt::format("unknown field {}", field));
    }
    const auto length = read_varint(bytes, at);
    if (!length) refuse(file, start, "the file ends inside a field");
    if (*length > bytes.size() - at) {
      refuse(file, start,
             fmt::format("field {} needs {} bytes, but only {} are left", field, *length,
                         bytes.size() - at));
    }
    if (known) seen[field] = true;
    at += static_cast<std::size_t>(*length);
  }
  constexpr std::array<std::string_view, 4> names{"", "pieces", "trainer_spec", "normalizer_spec"};
  for (std::size_t field = 1; field < names.size(); ++field) {
    if (!seen[field]) refuse(file, bytes.size(), fmt::format("it has no {}", names[field]));
  }
}

}  // namespace train
