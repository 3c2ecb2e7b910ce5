// Writes flight files as JSON and reads them back. The input is untrusted: every entry is checked
// as soon as it has been parsed and is then dropped, so that errors have a byte offset and no large
// document is built.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <concepts>
#include <cstdint>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <ranges>

#include "atoll/flight.hpp"
#include "core/errors.hpp"
#include "core/terminal_safe.hpp"
#include "flight/explanation.hpp"

namespace atoll_v1::atoll {
namespace {

// JSON that keeps the order of its fields, because people also read flight files.
using Ordered = nlohmann::ordered_json;
using Json = nlohmann::json;

constexpr int file_version = 1;
constexpr int entry_depth = 2;  // depth of the entries of a list in the JSON document
constexpr int max_depth = 4;
constexpr std::int64_t most_int64 = std::numeric_limits<std::int64_t>::max();
constexpr std::int64_t most_int = std::numeric_limits<int>::max();
constexpr std::int64_t most_rank = static_cast<std::int64_t>(max_flight_ranks) - 1;
// Names of the states of operations in a flight file, indexed by FlightState.
constexpr std::array<std::string_view, 4> states = {"enqueued", "started", "completed", "failed"};

// Calls field(key, value) for each field of an object, in the order of the file. For a number with
// a range other than 0 to 2^63 - 1, the call also passes the least and the largest value.
void for_each_field(auto& c, const auto& field)
  requires requires { c.backend; }
{
  field("id", c.id);
  field("name", c.name);
  field("backend", c.backend);
  field("ranks", c.ranks);
  field("rank", c.rank, 0, static_cast<std::int64_t>(c.ranks.size()) - 1);
  field("closed", c.closed);
  field("enqueued", c.enqueued);
  field("completed", c.completed);
  field("collectives_enqueued", c.collectives_enqueued);
  field("collectives_completed", c.collectives_completed);
}
void for_each_field(auto& o, const auto& field)
  requires requires { o.kind; }
{
  field("number", o.number);
  field("communicator", o.communicator, 0, std::int64_t{max_flight_communicators} - 1);
  field("kind", o.kind);
  field("part_of", o.part_of);
  field("sequence", o.sequence);
  field("collective", o.collective, -1, most_int64);
  field("dtype", o.dtype);
  field("op", o.op);
  field("count", o.count);
  field("bytes", o.bytes);
  field("peer", o.peer, -1, most_int);
  field("state", o.state);
  field("enqueued_ns", o.enqueued_ns);
  field("started_ns", o.started_ns);
  field("finished_ns", o.finished_ns);
  field("error", o.error);
}

void for_each_field(auto& s, const auto& field)
  requires requires { s.frames; }
{
  field("thread", s.thread, 0, most_int);
  field("role", s.role);
  field("frames", s.frames);
}

void for_each_field(auto& l, const auto& field)
  requires requires { l.written_ns; }
{
  field("rank", l.rank, 0, most_rank);
  field("size", l.size, 1, most_rank + 1);
  field("host", l.host);
  field("pid", l.pid, 0, most_int);
  field("reason", l.reason);
  field("failure", l.failure);
  field("written_ns", l.written_ns);
  field("monotonic_ns", l.monotonic_ns);
  field("step", l.step, -1, most_int64);
}

constexpr std::array<std::string_view, 3> lists = {"communicators", "operations", "stacks"};

bool is_list(std::string_view key) { return std::ranges::find(lists, key) != lists.end(); }

// True for the keys of a flight file's outermost object.
bool is_known(std::string_view key) {
  bool found = key == "atoll_flight" || is_list(key);
  FlightLog log;
  for_each_field(log, [&](const char* field, auto&, auto...) { found = found || key == field; });
  return found;
}

// Files of older versions lack these fields, so readers do not require them.
bool is_optional(std::string_view key) {
  return key == "part_of" || key == "step" || key == "stacks";
}

class Reader {
 public:
  Reader(std::string_view text, std::string_view file)
      : text_(text), file_(file), reached_(text.data()) {}

  FlightLog read();

 private:
  template <class... Args>
  [[noreturn]] void bad(std::size_t offset, fmt::format_string<Args...> what,
                        Args&&... args) const {
    throw make_error(ErrorCode::bad_data, "{}: byte {}: {}", file_, offset,
                     fmt::format(what, std::forward<Args>(args)...));
  }
  template <class... Args>
  [[noreturn]] void bad_here(fmt::format_string<Args...> what, Args&&... args) const {
    bad(static_cast<std::size_t>(reached_ - text_.data()), what, std::forward<Args>(args)...);
  }

  bool examine(int depth, Json::parse_event_t event, Json& value);
  template <class Entry>
  void add_to(std::vector<Entry>& entries, std::size_t most, const Json& object);
  void read_head(const Json& head);
  void check() const;

