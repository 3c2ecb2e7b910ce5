// Parses Alpaca records from JSON events. Only the current record is kept in memory, and nesting is
// bounded.
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <nlohmann/json.hpp>

#include "data/loaders.hpp"
#include "fail.hpp"

namespace train {
namespace {

constexpr int deepest = 64;
constexpr std::size_t longest_field = 4U << 20U;

// An input iterator that records how far the parser has read, so that every error has an offset.
class Cursor {
 public:
  using iterator_category = std::input_iterator_tag;
  using value_type = char;
  using difference_type = std::ptrdiff_t;
  using pointer = const char*;
  using reference = const char&;

  Cursor(const char* at, const char** reached) noexcept : at_(at), reached_(reached) {}
  reference operator*() const noexcept { return *at_; }
  Cursor& operator++() noexcept {
    ++at_;
    *reached_ = at_;
    return *this;
  }
  bool operator==(const Cursor& other) const noexcept { return at_ == other.at_; }

 private:
  const char* at_;
  const char** reached_;
};

enum class Layout {
  list,   // a JSON list of records
  record  // a single JSON record
};

// Extracts the reason from the parser's message as one line of printable characters.
std::string reason_of(std::string_view what) {
  if (const auto at = what.find("syntax error"); at != std::string_view::npos) {
    what.remove_prefix(at);
  }
  std::string reason;
  for (const char c : what.substr(0, 160)) reason.push_back(c >= ' ' && c <= '~' ? c : '?');
  return reason;
}

struct Input {
  std::string_view text;
  const std::string& place;  // prefix of error messages
  std::size_t base;          // number of the text's first byte in error messages
  std::string_view file;
  const char* reached;  // end of the bytes that the parser has read
};

class AlpacaEvents {
 public:
  AlpacaEvents(Layout layout, const RecordSink& sink, const Input& input) noexcept
      : outer_(layout == Layout::list ? 1 : 0), sink_(sink), input_(input) {}

  // The functions below are called by nlohmann::json::sax_parse. They return false to end the
  // parse, which happens only when the sink wants no more records. Malformed input throws
  // Error(bad_data).
  bool null() { return depth_ == outer_ + 1 || other_value("null"); }
  bool boolean(bool) { return other_value("a boolean"); }
  bool number_integer(std::int64_t) { return other_value("a number"); }
  bool number_unsigned(std::uint64_t) { return other_value("a number"); }
  bool number_float(double, const std::string&) { return other_value("a number"); }
  bool binary(std::vector<std::uint8_t>&) { return other_value("binary"); }

  bool string(std::string& value) {
    if (depth_ != outer_ + 1 || field_ == nullptr) return other_value("a string");
    if (value.size() > longest_field) {
      refuse(fmt::format("`{}` has {} bytes; at most {} are accepted", field_name_, value.size(),
                         longest_field));
    }
    *field_ = std::move(value);
    if (field_ == &record_.instruction) has_instruction_ = true;
    if (field_ == &record_.output) has_output_ = true;
    return true;
  }

  bool key(std::string& name) {
    if (depth_ != outer_ + 1) return true;
    field_ = nullptr;
    if (name == "instruction") field_ = &record_.instruction;
    if (name == "input") field_ = &record_.input;
    if (name == "output") field_ = &record_.output;
    if (field_ != nullptr) field_name_ = name;
    return true;
  }

  bool start_object(std::size_t) {
    if (depth_ < outer_) refuse("not a list of records, but an object");
    if (depth_ > outer_) other_value("an object");
    if (depth_ == outer_) {
      record_ = {};
      has_instruction_ = has_output_ = false;
      field_ = nullptr;
    }
    return enter();
  }

  bool end_object() {
    --depth_;
    if (depth_ != outer_) return true;
    if (!has_instruction_) refuse_format("no `instruction`");
    if (!has_output_) refuse_format("no `output`");
    ++records_;
    return sink_(record_);
  }

