#include "flight/notices.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "core/text.hpp"
#include "core/world_internals.hpp"

namespace atoll_v1::atoll {
namespace {

// A notice is this word, the ranks that it is for ("0,2"), a blank, the subject, a line break and
// the text. Other questions begin with another word or a number.
constexpr std::string_view notice_word = "notice ";

struct Parts {
  std::string_view first, rest;
};
Parts divide(std::string_view text, char separator) {
  const std::size_t end = std::min(text.find(separator), text.size());
  return {text.substr(0, end), text.substr(std::min(end + 1, text.size()))};
}

struct Numbered {
  std::string_view name;
  std::uint64_t number;
};
std::optional<Numbered> parse_subject(std::string_view subject) {
  const std::size_t slash = subject.rfind('/');
  if (slash == std::string_view::npos) return std::nullopt;
  const auto number = number_from<std::uint64_t>(subject.substr(slash + 1));
  if (!number) return std::nullopt;
  return Numbered{subject.substr(0, slash), *number};
}

}  // namespace

void Notices::expect(const std::string& subject, Callback callback) {
  const std::lock_guard lock(mutex_);
  if (const auto early = early_.find(subject); early != early_.end()) {
    callback(early->second);
    early_.erase(early);
  }
  callbacks_[subject] = std::move(callback);
  if (const auto numbered = parse_subject(subject))
    next_[std::string(numbered->name)] = numbered->number + 1;
}

void Notices::forget(const std::string& subject) {
  const std::lock_guard lock(mutex_);
  callbacks_.erase(subject);
}

// A subject that was expected and has no callback any more is over, so a notice about it would stay
// forever.
bool Notices::was_expected(std::string_view subject) const {
  const auto numbered = parse_subject(subject);
  if (!numbered) return false;
  const auto found = next_.find(numbered->name);
  return found != next_.end() && numbered->number < found->second;
}

bool Notices::deliver(std::string_view question) {
  if (!question.starts_with(notice_word)) return false;
  const auto [ranks, message] = divide(question.substr(notice_word.size()), ' ');
  const auto [subject, text] = divide(message, '\n');
  const auto is_own = [this](std::string_view rank) { return number_from<int>(rank) == rank_; };
  if (std::ranges::none_of(split(ranks, ','), is_own)) return true;
  const std::lock_guard lock(mutex_);
  const auto found = callbacks_.find(subject);
  if (found != callbacks_.end()) {
    found->second(std::string(text));
  } else if (!was_expected(subject)) {
    early_.insert_or_assign(std::string(subject), std::string(text));
  }
  return true;
}

std::size_t Notices::waiting() const {
  const std::lock_guard lock(mutex_);
  return early_.size();
}

void send_notice(World& world, std::span<const int> ranks, const Notice& notice,
                 std::chrono::milliseconds patience) {
  WorldInternals::store(world).ask(
      fmt::format("{}{} {}\n{}", notice_word, fmt::join(ranks, ","), notice.subject, notice.text),
      patience);
}

}  // namespace atoll_v1::atoll