  const Json& field(const Json& object, const char* key) const {
    const auto found = object.find(key);
    if (found == object.end()) bad_here("{} is missing", key);
    return *found;
  }
  void read_fields(const Json& object, auto& entry) const {
    for_each_field(entry, [&](const char* key, auto& value, auto... limits) {
      if (!is_optional(key) || object.contains(key))
        read(field(object, key), key, value, limits...);
    });
  }
  // The functions below read the value of the field `key`.
  void read(const Json& json, const char* key, std::string& value) const;
  void read(const Json& json, const char* key, bool& value) const {
    if (!json.is_boolean()) bad_here("field {} is not true or false", key);
    value = json.get<bool>();
  }
  void read(const Json& json, const char* key, FlightState& value) const {
    std::string text;
    read(json, key, text);
    const auto known = std::ranges::find(states, text);
    if (known == states.end()) bad_here("state is not one of {}", fmt::join(states, ", "));
    value = static_cast<FlightState>(known - states.begin());
  }
  void read(const Json& json, const char* key, std::vector<int>& ranks) const {
    if (!json.is_array() || json.empty() || json.size() > max_flight_ranks) {
      bad_here("field {} is not a list of 1 to {} numbers", key, max_flight_ranks);
    }
    for (const Json& rank : json) read(rank, key, ranks.emplace_back(), 0, most_int);
  }
  void read(const Json& json, const char* key, std::vector<std::string>& texts) const {
    if (!json.is_array() || json.size() > max_flight_frames) {
      bad_here("field {} is not a list of at most {} texts", key, max_flight_frames);
    }
    for (const Json& text : json) read(text, key, texts.emplace_back());
  }
  template <std::integral T>
  void read(const Json& json, const char* key, T& value, std::int64_t least = 0,
            std::int64_t most = most_int64) const {
    if (!json.is_number_integer()) bad_here("{} is not a whole number", key);
    const bool fine = json.is_number_unsigned()
                          ? std::cmp_greater_equal(json.get<std::uint64_t>(), least) &&
                                std::cmp_less_equal(json.get<std::uint64_t>(), most)
                          : json.get<std::int64_t>() >= least && json.get<std::int64_t>() <= most;
    if (!fine) bad_here("{} is not from {} to {}", key, least, most);
    value = json.get<T>();
  }