  bool start_array(std::size_t) {
    if (depth_ == outer_ && outer_ == 0) {
      refuse(
          fmt::format("not a record, but a list: if the file is one list of records, name it "
                      "json:{}",
                      input_.file));
    }
    if (depth_ >= outer_) other_value("a list");
    return enter();
  }

  bool end_array() {
    --depth_;
    return true;
  }

  // `read` is the number of bytes that the parser has read, including the byte that caused the
  // error.
  bool parse_error(std::size_t read, const std::string&, const nlohmann::detail::exception& error) {
    refuse(reason_of(error.what()), read > 0 ? read - 1 : 0);
  }

 private:
  bool enter() {
    if (++depth_ > deepest) refuse(fmt::format("nested deeper than {} levels", deepest));
    return true;
  }

  // Handles a value that fills no field: accepted under ignored keys, an error elsewhere.
  bool other_value(std::string_view kind) {
    if (depth_ < outer_) refuse(fmt::format("not a list of records, but {}", kind));
    if (depth_ == outer_) refuse(fmt::format("not a record, but {}", kind));
    if (depth_ == outer_ + 1 && field_ != nullptr) {
      refuse(fmt::format("`{}` is not a string, but {}", field_name_, kind));
    }
    return true;
  }

  // Refuses a record that has another format, which may be one that atoll-data reads.
  [[noreturn]] void refuse_format(std::string_view reason) const {
    refuse(fmt::format("{}, so this is not Alpaca; for other formats, {}", reason,
                       conversion_hint(input_.file)));
  }
  [[noreturn]] void refuse(const std::string& reason) const {
    refuse(reason, static_cast<std::size_t>(input_.reached - input_.text.data()));
  }
  [[noreturn]] void refuse(const std::string& reason, std::size_t byte) const {
    const bool in_record = outer_ > 0 && depth_ > 0;
    fail(ErrorCode::bad_data, "{}byte {}: {}{}", input_.place,
         input_.base + std::min(byte, input_.text.size()),
         in_record ? fmt::format("record {}: ", records_ + 1) : "", reason);
  }

  int outer_;
  const RecordSink& sink_;
  const Input& input_;
  int depth_ = 0;  // open lists and objects
  std::int64_t records_ = 0;
  AlpacaRecord record_;
  bool has_instruction_ = false;
  bool has_output_ = false;
  std::string* field_ = nullptr;  // member of record_ that receives the next value
  std::string field_name_;
};

// Parses the text. Returns false if the sink wants no more records. Throws Error(bad_data) with
// `place` and the offset of the byte. `base` is the offset of the first byte of the text.
bool parse(const Source& source, Layout layout, const RecordSink& sink, const std::string& place,
           std::size_t base = 0) {
  const std::string_view text = source.text;
  Input input{text, place, base, source.file, text.data()};
  AlpacaEvents events(layout, sink, input);
  const Cursor first(text.data(), &input.reached);
  const Cursor last(text.data() + text.size(), &input.reached);
  return nlohmann::json::sax_parse(first, last, &events);
}

}  // namespace

void read_alpaca_json(const Source& source, const RecordSink& sink) {
  parse(source, Layout::list, sink, fmt::format("{}: ", source.file));
}

void read_alpaca_jsonl(const Source& source, const RecordSink& sink) {
  std::size_t begin = 0;
  for (std::int64_t number = 1; begin < source.text.size(); ++number) {
    const std::size_t end = std::min(source.text.find('\n', begin), source.text.size());
    const std::string_view line = source.text.substr(begin, end - begin);
    const bool blank = line.find_first_not_of(" \t\r") == std::string_view::npos;
    const auto place = fmt::format("{}: line {}, ", source.file, number);
    if (!blank && !parse({line, source.file}, Layout::record, sink, place, begin)) return;
    begin = end + 1;
  }
}

}  // namespace train
