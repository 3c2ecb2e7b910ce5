// Uses the events of sax_parse(), which take linear time. parse() with a callback examines all
// values of an object again at the end of each, so its time grows with the square of their number.
#include "checkpoint/bounded_json.hpp"

#include <fmt/format.h>

#include <utility>
#include <vector>

#include "checkpoint/files.hpp"

namespace atoll_v1::atoll::fsdp {
namespace {

using Json = nlohmann::json;

class DocumentEvents {
 public:
  DocumentEvents(const std::filesystem::path& file, JsonLimits limits, const JsonMember& member)
      : file_(file), limits_(limits), member_(member) {}

  Json take() { return std::move(root_); }

  bool null() { return add(nullptr); }
  bool boolean(bool value) { return add(value); }
  bool number_integer(Json::number_integer_t value) { return add(value); }
  bool number_unsigned(Json::number_unsigned_t value) { return add(value); }
  bool number_float(Json::number_float_t value, const std::string&) { return add(value); }
  bool string(std::string& value) { return add(std::move(value)); }
  bool binary(Json::binary_t&) { return false; }
  bool start_object(std::size_t) { return open(Json::object()); }
  bool end_object() { return close(); }
  bool start_array(std::size_t) { return open(Json::array()); }
  bool end_array() { return close(); }
  bool key(std::string& name) {
    const auto [place, inserted] = open_.back()->emplace(std::move(name), nullptr);
    if (!inserted)
      fail(0, fmt::format("the key {} appears twice in an object", Json(place.key()).dump()));
    slot_ = &place.value();
    return true;
  }
  bool parse_error(std::size_t position, const std::string&, const Json::exception&) {
    fail(position, "the text is not JSON");
  }

 private:
  [[noreturn]] void fail(std::uint64_t position, const std::string& what) const {
    throw bad(file_, "byte {}: {}", limits_.first_byte + position, what);
  }
  // Stores the new value in its list or object, or as the root, and returns where it is.
  Json& place(Json value) {
    if (++values_ > limits_.values)
      fail(0, fmt::format("the JSON has more than {} values", limits_.values));
    if (open_.empty()) return root_ = std::move(value);
    if (open_.back()->is_object()) return *slot_ = std::move(value);
    return open_.back()->emplace_back(std::move(value));
  }
  bool add(Json value) {
    place(std::move(value));
    return finish();
  }
  bool open(Json value) {
    if (open_.size() == limits_.depth)
      fail(0, fmt::format("the JSON is nested more than {} deep", limits_.depth));
    open_.push_back(&place(std::move(value)));
    return true;
  }
  bool close() {
    open_.pop_back();
    return finish();
  }
  // Passes a complete member of the outermost object to member_, and forgets it.
  bool finish() {
    if (!member_ || open_.size() != 1 || !root_.is_object()) return true;
    member_(root_.begin().key(), root_.begin().value());
    root_.clear();
    return true;
  }

  const std::filesystem::path& file_;
  JsonLimits limits_;
  const JsonMember& member_;
  std::size_t values_ = 0;
  Json root_;
  std::vector<Json*> open_;  // the objects and lists around the next value, outermost first
  Json* slot_ = nullptr;     // the place of the next value in an object
};

}  // namespace

nlohmann::json parse_bounded_json(std::string_view text, const std::filesystem::path& file,
                                  JsonLimits limits, const JsonMember& member) {
  DocumentEvents events(file, limits, member);
  Json::sax_parse(text.begin(), text.end(), &events);
  return events.take();
}

}  // namespace atoll_v1::atoll::fsdp
