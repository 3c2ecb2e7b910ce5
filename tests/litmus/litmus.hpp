// Litmus tests: atoll's lock-free protocols on relacy's model of weak memory. A test is a relacy
// test suite: a few threads run the protocol, and relacy tries many interleavings, in which loads
// may also return old values where the C++ memory model allows it.
//
// The protocols are templates over the atomic type. Here that type is litmus::Atomic, which passes
// the memory orders of atoll's code to relacy. A control weakens one of these orders, and relacy
// must then find a failure: this shows that the test detects a wrong order.
#pragma once

// The standard headers come first, because relacy redefines names that they use.
#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <optional>
#include <ostream>
#include <streambuf>
#include <string>
#include <string_view>
#include <type_traits>

#include <relacy/relacy.hpp>

#undef memory_order_relaxed
#undef memory_order_consume
#undef memory_order_acquire
#undef memory_order_release
#undef memory_order_acq_rel
#undef memory_order_seq_cst
#undef new
#undef delete
#undef malloc
#undef calloc
#undef realloc
#undef free
#undef assert
#undef errno
#undef $

// Fails the current interleaving unless the condition is true.
#define LITMUS_CHECK(condition) RL_ASSERT(condition)

namespace litmus {

inline rl::memory_order relacy_order(std::memory_order order) {
  switch (order) {
    case std::memory_order_relaxed:
      return rl::mo_relaxed;
    case std::memory_order_consume:
      return rl::mo_consume;
    case std::memory_order_acquire:
      return rl::mo_acquire;
    case std::memory_order_release:
      return rl::mo_release;
    case std::memory_order_acq_rel:
      return rl::mo_acq_rel;
    case std::memory_order_seq_cst:
      return rl::mo_seq_cst;
  }
  std::abort();
}

// std::atomic on relacy's model. A control lowers the orders of one variable.
template <class T>
class Atomic {
 public:
  Atomic() : Atomic(T{}) {}
  Atomic(T value) { value_.store(number(value), rl::mo_relaxed, RL_INFO); }

  T load(std::memory_order order) const {
    return static_cast<T>(value_.load(relacy_order(std::min(order, loads_)), RL_INFO));
  }
  void store(T value, std::memory_order order) {
    value_.store(number(value), relacy_order(std::min(order, stores_)), RL_INFO);
  }
  T fetch_add(T value, std::memory_order order) {
    return value_.fetch_add(value, relacy_order(std::min(order, changes_)), RL_INFO);
  }
  T exchange(T value, std::memory_order order) {
    if (is_torn_) {
      const T before = load(std::memory_order_acquire);
      store(value, std::memory_order_release);
      return before;
    }
    return value_.exchange(value, relacy_order(std::min(order, changes_)), RL_INFO);
  }
  bool compare_exchange_weak(T& seen, T next, std::memory_order order) {
    if (is_torn_) return change_in_two_steps(seen, next);
    return value_.compare_exchange_weak(seen, next, relacy_order(std::min(order, changes_)),
                                        RL_INFO);
  }
  bool compare_exchange_weak(T& seen, T next, std::memory_order order, std::memory_order failure) {
    if (is_torn_) return change_in_two_steps(seen, next);
    return value_.compare_exchange_weak(seen, next, relacy_order(std::min(order, changes_)),
                                        RL_INFO, relacy_order(lowered(failure)), RL_INFO);
  }
  bool compare_exchange_strong(T& seen, T next, std::memory_order order,
                               std::memory_order failure) {
    if (is_torn_) return change_in_two_steps(seen, next);
    return value_.compare_exchange_strong(seen, next, relacy_order(std::min(order, changes_)),
                                          RL_INFO, relacy_order(lowered(failure)), RL_INFO);
  }

  // These functions weaken a protocol, for tests that must then fail: loads, stores or
  // read-modify-writes with a stronger memory order than `most` use `most`. The values of
  // std::memory_order rise in this order: relaxed, acquire, release, acq_rel, seq_cst.
  void lower_loads(std::memory_order most) { loads_ = most; }
  void lower_stores(std::memory_order most) { stores_ = most; }
  void lower_changes(std::memory_order most) { changes_ = most; }
  void tear_changes() { is_torn_ = true; }  // another thread can run between load and store

