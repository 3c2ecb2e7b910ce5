// Reads JSON files, and members of the objects in them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "fail.hpp"

namespace train {

// Returns text of a file in quotes and in ASCII, so that it cannot control a terminal.
inline std::string quoted(const std::string& text) {
  return nlohmann::json(text).dump(-1, ' ', true);
}

// Parses the JSON text of `file`. Throws Error(bad_data) with the byte at which the text ends or is
// wrong.
inline nlohmann::json parse_json(std::string_view text, const std::string& file) {
  try {
    return nlohmann::json::parse(text);
  } catch (const nlohmann::json::parse_error& error) {
    fail(ErrorCode::bad_data, "{}: not whole JSON: wrong or cut off at byte {}", file,
         error.byte - 1);
  } catch (const nlohmann::json::out_of_range&) {
    fail(ErrorCode::bad_data, "{}: a number is too large", file);
  }
}

inline nlohmann::json parse_object(std::string_view text, const std::string& file) {
  nlohmann::json json = parse_json(text, file);
  if (!json.is_object()) fail(ErrorCode::bad_data, "{}: not a JSON object", file);
  return json;
}

// Returns the bytes of a file. Throws Error(io) if it cannot be read, and Error(bad_data) if it has
// more than `most` bytes.
inline std::string read_text(const std::filesystem::path& file, std::uintmax_t most) {
  std::ifstream in(file, std::ios::binary);
  std::error_code error;
  const std::uintmax_t bytes = std::filesystem::file_size(file, error);
  if (!in || error) fail(ErrorCode::io, "{}: cannot be read", file.string());
  if (bytes > most) {
    fail(ErrorCode::bad_data, "{}: {} bytes; at most {} are accepted", file.string(), bytes, most);
  }
  std::string text(static_cast<std::size_t>(bytes), '\0');
  in.read(text.data(), static_cast<std::streamsize>(bytes));
  text.resize(static_cast<std::size_t>(in.gcount()));
  return text;
}

inline nlohmann::json read_object(const std::filesystem::path& file,
                                  std::uintmax_t most = std::uintmax_t{1} << 30) {
  return parse_object(read_text(file, most), file.string());
}

// Reads the members of an object. Throws Error(bad_data) with the file, the key and what is
// expected. A member that is null counts as absent, because Hugging Face writes null for "none".
class JsonReader {
 public:
  using Json = nlohmann::json;

  // `json` is an object, and must outlive the reader. `path` leads to it in the file: "rows[2].".
  JsonReader(const Json& json, std::string file, std::string path = "")
      : json_(json), file_(std::move(file)), path_(std::move(path)) {}

  std::int64_t integer(const std::string& key) const {
    return needed(key, integer_or(key, 0), an_integer);
  }
  // Refuses an integer that int64_t cannot hold, because it would wrap.
  std::int64_t integer_or(const std::string& key, std::int64_t fallback) const {
    constexpr std::uint64_t most = std::numeric_limits<std::int64_t>::max();
    if (present(key) && json_[key].is_number_unsigned() && json_[key].get<std::uint64_t>() > most) {
      complain(key, "is too large");
    }
    return get(key, fallback, &Json::is_number_integer, an_integer);
  }
  std::int64_t integer_in(const std::string& key, std::int64_t least, std::int64_t most) const {
    const std::int64_t value = integer(key);
    if (value < least || value > most) {
      complain(key, fmt::format("is {}, and must be in [{}, {}]", value, least, most));
    }
    return value;
  }
  double number(const std::string& key) const { return needed(key, number_or(key, 0), a_number); }
  double number_or(const std::string& key, double fallback) const {
    return get(key, fallback, &Json::is_number, a_number);
  }
  double positive(const std::string& key) const {
    const double value = number(key);
    if (!(value > 0)) complain(key, fmt::format("is {}, and must be above 0", value));
    return value;
  }
  bool boolean_or(const std::string& key, bool fallback) const {
    return get(key, fallback, &Json::is_boolean, "true or false");
  }
  std::string text(const std::string& key) const { return needed(key, text_or(key, ""), a_string); }
  std::string text_or(const std::string& key, const std::string& fallback) const {
    return get(key, fallback, &Json::is_string, a_string);
  }

  JsonReader object(const std::string& key) const {
    if (!present(key) || !json_[key].is_object()) complain_of(key, "an object");
    return {json_[key], file_, path_ + key + "."};
  }
  const Json& list(const std::string& key) const {
    if (!present(key) || !json_[key].is_array()) complain_of(key, "a list");
    return json_[key];
  }
  std::vector<JsonReader> objects(const std::string& key) const {
    std::vector<JsonReader> elements;
    for (const Json& element : list(key)) {
      const std::string name = fmt::format("{}[{}]", key, elements.size());
      if (!element.is_object()) complain(name, "is not an object");
      elements.emplace_back(element, file_, path_ + name + ".");
    }
    return elements;
  }

  bool present(const std::string& key) const {
    const auto found = json_.find(key);
    return found != json_.end() && !found->is_null();
  }
  // Also true for a member that is null.
  bool contains(const std::string& key) const { return json_.contains(key); }
  const std::string& file() const { return file_; }
  const Json& operator[](const std::string& key) const { return json_[key]; }
  const Json& json() const { return json_; }

  [[noreturn]] void complain(const std::string& key, const std::string& what) const {
    const std::string name = quoted(path_ + key);
    fail(ErrorCode::bad_data, "{}: {} {}", file_, name, what);
  }

 private:
  static constexpr const char* an_integer = "an integer";
  static constexpr const char* a_number = "a number";
  static constexpr const char* a_string = "a string";

  // Says that a member is missing or of another kind.
  [[noreturn]] void complain_of(const std::string& key, const std::string& kind) const {
    complain(key, present(key) ? "is not " + kind : "is missing: it must be " + kind);
  }

  template <class T>
  T needed(const std::string& key, T value, const char* kind) const {
    if (!present(key)) complain_of(key, kind);
    return value;
  }
  template <class T>
  T get(const std::string& key, const T& fallback, bool (Json::*is)() const noexcept,
        const char* kind) const {
    if (!present(key)) return fallback;
    const Json& value = json_[key];
    if (!(value.*is)()) complain_of(key, kind);
    return value.get<T>();
  }

  const Json& json_;
  std::string file_;
  std::string path_;
};

}  // namespace train
