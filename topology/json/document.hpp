// JSON from a stranger: parsed within limits, and every value knows where it stood, so that a
// complaint about its meaning can name the byte too.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "atoll/error.hpp"

namespace atoll_v1::atoll {

struct JsonLimits {
  std::size_t bytes = std::size_t{64} << 20;
  std::size_t values = 4'000'000;  // about 100 bytes of memory each
  std::size_t depth = 16;
};

struct JsonValue {
  using Array = std::vector<JsonValue>;
  using Object = std::vector<std::pair<std::string, JsonValue>>;  // in the order of the text
  // Integers are int64 when negative, uint64 otherwise.
  std::variant<std::nullptr_t, bool, std::int64_t, std::uint64_t, double, std::string, Array,
               Object>
      data = nullptr;
  std::size_t offset = 0;  // bytes of the text up to and with its first token
};

// Throws Error(bad_data) that names `source` and a byte offset.
JsonValue parse_json(std::string_view text, std::string_view source, JsonLimits limits = {});

// An object that must have certain members. Each accessor throws Error(bad_data) with source, byte
// offset and path ("gpus[3].host") when the member is absent, of another kind, or out of range.
// Members that nobody asks for are ignored: later versions may add some.
class JsonObject {
 public:
  JsonObject(const JsonValue& value, std::string_view source, std::string path);

  std::string text(std::string_view member) const;
  std::string text_or(std::string_view member, std::string_view absent) const;
  // Of any length that the document's limits allow.
  std::string long_text(std::string_view member) const;
  // Absent: false.
  bool is_true(std::string_view member) const;
  // An object whose values are texts; empty when absent.
  std::map<std::string, std::string, std::less<>> texts(std::string_view member) const;
  // An array of texts; empty when absent.
  std::vector<std::string> text_list(std::string_view member, std::size_t most) const;
  int integer_or(std::string_view member, int absent, std::pair<int, int> range) const;
  std::uint64_t unsigned_or(std::string_view member, std::uint64_t absent) const;
  // Empty when absent or null; otherwise finite and not negative.
  std::optional<double> number(std::string_view member) const;
  // Empty when absent.
  std::vector<JsonObject> list(std::string_view member, std::size_t most) const;

  [[noreturn]] void fail(std::string_view member, std::string_view what) const;

 private:
  const JsonValue* find(std::string_view member) const;
  const JsonValue& get(std::string_view member) const;
  const JsonValue::Array& elements(std::string_view member, std::size_t most) const;
  std::string checked_text(std::string_view member, const JsonValue& value,
                           std::size_t longest) const;

  const JsonValue* value_;
  std::string_view source_;
  std::string path_;
};

}  // namespace atoll_v1::atoll
