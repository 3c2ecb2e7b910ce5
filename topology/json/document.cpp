// nlohmann's parser reads through an iterator that counts bytes. Its events build the document and
// enforce the limits. The parser does not recurse.
#include "json/document.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <nlohmann/json.hpp>

#include "wording.hpp"

namespace atoll_v1::atoll {
namespace {

using nlohmann::json;

constexpr std::size_t longest_text = 4096;

// Shortens the parser's message and removes its prefix.
std::string plain(std::string_view what) {
  const auto colon = what.find(": ");
  return printable(colon == std::string_view::npos ? what : what.substr(colon + 2), 200);
}

struct CountingIterator {
  using iterator_category = std::input_iterator_tag;
  using value_type = char;
  using difference_type = std::ptrdiff_t;
  using pointer = const char*;
  using reference = const char&;

  const char* at;
  std::size_t* count;  // number of bytes that the parser has read
  reference operator*() const { return *at; }
  CountingIterator& operator++() {
    ++at;
    ++*count;
    return *this;
  }
  bool operator==(const CountingIterator& other) const { return at == other.at; }
};

// Builds the document from the parser's events (nlohmann's SAX interface).
class Builder {
 public:
  Builder(std::string_view source, const JsonLimits& limits, const std::size_t& offset)
      : source_(source), limits_(limits), offset_(offset) {}

  bool null() { return add(nullptr); }
  bool boolean(bool value) { return add(value); }
  bool number_integer(json::number_integer_t value) { return add_number(std::int64_t{value}); }
  bool number_unsigned(json::number_unsigned_t value) { return add_number(std::uint64_t{value}); }
  bool number_float(json::number_float_t value, const json::string_t&) { return add_number(value); }
  bool string(json::string_t& value) { return add(std::move(value)); }
  bool binary(json::binary_t&) { return false; }  // JSON text has no binary values
  bool start_object(std::size_t) { return open(JsonValue::Object{}); }
  bool start_array(std::size_t) { return open(JsonValue::Array{}); }
  bool end_object() { return close(); }
  bool end_array() { return close(); }
  bool key(json::string_t& name) {
    key_ = std::move(name);
    return true;
  }
  bool parse_error(std::size_t position, const std::string&, const json::exception& error) {
    fail_at(source_, position, "not JSON: " + plain(error.what()));
  }

  JsonValue take() { return std::move(root_); }

 private:
  template <class T>
  bool add(T&& value) {
    append(std::forward<T>(value));
    return true;
  }

  // The parser reads one byte past a number to find its end, so the offset is one too large.
  template <class T>
  bool add_number(T value) {
    JsonValue* const slot = append(value);
    if (slot->offset > 0) --slot->offset;
    return true;
  }

  template <class T>
  JsonValue* append(T&& value) {
    if (++values_ > limits_.values)
      fail_at(source_, offset_, fmt::format("more than {} values", limits_.values));
    JsonValue* slot = &root_;
    if (!open_.empty()) {
      if (auto* array = std::get_if<JsonValue::Array>(&open_.back()->data))
        slot = &array->emplace_back();
      if (auto* object = std::get_if<JsonValue::Object>(&open_.back()->data))
        slot = &object->emplace_back(std::move(key_), JsonValue{}).second;
    }
    slot->data = std::forward<T>(value);
    slot->offset = offset_;
    return slot;
  }

  // Opens an array or object. Its parents do not grow while it is open, so the pointers in open_
  // stay valid until close().
  template <class T>
  bool open(T&& empty) {
    if (open_.size() == limits_.depth)
      fail_at(source_, offset_, fmt::format("nested deeper than {} levels", limits_.depth));
    open_.push_back(append(std::forward<T>(empty)));
    return true;
  }

  bool close() {
    open_.pop_back();
    return true;
  }

