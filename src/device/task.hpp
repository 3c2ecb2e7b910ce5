// A callable that runs once. Unlike std::function it is move-only, and it does not allocate for
// callables of up to 64 bytes.
#pragma once

#include <cstddef>
#include <exception>
#include <memory>
#include <new>
#include <type_traits>
#include <utility>

namespace atoll_v1::atoll {

class Task {
 public:
  Task() noexcept = default;
  template <class Callable>
    requires(!std::is_same_v<std::remove_cvref_t<Callable>, Task>)
  Task(Callable&& callable) {  // NOLINT(google-explicit-constructor): any callable is a task
    using Stored = std::remove_cvref_t<Callable>;
    if constexpr (fits<Stored>) {
      new (storage_) Stored(std::forward<Callable>(callable));
      act_ = &act<Stored>;
    } else {
      auto boxed = [box = std::make_unique<Stored>(std::forward<Callable>(callable))] { (*box)(); };
      new (storage_) decltype(boxed)(std::move(boxed));
      act_ = &act<decltype(boxed)>;
    }
  }
  Task(Task&& other) noexcept { *this = std::move(other); }
  Task& operator=(Task&& other) noexcept {
    if (this != &other) {
      reset();
      act_ = std::exchange(other.act_, nullptr);
      if (act_ != nullptr) act_(Action::move, other.storage_, storage_);
    }
    return *this;
  }
  ~Task() { reset(); }

  void operator()() { act_(Action::run, storage_, nullptr); }
  // Destroys the callable and everything that it captured.
  void reset() noexcept {
    if (act_ != nullptr) std::exchange(act_, nullptr)(Action::destroy, storage_, nullptr);
  }

 private:
  enum class Action {
    run,
    move,
    destroy
  };
  static constexpr std::size_t capacity = 64;

  template <class Stored>
  static constexpr bool fits =
      sizeof(Stored) <= capacity && alignof(Stored) <= alignof(std::max_align_t) &&
      std::is_nothrow_move_constructible_v<Stored>;

  template <class Stored>
  static void act(Action action, std::byte* from, std::byte* to) {
    auto* stored = std::launder(reinterpret_cast<Stored*>(from));
    switch (action) {
      case Action::run:
        (*stored)();
        break;
      case Action::move:
        new (to) Stored(std::move(*stored));
        std::destroy_at(stored);
        break;
      case Action::destroy:
        std::destroy_at(stored);
        break;
    }
  }

  void (*act_)(Action, std::byte*, std::byte*) = nullptr;
  alignas(std::max_align_t) std::byte storage_[capacity];
};

// Exists while a failed stream destroys a task without running it. Destructors of the task's
// captures learn from error() why the task was dropped.
class DroppedTask {
 public:
  // A null `error` means that the task was not dropped. The error must outlive this object.
  explicit DroppedTask(const std::exception_ptr* error) noexcept
      : before_(std::exchange(current, error)) {}
  DroppedTask(const DroppedTask&) = delete;
  DroppedTask& operator=(const DroppedTask&) = delete;
  ~DroppedTask() { current = before_; }

  // Returns the error of the stream that drops a task on this thread now, or null.
  static std::exception_ptr error() { return current != nullptr ? *current : nullptr; }

 private:
  static inline thread_local const std::exception_ptr* current = nullptr;

  const std::exception_ptr* before_;
};

}  // namespace atoll_v1::atoll
