// Writes flight files as JSON and reads them back. The input is untrusted: every entry is checked
// as soon as the parser leaves it, so that errors have a byte offset and no large document is
// built.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <fstream>
#include <iterator>
#include <limits>
#include <nlohmann/json.hpp>

#include "atoll/error.hpp"
#include "atoll/flight.hpp"

namespace atoll_v1::atoll {
namespace {

// Keeps the order of the fields, because people read the files too.
using Ordered = nlohmann::ordered_json;
using Json = nlohmann::json;

constexpr int version = 1;
constexpr int entry_depth = 2;  // nesting depth of an object in one of the lists
constexpr int max_depth = 4;
constexpr std::array states = {FlightState::enqueued, FlightState::started, FlightState::completed,
                               FlightState::failed};

Ordered json_of(const FlightCommunicator& c) {
  return {{"id", c.id},
          {"name", c.name},
          {"backend", c.backend},
          {"rank", c.rank},
          {"ranks", c.ranks},
          {"closed", c.closed},
          {"enqueued", c.enqueued},
          {"completed", c.completed},
          {"collectives_enqueued", c.collectives_enqueued},
          {"collectives_completed", c.collectives_completed}};
}

Ordered json_of(const FlightOperation& o) {
  return {{"number", o.number},
          {"communicator", o.communicator},
          {"kind", o.kind},
          {"part_of", o.part_of},
          {"sequence", o.sequence},
          {"collective", o.collective},
          {"dtype", o.dtype},
          {"op", o.op},
          {"count", o.count},
          {"bytes", o.bytes},
          {"peer", o.peer},
          {"state", name(o.state)},
          {"enqueued_ns", o.enqueued_ns},
          {"started_ns", o.started_ns},
          {"finished_ns", o.finished_ns},
          {"error", o.error}};
}

// An iterator over bytes that stores how far the parser has read.
class Position {
 public:
  using iterator_category = std::input_iterator_tag;
  using value_type = char;
  using difference_type = std::ptrdiff_t;
  using pointer = const char*;
  using reference = const char&;

  Position(const char* at, const char** reached) : at_(at), reached_(reached) {}
  reference operator*() const { return *at_; }
  Position& operator++() {
    *reached_ = ++at_;
    return *this;
  }
  Position operator++(int) {
    const Position before = *this;
    ++*this;
    return before;
  }
  bool operator==(const Position& other) const { return at_ == other.at_; }
  bool operator!=(const Position& other) const { return at_ != other.at_; }

 private:
  const char* at_;
  const char** reached_;
};

class Reader {
 public:
  Reader(std::string_view text, std::string_view file)
      : text_(text), file_(file), reached_(text.data()) {}

  FlightLog read();

 private:
  [[noreturn]] void bad(std::size_t offset, std::string_view what) const {
    throw Error(ErrorCode::bad_data, fmt::format("{}: byte {}: {}", file_, offset, what));
  }
  [[noreturn]] void bad_here(std::string_view what) const {
    bad(static_cast<std::size_t>(reached_ - text_.data()), what);
  }

  bool examine(int depth, Json::parse_event_t event, Json& value);
  void add_communicator(const Json& entry);
  void add_operation(const Json& entry);
  void read_head(const Json& head);
  void check() const;

  const Json& field(const Json& entry, const char* key) const;
  std::string text(const Json& entry, const char* key) const;
  bool flag(const Json& entry, const char* key) const;
  template <class T>
  T number(const Json& entry, const char* key, T least, T most) const {
    const Json& value = field(entry, key);
    if (!value.is_number_integer()) bad_here(fmt::format("{} is not a whole number", key));
    return number_of<T>(value, key, least, most);
  }
  template <class T>
  T number_of(const Json& value, const char* key, T least, T most) const {
    bool fine = false;
    if (value.is_number_unsigned()) {
      const auto n = value.get<std::uint64_t>();
      fine = std::cmp_greater_equal(n, least) && std::cmp_less_equal(n, most);
    } else {
      const auto n = value.get<std::int64_t>();
      fine = std::cmp_greater_equal(n, least) && std::cmp_less_equal(n, most);
    }
    if (!fine) bad_here(fmt::format("{} is not from {} to {}", key, least, most));
    return value.get<T>();
  }
  std::uint64_t natural(const Json& entry, const char* key) const {
    return number<std::uint64_t>(entry, key, 0, std::numeric_limits<std::int64_t>::max());
  }
  std::int64_t time(const Json& entry, const char* key) const {
    return number<std::int64_t>(entry, key, 0, std::numeric_limits<std::int64_t>::max());
  }

