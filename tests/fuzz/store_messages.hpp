// Cuts the input of a fuzz program into messages of the store.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "store/protocol.hpp"

namespace store_fuzz {

// Each message in the input is a kind, a length and a body of that length. Inputs in this form
// reach the parsers of bodies more often than raw bytes.
inline std::string messages_of(std::string_view input) {
  std::string result;
  while (input.size() >= 2) {
    const auto kind = static_cast<std::uint32_t>(static_cast<unsigned char>(input[0]) % 24);
    const std::string_view body = input.substr(2, static_cast<unsigned char>(input[1]));
    result += atoll::store::encode_frame(atoll::store::Kind{kind}, 1, body);
    input.remove_prefix(2 + body.size());
  }
  return result;
}

}  // namespace store_fuzz
