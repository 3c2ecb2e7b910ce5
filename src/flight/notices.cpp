#include "flight/notices.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "core/world_internals.hpp"

namespace atoll_v1::atoll {
namespace {

// A notice is this word, the subject, a line break and the text. Other questions begin with a
// number.
constexpr std::string_view word = "notice ";

}  // namespace

void Notices::expect(const std::string& subject, Callback callback) {
  const std::lock_guard lock(mutex_);
  if (const auto early = early_.find(subject); early != early_.end()) {
    callback(early->second);
    early_.erase(early);
  }
  callbacks_[subject] = std::move(callback);
}

void Notices::forget(const std::string& subject) {
  const std::lock_guard lock(mutex_);
  callbacks_.erase(subject);
}

bool Notices::deliver(std::string_view question) {
  if (!question.starts_with(word)) return false;
  question.remove_prefix(word.size());
  const std::size_t end = std::min(question.find('\n'), question.size());
  const std::string_view subject = question.substr(0, end);
  const std::string text(question.substr(std::min(end + 1, question.size())));
  const std::lock_guard lock(mutex_);
  const auto found = callbacks_.find(subject);
  if (found == callbacks_.end()) {
    early_.insert_or_assign(std::string(subject), text);
  } else {
    found->second(text);
  }
  return true;
}

void send_notice(World& world, std::string_view subject, std::string_view text,
                 std::chrono::milliseconds patience) {
  WorldInternals::store(world).ask(fmt::format("{}{}\n{}", word, subject, text), patience);
}

}  // namespace atoll_v1::atoll
