// Reads a fuzz input as a script, a sequence of numbers and texts, and aborts if a check fails.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <span>
#include <string>
#include <string_view>

namespace fuzz {

inline void require(bool condition) {
  if (!condition) std::abort();
}

// After the end of the input, all numbers are 0 and all texts are empty.
class Script {
 public:
  explicit Script(std::span<const unsigned char> bytes) : bytes_(bytes) {}

  bool is_over() const { return bytes_.empty(); }
  template <class T = std::uint8_t>
  T number() {
    T value{};
    const auto taken = take(sizeof(T));
    if (!taken.empty()) std::memcpy(&value, taken.data(), taken.size());
    return value;
  }
  std::size_t below(std::size_t limit) { return number() % limit; }
  // Returns the next `length` bytes.
  std::string text(std::size_t length) { return std::string(take(length)); }
  std::string rest() { return text(bytes_.size()); }

 private:
  std::string_view take(std::size_t length) {
    const auto taken = bytes_.first(std::min(length, bytes_.size()));
    bytes_ = bytes_.subspan(taken.size());
    return {reinterpret_cast<const char*>(taken.data()), taken.size()};
  }

  std::span<const unsigned char> bytes_;
};

}  // namespace fuzz