 private:
  // Relacy prints values, so enumerations are stored as numbers.
  static auto number(T value) {
    if constexpr (std::is_enum_v<T>) {
      return static_cast<std::underlying_type_t<T>>(value);
    } else {
      return value;
    }
  }
  std::memory_order lowered(std::memory_order failure) const {
    return changes_ == std::memory_order_relaxed ? std::memory_order_relaxed : failure;
  }
  bool change_in_two_steps(T& seen, T next) {
    const T now = load(std::memory_order_acquire);
    const bool same = now == seen;
    seen = now;
    if (same) store(next, std::memory_order_release);
    return same;
  }

  rl::atomic<decltype(number(T{}))> value_;
  std::memory_order loads_ = std::memory_order_seq_cst;
  std::memory_order stores_ = std::memory_order_seq_cst;
  std::memory_order changes_ = std::memory_order_seq_cst;
  bool is_torn_ = false;
};

// Plain memory. Relacy fails an interleaving in which two threads access it without order.
template <class T>
class Plain {
 public:
  T get() const { return value_(RL_INFO); }
  void set(T value) { value_(RL_INFO) = value; }

 private:
  rl::var<T> value_;
};

// A model of the kernel's futex, which compares a word with a value and sleeps in one atomic step.
class Futex {
 public:
  void wait(const Atomic<std::uint32_t>& word, std::uint32_t value) {
    mutex_.lock(RL_INFO);
    if (word.load(std::memory_order_relaxed) == value) sleepers_.wait(mutex_, RL_INFO);
    mutex_.unlock(RL_INFO);
  }
  void wake() {
    mutex_.lock(RL_INFO);
    sleepers_.notify_all(RL_INFO);
    mutex_.unlock(RL_INFO);
  }

 private:
  rl::mutex mutex_;
  rl::condition_variable_any sleepers_;
};

inline void yield() { rl::yield(1, RL_INFO); }

// The base of all tests. For each interleaving, relacy calls before(), then thread(index) on each
// thread, and then after(). before() applies the control, if the test runs with one.
template <class Derived, int threads>
struct Test : rl::test_suite<Derived, threads> {
  using Control = void (*)(Derived&);
  static inline Control control = nullptr;

  void before() {
    if (control != nullptr) control(static_cast<Derived&>(*this));
  }
};

// A stream buffer of fixed size, which drops the text that does not fit. A stream that allocates
// while relacy writes to it would crash: relacy replaces operator new, so the stream would later
// free memory that relacy does not know.
class FixedText : public std::streambuf {
 public:
  FixedText() { setp(text_.data(), text_.data() + text_.size()); }
  std::string_view view() const { return {pbase(), static_cast<std::size_t>(pptr() - pbase())}; }

 private:
  std::array<char, 1 << 18> text_;
};

// Runs tests and their controls, prints a line for each, and counts unexpected results.
class Runner {
 public:
  // Runs the test without a control. It must hold in `iterations` random interleavings.
  template <class Suite>
  void holds(const char* name, unsigned iterations) {
    Suite::control = nullptr;
    rl::test_params params;
    const bool held = simulate<Suite>(params, iterations);
    std::printf("%-6s %s: %u interleavings%s%s\n", held ? "holds" : "FAILED", name,
                static_cast<unsigned>(params.stop_iteration), held ? "" : ": ",
                held ? "" : rl::test_result_str(params.test_result));
    const std::string_view history = held ? std::string_view() : history_->view();
    std::printf("%.*s", static_cast<int>(history.size()), history.data());
    failures_ += !held;
  }
  // Runs the test with a control. Relacy must find a failure.
  template <class Suite>
  void breaks(const char* name, typename Suite::Control control, unsigned iterations = 5000000) {
    Suite::control = control;
    rl::test_params params;
    const bool held = simulate<Suite>(params, iterations);
    std::printf("%-6s %s: %s%u interleavings\n", held ? "FAILED" : "breaks", name,
                held ? "no failure in " : "after ", static_cast<unsigned>(params.stop_iteration));
    failures_ += held;
  }
  int status() const { return failures_ == 0 ? EXIT_SUCCESS : EXIT_FAILURE; }

 private:
  template <class Suite>
  bool simulate(rl::test_params& params, unsigned iterations) {
    history_ = std::make_unique<FixedText>();
    std::ostream output(history_.get());
    params.iteration_count = iterations;
    params.output_stream = &output;
    params.progress_stream = &output;
    params.execution_depth_limit = 20000;
    return rl::simulate<Suite>(params);
  }

  std::unique_ptr<FixedText> history_;
  int failures_ = 0;
};

}  // namespace litmus