  std::string_view text_;
  std::string_view file_;
  const char* reached_;
  std::string section_;  // key of the JSON list that is being read
  FlightLog log_;
};

void Reader::read(const Json& json, const char* key, std::string& value) const {
  if (!json.is_string()) bad_here("{} is not a string", key);
  value = json.get<std::string>();
  if (value.size() > max_flight_text) {
    bad_here("field {} has {} bytes; at most {} are allowed", key, value.size(), max_flight_text);
  }
  const bool printable =
      std::ranges::none_of(value, [](char c) { return static_cast<unsigned char>(c) < ' '; });
  if (!printable) bad_here("{} has control characters", key);
}

// The JSON parser calls this function for every event. The function reads each entry of a list and
// then returns false, so that the parser does not keep the entry. The function skips
// unknown fields, and rejects any list element that is not an object as soon as it starts.
// Otherwise parsing would take quadratic time: at the end of each object, the parser searches all
// members kept in the parent.
bool Reader::examine(int depth, Json::parse_event_t event, Json& value) {
  using Event = Json::parse_event_t;
  if (depth > max_depth) bad_here("nested too deeply");
  const bool opens = event == Event::object_start || event == Event::array_start;
  if (depth == 0 && event == Event::array_start) bad(0, "the file is not a JSON object");
  if (depth == 0) return true;
  if (depth == 1 && event == Event::key) {
    section_ = value.get<std::string>();
    return is_known(section_);
  }
  if (!is_list(section_)) return depth == 1 && !opens;
  const bool is_no_entry = event == Event::value || event == Event::array_start;
  if (depth == 1 ? event == Event::object_start : depth == entry_depth && is_no_entry) {
    bad_here("field {} is not a list of objects", section_);
  }
  if (depth > entry_depth && (event == Event::object_start || (depth == max_depth && opens))) {
    bad_here("nested too deeply");
  }
  if (event != Event::object_end || depth != entry_depth) return true;
  if (section_ == "communicators") {
    add_to(log_.communicators, max_flight_communicators, value);
  } else if (section_ == "operations") {
    add_to(log_.operations, max_flight_operations, value);
  } else {
    add_to(log_.stacks, max_flight_stacks, value);
  }
  return false;
}

template <class Entry>
void Reader::add_to(std::vector<Entry>& entries, std::size_t most, const Json& object) {
  if (entries.size() >= most) bad_here("too many {}", section_);
  read_fields(object, entries.emplace_back());
}

void Reader::read_head(const Json& head) {
  if (!head.is_object()) bad(0, "the file is not a JSON object");
  int found = 0;
  read(field(head, "atoll_flight"), "atoll_flight", found, 0, most_int);
  if (found != file_version) {
    bad_here("the file has version {}; this library reads version {}", found, file_version);
  }
  read_fields(head, log_);
  if (log_.rank >= log_.size) bad_here("rank is not from 0 to {}", log_.size - 1);
  for (const std::string_view list : lists) {
    if (is_optional(list) && !head.contains(list)) continue;
    // The list is empty here, because examine() has read and removed every entry.
    if (!field(head, list.data()).is_array()) bad_here("field {} is not a list of objects", list);
  }
}

void Reader::check() const {
  for (const FlightOperation& operation : log_.operations) {
    if (operation.communicator >= log_.communicators.size()) {
      bad_here("operation {} refers to communicator {}; there are {}", operation.number,
               operation.communicator, log_.communicators.size());
    }
  }
  for (const FlightCommunicator& communicator : log_.communicators) {
    if (std::ranges::any_of(communicator.ranks, [&](int r) { return r >= log_.size; }) ||
        communicator.ranks[static_cast<std::size_t>(communicator.rank)] != log_.rank) {
      bad_here("communicator {} does not contain rank {} of {} at its position", communicator.id,
               log_.rank, log_.size);
    }
  }
}

FlightLog Reader::read() {
  if (text_.size() > max_flight_bytes) {
    bad(0, "the file has {} bytes; at most {} are allowed", text_.size(), max_flight_bytes);
  }
  auto bytes = std::views::transform(text_, [this](const char& byte) {
    reached_ = &byte + 1;  // end of the text that was read so far
    return byte;
  });
  Json head;
  try {
    head = Json::parse(bytes.begin(), bytes.end(),
                       [this](int depth, Json::parse_event_t event, Json& value) {
                         return examine(depth, event, value);
                       });
  } catch (const Json::parse_error& error) {
    bad(error.byte > 0 ? error.byte - 1 : 0, "the file is not JSON");
  } catch (const Json::exception&) {
    bad_here("a number is too large");
  }
  read_head(head);
  check();
  return std::move(log_);
}

std::string written(const std::string& text) { return flight_text(text); }
std::vector<std::string> written(const std::vector<std::string>& texts) {
  std::vector<std::string> result;
  for (const std::string& text : texts) result.push_back(flight_text(text));
  return result;
}
const auto& written(const auto& value) { return value; }

}  // namespace

std::string_view name(FlightState state) noexcept {
  return states[static_cast<std::size_t>(state)];
}

std::string flight_text(std::string_view text) {
  std::string shown = terminal_safe(text);
  std::size_t most = max_flight_text;
  if (shown.size() <= most) return shown;
  while (most > 0 && (static_cast<unsigned char>(shown[most]) & 0xc0) == 0x80) --most;
  shown.resize(most);
  return shown;
}

std::string to_json(const FlightLog& log) {
  const auto dumped = [](Ordered json, const auto& object) {
    for_each_field(object, [&](const char* key, const auto& value, auto...) {
      if constexpr (std::is_same_v<decltype(value), const FlightState&>) {
        json[key] = name(value);
      } else {
        json[key] = written(value);
      }
    });
    return json.dump(-1, ' ', false, Ordered::error_handler_t::replace);
  };
  const auto list = [&](const auto& entries) {
    std::string text;
    for (const auto& entry : entries) {
      text += fmt::format("{}\n    {}", text.empty() ? "" : ",", dumped({}, entry));
    }
    return text;
  };
  std::string text = dumped({{"atoll_flight", file_version}}, log);
  text.pop_back();  // removes the closing brace, because the lists follow
  text += fmt::format(",\n  \"communicators\":[{}],\n  \"operations\":[{}]",
                      list(log.communicators), list(log.operations));
  if (!log.stacks.empty()) text += fmt::format(",\n  \"stacks\":[{}]", list(log.stacks));
  return text + "}\n";
}

FlightLog parse_flight(std::string_view text, std::string_view file) {
  return Reader(text, file).read();
}

FlightLog read_flight(const std::filesystem::path& file) {
  std::error_code problem;
  if (!std::filesystem::is_regular_file(file, problem)) {
    throw make_error(ErrorCode::io, "{}: {}", file.string(),
                     problem ? problem.message() : "not a file");
  }
  std::ifstream in(file, std::ios::binary);
  std::string text(max_flight_bytes + 1, '\0');
  in.read(text.data(), static_cast<std::streamsize>(text.size()));
  require(in.is_open() && !in.bad(), ErrorCode::io, "cannot read {}", file.string());
  text.resize(static_cast<std::size_t>(in.gcount()));
  return parse_flight(text, file.string());
}

}  // namespace atoll_v1::atoll
