#include "flight/responders.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "core/world_internals.hpp"

namespace atoll_v1::atoll {
namespace {

// A question is this word, the subject, a line break and the detail. Notices begin with another
// word, and inquiries with a number.
constexpr std::string_view about_word = "about ";

}  // namespace

void Responders::add(const std::string& subject, Respond respond) {
  const std::lock_guard lock(mutex_);
  responders_[subject] = std::move(respond);
}

void Responders::remove(const std::string& subject) {
  const std::lock_guard lock(mutex_);
  responders_.erase(subject);
}

bool Responders::respond(std::string_view question, std::string& answer) {
  if (!question.starts_with(about_word)) return false;
  question.remove_prefix(about_word.size());
  const std::size_t end = std::min(question.find('\n'), question.size());
  const std::string_view detail = question.substr(std::min(end + 1, question.size()));
  const std::lock_guard lock(mutex_);
  const auto found = responders_.find(question.substr(0, end));
  answer = found == responders_.end() ? std::string() : found->second(detail);
  return true;
}

std::vector<store::Answered> ask_responders(World& world, std::string_view subject,
                                            std::string_view detail,
                                            std::chrono::milliseconds patience) {
  return WorldInternals::store(world).ask(fmt::format("{}{}\n{}", about_word, subject, detail),
                                          patience);
}

}  // namespace atoll_v1::atoll
