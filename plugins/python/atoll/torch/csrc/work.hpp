// c10d::Work over operations of atoll.
#pragma once

#include <ATen/core/ivalue.h>
#include <c10/core/Event.h>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "world.hpp"

namespace atoll_torch {

// One call of a backend: the operations that it has enqueued, and what follows them.
class Work final : public c10d::Work {
 public:
  struct Call {
    int rank = 0;
    c10d::OpType kind = c10d::OpType::UNKNOWN;
    const char* title = nullptr;        // name in profiles, such as "atoll:all_reduce"
    std::vector<at::Tensor> inputs{};   // alive until the operations are complete
    std::vector<at::Tensor> outputs{};  // the value of the Future
    std::function<void()> finish{};     // copies results to where the caller wants them
    uint64_t sequence = 0;
  };
  Work(Call call, std::shared_ptr<Channel> channel);

  // Adds an operation that completes after all operations that were added earlier. The caller adds
  // all operations before it calls start().
  void add(Handle<atoll_work> operation) { operations_.push_back(std::move(operation)); }
  // Adds an operation that may complete before operations that were added earlier. The operation
  // must be on CPU memory.
  void add_parallel(Handle<atoll_work> operation) {
    is_parallel_ = true;
    add(std::move(operation));
  }
  void keep(std::shared_ptr<void> thing) { kept_.push_back(std::move(thing)); }
  // wait() waits for `earlier` as well.
  void follow(c10::intrusive_ptr<c10d::Work> earlier) { earlier_.push_back(std::move(earlier)); }
  void start();
  std::string name() const;  // "all_reduce 12 of this rank", for errors

  // On a GPU, makes the current stream wait; only a barrier blocks the host.
  bool wait(std::chrono::milliseconds timeout) override;
  void synchronize() override;
  bool isCompleted() override;
  int sourceRank() const override;
  std::vector<at::Tensor> result() override { return call_.outputs; }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;
  void abort() override;
  uint64_t getSequencenumber() const override { return call_.sequence; }

 private:
  static void done(void* context, atoll_status status, const char* text);
  void complete(atoll_status status, const char* text);
  void end(std::exception_ptr error);
  void start_on_gpu();
  void wait_on_stream();

  Call call_;
  const bool is_cpu_;
  std::shared_ptr<Channel> channel_;  // null after completion on the CPU
  std::vector<Handle<atoll_work>> operations_;
  bool is_parallel_ = false;
  std::atomic<std::size_t> pending_{0};  // operations whose callbacks have not come
  std::vector<std::shared_ptr<void>> kept_;
  std::vector<c10::intrusive_ptr<c10d::Work>> earlier_;
  c10::intrusive_ptr<c10::ivalue::Future> future_;
  std::mutex future_mutex_;
  bool is_future_taken_ = false;     // false: the Future has no callbacks
  std::optional<c10::Event> event_;  // on a GPU: when the call is complete
};

}  // namespace atoll_torch
