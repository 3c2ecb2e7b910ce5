#include "core/untold.hpp"

#include <mutex>
#include <set>
#include <utility>

#include "core/errors.hpp"
#include "core/log.hpp"

namespace atoll_v1::atoll {
namespace {

struct UntoldNotices {
  // Recursive, because a callback can end a stream whose error is untold as well.
  std::recursive_mutex mutex;
  std::set<const UntoldNotice::Callback*> callbacks;
};

// Never destroyed, since static objects of the program can own streams.
UntoldNotices& untold_notices() {
  static auto* const all = new UntoldNotices;
  return *all;
}

}  // namespace

UntoldNotice::UntoldNotice(Callback callback) : callback_(std::move(callback)) {
  const std::lock_guard lock(untold_notices().mutex);
  untold_notices().callbacks.insert(&callback_);
}

UntoldNotice::~UntoldNotice() {
  const std::lock_guard lock(untold_notices().mutex);
  untold_notices().callbacks.erase(&callback_);
}

void report_untold(std::string_view text) noexcept {
  try {
    const std::lock_guard lock(untold_notices().mutex);
    bool is_news = untold_notices().callbacks.empty();
    for (const auto* callback : untold_notices().callbacks) is_news = (*callback)(text) || is_news;
    if (is_news) log::error("{}", text);
  } catch (const std::exception& problem) {
    log::error("cannot report an error of a stream: {}", text_of(problem));
  }
}

}  // namespace atoll_v1::atoll