  static constexpr int most_int = std::numeric_limits<int>::max();

  std::string_view text_;
  std::string_view file_;
  const char* reached_;
  std::string section_;  // key of the list that is being read
  FlightLog log_;
};

const Json& Reader::field(const Json& entry, const char* key) const {
  const auto found = entry.find(key);
  if (found == entry.end()) bad_here(fmt::format("{} is missing", key));
  return *found;
}

std::string Reader::text(const Json& entry, const char* key) const {
  const Json& value = field(entry, key);
  if (!value.is_string()) bad_here(fmt::format("{} is not a string", key));
  const auto& result = value.get_ref<const std::string&>();
  if (result.size() > max_flight_text) {
    bad_here(fmt::format("{} has {} bytes; at most {} are allowed", key, result.size(),
                         max_flight_text));
  }
  const bool printable =
      std::ranges::none_of(result, [](char c) { return static_cast<unsigned char>(c) < ' '; });
  if (!printable) bad_here(fmt::format("{} has control characters", key));
  return result;
}

bool Reader::flag(const Json& entry, const char* key) const {
  const Json& value = field(entry, key);
  if (!value.is_boolean()) bad_here(fmt::format("{} is not true or false", key));
  return value.get<bool>();
}

// Callback of the parser for every event. It consumes the entries of the lists and returns false
// for them, so that the parser does not keep them.
bool Reader::examine(int depth, Json::parse_event_t event, Json& value) {
  if (depth > max_depth) bad_here("nested too deeply");
  if (event == Json::parse_event_t::key && depth == 1) section_ = value.get<std::string>();
  if (event != Json::parse_event_t::object_end || depth != entry_depth) return true;
  if (section_ == "communicators") {
    add_communicator(value);
    return false;
  }
  if (section_ == "operations") {
    add_operation(value);
    return false;
  }
  return true;
}

void Reader::add_communicator(const Json& entry) {
  if (log_.communicators.size() >= max_flight_communicators) bad_here("too many communicators");
  FlightCommunicator c;
  c.id = text(entry, "id");
  c.name = text(entry, "name");
  c.backend = text(entry, "backend");
  const Json& ranks = field(entry, "ranks");
  if (!ranks.is_array() || ranks.empty() || ranks.size() > max_flight_ranks) {
    bad_here(fmt::format("ranks is not a list of 1 to {} numbers", max_flight_ranks));
  }
  for (const Json& rank : ranks) {
    if (!rank.is_number_integer()) bad_here("ranks has an element that is not a whole number");
    c.ranks.push_back(number_of<int>(rank, "ranks", 0, most_int));
  }
  c.rank = number<int>(entry, "rank", 0, static_cast<int>(c.ranks.size()) - 1);
  c.closed = flag(entry, "closed");
  c.enqueued = natural(entry, "enqueued");
  c.completed = natural(entry, "completed");
  c.collectives_enqueued = natural(entry, "collectives_enqueued");
  c.collectives_completed = natural(entry, "collectives_completed");
  log_.communicators.push_back(std::move(c));
}

void Reader::add_operation(const Json& entry) {
  if (log_.operations.size() >= max_flight_operations) bad_here("too many operations");
  FlightOperation o;
  o.number = natural(entry, "number");
  o.communicator = number<std::size_t>(entry, "communicator", 0, max_flight_communicators - 1);
  o.kind = text(entry, "kind");
  if (entry.contains("part_of")) o.part_of = text(entry, "part_of");
  o.sequence = natural(entry, "sequence");
  o.collective =
      number<std::int64_t>(entry, "collective", -1, std::numeric_limits<std::int64_t>::max());
  o.dtype = text(entry, "dtype");
  o.op = text(entry, "op");
  o.count = natural(entry, "count");
  o.bytes = natural(entry, "bytes");
  o.peer = number<int>(entry, "peer", -1, most_int);
  const std::string state = text(entry, "state");
  const auto known = std::ranges::find(states, state, [](FlightState s) { return name(s); });
  if (known == states.end()) bad_here("state is not one of enqueued, started, completed, failed");
  o.state = *known;
  o.enqueued_ns = time(entry, "enqueued_ns");
  o.started_ns = time(entry, "started_ns");
  o.finished_ns = time(entry, "finished_ns");
  o.error = text(entry, "error");
  log_.operations.push_back(std::move(o));
}

void Reader::read_head(const Json& head) {
  if (!head.is_object()) bad(0, "the file is not a JSON object");
  const int found = number<int>(head, "atoll_flight", 0, most_int);
  if (found != version) {
    bad_here(fmt::format("the file has version {}; this library reads version {}", found, version));
  }
  log_.size = number<int>(head, "size", 1, static_cast<int>(max_flight_ranks));
  log_.rank = number<int>(head, "rank", 0, log_.size - 1);
  log_.host = text(head, "host");
  log_.pid = number<int>(head, "pid", 0, most_int);
  log_.reason = text(head, "reason");
  log_.failure = text(head, "failure");
  log_.written_ns = time(head, "written_ns");
  log_.monotonic_ns = time(head, "monotonic_ns");
  for (const char* list : {"communicators", "operations"}) {
    const Json& value = field(head, list);
    // examine() has consumed every object, so the list must be empty.
    if (!value.is_array() || !value.empty())
      bad_here(fmt::format("{} is not a list of objects", list));
  }
}

void Reader::check() const {
  for (const FlightOperation& operation : log_.operations) {
    if (operation.communicator >= log_.communicators.size()) {
      bad_here(fmt::format("operation {} is on communicator {} of {}", operation.number,
                           operation.communicator, log_.communicators.size()));
    }
  }
  for (const FlightCommunicator& communicator : log_.communicators) {
    if (std::ranges::any_of(communicator.ranks, [&](int r) { return r >= log_.size; }) ||
        communicator.ranks[static_cast<std::size_t>(communicator.rank)] != log_.rank) {
      bad_here(fmt::format("the ranks of communicator {} are not those of rank {} of {}",
                           communicator.id, log_.rank, log_.size));
    }
  }
}

FlightLog Reader::read() {
  if (text_.size() > max_flight_bytes) {
    bad(0, fmt::format("the file has {} bytes; at most {} are allowed", text_.size(),
                       max_flight_bytes));
  }
  const char* const end = text_.data() + text_.size();
  Json head;
  try {
    head = Json::parse(Position(text_.data(), &reached_), Position(end, &reached_),
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

}  // namespace

std::string_view name(FlightState state) noexcept {
  switch (state) {
    case FlightState::enqueued:
      return "enqueued";
    case FlightState::started:
      return "started";
    case FlightState::completed:
      return "completed";
    case FlightState::failed:
      return "failed";
  }
  return "?";
}

std::string to_json(const FlightLog& log) {
  const auto dumped = [](const Ordered& json) {
    return json.dump(-1, ' ', false, Ordered::error_handler_t::replace);
  };
  const auto list = [&](const auto& entries) {
    std::string text;
    for (const auto& entry : entries) {
      text += fmt::format("{}\n    {}", text.empty() ? "" : ",", dumped(json_of(entry)));
    }
    return text;
  };
  const Ordered head = {{"atoll_flight", version},
                        {"rank", log.rank},
                        {"size", log.size},
                        {"host", log.host},
                        {"pid", log.pid},
                        {"reason", log.reason},
                        {"failure", log.failure},
                        {"written_ns", log.written_ns},
                        {"monotonic_ns", log.monotonic_ns}};
  std::string text = dumped(head);
  text.pop_back();  // the closing brace; the lists follow, one entry per line
  return fmt::format("{},\n  \"communicators\":[{}],\n  \"operations\":[{}]}}\n", text,
                     list(log.communicators), list(log.operations));
}

FlightLog parse_flight(std::string_view text, std::string_view file) {
  return Reader(text, file).read();
}

FlightLog read_flight(const std::filesystem::path& file) {
  std::error_code problem;
  if (!std::filesystem::is_regular_file(file, problem)) {
    throw Error(ErrorCode::io,
                fmt::format("{}: {}", file.string(), problem ? problem.message() : "not a file"));
  }
  std::ifstream in(file, std::ios::binary);
  std::string text(max_flight_bytes + 1, '\0');
  in.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (!in.is_open() || in.bad()) {
    throw Error(ErrorCode::io, fmt::format("cannot read {}", file.string()));
  }
  text.resize(static_cast<std::size_t>(in.gcount()));
  return parse_flight(text, file.string());
}

}  // namespace atoll_v1::atoll
