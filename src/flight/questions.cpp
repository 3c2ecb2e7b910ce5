#include "flight/questions.hpp"

namespace atoll_v1::atoll {

void Questions::add(const std::string& name, Handler handler) {
  const std::lock_guard lock(mutex_);
  std::erase_if(early_, [&](const auto& question) {
    if (question.first != name) return false;
    handler(question.second);
    return true;
  });
  handlers_[name] = std::move(handler);
}

void Questions::remove(const std::string& name) {
  const std::lock_guard lock(mutex_);
  handlers_.erase(name);
}

std::string Questions::answer(std::string_view name, std::string_view detail) {
  const std::lock_guard lock(mutex_);
  if (const auto found = handlers_.find(name); found != handlers_.end()) {
    const Handler handler = found->second;  // a copy, because the call may remove the handler
    return handler(detail);
  }
  early_.emplace_back(name, detail);
  if (early_.size() > most_early) early_.pop_front();
  return {};
}

}  // namespace atoll_v1::atoll
