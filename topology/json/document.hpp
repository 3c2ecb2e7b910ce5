// Reader of untrusted JSON. Parsing is limited in size, and every value records its byte offset, so
// that errors about its meaning can name the byte too.
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
  std::size_t values = 4'000'000;  // each value needs about 100 bytes of memory
  std::size_t depth = 16;
};

struct JsonValue {
  using Array = std::vector<JsonValue>;
  using Object =
      std::vector<std::pair<std::string, JsonValue>>;  // members in the order of the text
  // Negative integers are stored as int64, other integers as uint64.
  std::variant<std::nullptr_t, bool, std::int64_t, std::uint64_t, double, std::string, Array,
               Object>
      data = nullptr;
  std::size_t offset = 0;  // offset just after the first token of the value
};

// Throws Error(bad_data) that names `source` and a byte offset.
JsonValue parse_json(std::string_view text, std::string_view source, JsonLimits limits = {});

// Reads the members of an object. Each accessor throws Error(bad_data) with source, byte offset and
// path ("gpus[3].host") when the member is missing, has another type, or is out of range. Unknown
// members are ignored, because later versions may add some.
class JsonObject {
 public:
  JsonObject(const JsonValue& value, std::string_view source, std::string path);

  std::string text(std::string_view member) const;
  std::string text_or(std::string_view member, std::string_view absent) const;
  // Reads a text that is limited only by the size of the document.
  std::string long_text(std::string_view member) const;
  // Reads a boolean. Returns false when the member is absent.
  bool is_true(std::string_view member) const;
  // Reads an object whose values are texts. Empty when absent.
  std::map<std::string, std::string, std::less<>> texts(std::string_view member) const;
  // Reads an array of texts. Empty when absent.
  std::vector<std::string> text_list(std::string_view member, std::size_t most) const;
  int integer_or(std::string_view member, int absent, std::pair<int, int> range) const;
  std::uint64_t unsigned_or(std::string_view member, std::uint64_t absent) const;
  // Reads a number. Empty when absent or null; otherwise finite and not negative.
  std::optional<double> number(std::string_view member) const;
  // Reads an array of objects. Empty when absent.
  std::vector<JsonObject> list(std::string_view member, std::size_t most) const;

  [[noreturn]] void fail(std::string_view member, std::string_view what) const;

 private:
  const JsonValue* find(std::string_view member) const;
  const JsonValue& get(std::string_view member) const;
  // Returns the member's value; null when the member is absent. If the member has another type,
  // throws an error with the text `otherwise`.
  template <class T>
  const T* typed(std::string_view member, std::string_view otherwise) const;
  const JsonValue::Array& elements(std::string_view member, std::size_t most) const;
  std::string checked_text(std::string_view member, const JsonValue& value,
                           std::size_t longest) const;

  const JsonValue* value_;
  std::string_view source_;
  std::string path_;
};

}  // namespace atoll_v1::atoll