  std::string_view source_;
  const JsonLimits& limits_;
  const std::size_t& offset_;
  std::size_t values_ = 0;
  std::string key_;
  JsonValue root_;
  std::vector<JsonValue*> open_;
};

}  // namespace

JsonValue parse_json(std::string_view text, std::string_view source, JsonLimits limits) {
  if (text.size() > limits.bytes)
    fail_at(source, limits.bytes, fmt::format("larger than {} bytes", limits.bytes));
  std::size_t offset = 0;
  Builder builder(source, limits, offset);
  // The begin and end iterators can share one byte counter, because a comparison with the end uses
  // only the position.
  json::sax_parse(CountingIterator{text.data(), &offset},
                  CountingIterator{text.data() + text.size(), &offset}, &builder);
  return builder.take();
}

JsonObject::JsonObject(const JsonValue& value, std::string_view source, std::string path)
    : value_(&value), source_(source), path_(std::move(path)) {
  if (!std::holds_alternative<JsonValue::Object>(value.data))
    fail_at(source_, value.offset,
            path_.empty() ? "not an object" : fmt::format("{} is not an object", path_));
}

const JsonValue* JsonObject::find(std::string_view member) const {
  const auto& members = std::get<JsonValue::Object>(value_->data);
  const auto found = std::ranges::find(members, member, &JsonValue::Object::value_type::first);
  return found == members.end() ? nullptr : &found->second;
}

const JsonValue& JsonObject::get(std::string_view member) const {
  const JsonValue* value = find(member);
  if (value == nullptr) fail(member, "is missing");
  return *value;
}

template <class T>
const T* JsonObject::typed(std::string_view member, std::string_view otherwise) const {
  const JsonValue* value = find(member);
  const T* typed = value == nullptr ? nullptr : std::get_if<T>(&value->data);
  if (value != nullptr && typed == nullptr) fail(member, otherwise);
  return typed;
}

void JsonObject::fail(std::string_view member, std::string_view what) const {
  const JsonValue* value = find(member);
  fail_at(source_, value == nullptr ? value_->offset : value->offset,
          fmt::format("{}{}{} {}", path_, path_.empty() ? "" : ".", member, what));
}

std::string JsonObject::checked_text(std::string_view member, const JsonValue& value,
                                     std::size_t longest) const {
  const auto* text = std::get_if<std::string>(&value.data);
  if (text == nullptr) fail(member, "is not a string");
  if (text->size() > longest) fail(member, fmt::format("is longer than {} bytes", longest));
  return *text;
}

std::string JsonObject::text(std::string_view member) const {
  return checked_text(member, get(member), longest_text);
}

std::string JsonObject::long_text(std::string_view member) const {
  return checked_text(member, get(member), std::string::npos);
}

std::string JsonObject::text_or(std::string_view member, std::string_view absent) const {
  const JsonValue* value = find(member);
  return value == nullptr ? std::string(absent) : checked_text(member, *value, longest_text);
}

int JsonObject::integer_or(std::string_view member, int absent, std::pair<int, int> range) const {
  const JsonValue* value = find(member);
  if (value == nullptr) return absent;
  std::int64_t integer = 0;
  if (const auto* is_signed = std::get_if<std::int64_t>(&value->data))
    integer = *is_signed;
  else if (const auto* is_unsigned = std::get_if<std::uint64_t>(&value->data))
    integer = static_cast<std::int64_t>(std::min<std::uint64_t>(*is_unsigned, INT64_MAX));
  else
    fail(member, "is not an integer");
  if (integer < range.first || integer > range.second)
    fail(member, fmt::format("is not between {} and {}", range.first, range.second));
  return static_cast<int>(integer);
}

std::uint64_t JsonObject::unsigned_or(std::string_view member, std::uint64_t absent) const {
  const auto* integer = typed<std::uint64_t>(member, "is not an integer of at least 0");
  return integer == nullptr ? absent : *integer;
}

std::optional<double> JsonObject::number(std::string_view member) const {
  const JsonValue* value = find(member);
  if (value == nullptr || std::holds_alternative<std::nullptr_t>(value->data)) return std::nullopt;
  double number = -1;
  if (const auto* is_unsigned = std::get_if<std::uint64_t>(&value->data))
    number = static_cast<double>(*is_unsigned);
  else if (const auto* is_real = std::get_if<double>(&value->data))
    number = *is_real;
  if (!std::isfinite(number) || number < 0) fail(member, "is not a number of at least 0");
  return number;
}

const JsonValue::Array& JsonObject::elements(std::string_view member, std::size_t most) const {
  static const JsonValue::Array none;
  const auto* array = typed<JsonValue::Array>(member, "is not an array");
  if (array == nullptr) return none;
  if (array->size() > most) fail(member, fmt::format("has more than {} elements", most));
  return *array;
}

std::vector<JsonObject> JsonObject::list(std::string_view member, std::size_t most) const {
  const JsonValue::Array& array = elements(member, most);
  std::vector<JsonObject> objects;
  objects.reserve(array.size());
  for (const JsonValue& element : array)
    objects.emplace_back(element, source_, fmt::format("{}[{}]", member, objects.size()));
  return objects;
}

bool JsonObject::is_true(std::string_view member) const {
  const bool* truth = typed<bool>(member, "is neither true nor false");
  return truth != nullptr && *truth;
}

std::map<std::string, std::string, std::less<>> JsonObject::texts(std::string_view member) const {
  std::map<std::string, std::string, std::less<>> texts;
  const auto* object = typed<JsonValue::Object>(member, "is not an object");
  if (object == nullptr) return texts;
  for (const auto& [key, text] : *object)
    texts.insert_or_assign(key, checked_text(member, text, longest_text));
  return texts;
}

std::vector<std::string> JsonObject::text_list(std::string_view member, std::size_t most) const {
  std::vector<std::string> texts;
  for (const JsonValue& element : elements(member, most))
    texts.push_back(checked_text(member, element, longest_text));
  return texts;
}

}  // namespace atoll_v1::atoll
