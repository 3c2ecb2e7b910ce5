#include "work.hpp"

#include <ATen/core/grad_mode.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <utility>

#include "completions.hpp"

namespace atoll_torch {
namespace {

std::vector<c10::Device> devices_of(const std::vector<at::Tensor>& tensors) {
  if (tensors.empty() || tensors.front().is_cpu()) return {};
  return {tensors.front().device()};
}

std::exception_ptr error_of(atoll_status status, const char* text, const std::string& where) {
  try {
    fail(status, text, where);
  } catch (...) {
    return std::current_exception();
  }
}

}  // namespace

Work::Work(Call call, std::shared_ptr<Channel> channel)
    : c10d::Work(call.rank, call.kind, call.title, call.inputs),
      call_(std::move(call)),
      is_cpu_(channel->is_cpu()),
      channel_(std::move(channel)),
      future_(c10::make_intrusive<c10::ivalue::Future>(
          c10::ListType::create(c10::TensorType::get()), devices_of(call_.outputs))) {}

void Work::start() {
  if (!is_cpu_) return start_on_gpu();
  const std::shared_ptr<Channel> channel = channel_;  // the last callback resets channel_
  // Each callback keeps this object alive.
  const auto begin_callback = [&] {
    channel->begin_callback();
    return std::make_unique<c10::intrusive_ptr<Work>>(c10::intrusive_ptr<Work>::reclaim_copy(this));
  };
  const std::size_t count = operations_.size();
  pending_ = is_parallel_ ? count : 1;
  if (count == 0) return done(begin_callback().release(), ATOLL_OK, "");
  for (std::size_t i = is_parallel_ ? 0 : count - 1; i < count; ++i) {
    auto self = begin_callback();
    const atoll_status status = atoll_work_then(operations_[i].get(), &Work::done, self.get());
    if (status != ATOLL_OK) channel->end_callback();
    check(status);
    (void)self.release();
  }
}

// The call is complete in stream order, so the Future has its value at once.
void Work::start_on_gpu() {
  const c10::Stream stream = channel_->torch_stream();
  const c10::impl::VirtualGuardImpl guard(c10::DeviceType::CUDA);
  const c10::Stream before = guard.exchangeStream(stream);
  try {
    if (call_.finish) call_.finish();
    for (const auto* list : {&call_.inputs, &call_.outputs})
      for (const at::Tensor& tensor : *list)
        if (tensor.defined() && tensor.is_cuda()) tensor.record_stream(stream);
    event_.emplace(c10::DeviceType::CUDA);
    event_->record(stream);
    end(nullptr);
  } catch (...) {
    guard.exchangeStream(before);
    throw;
  }
  guard.exchangeStream(before);
}

void Work::done(void* context, atoll_status status, const char* text) {
  std::unique_ptr<c10::intrusive_ptr<Work>> self(static_cast<c10::intrusive_ptr<Work>*>(context));
  Channel* const channel = (*self)->channel_.get();
  if (--(*self)->pending_ == 0) (*self)->complete(status, text);
  self.reset();
  channel->end_callback();
}

std::string Work::name() const {
  const std::string title = call_.title;
  return title.substr(title.find(':') + 1) + " " + std::to_string(call_.sequence) + " of this rank";
}

void Work::complete(atoll_status status, const char* text) {
  if (status != ATOLL_OK) return end(error_of(status, text, name()));
  for (const auto& operation : operations_) {
    const atoll_status one = atoll_work_error(operation.get());
    if (one != ATOLL_OK) return end(error_of(one, atoll_last_error(), name()));
  }
  try {
    const at::NoGradGuard no_grad;
    if (call_.finish) call_.finish();
    end(nullptr);
  } catch (...) {
    end(std::current_exception());
  }
}

void Work::end(std::exception_ptr error) {
  call_.finish = nullptr;
  call_.inputs.clear();
  kept_.clear();
  if (is_cpu_) {
    // A Work that the program keeps must not keep the World.
    const std::lock_guard lock(mutex_);
    channel_.reset();
  }
  finish(error);
  const auto mark = [future = future_, outputs = call_.outputs, error] {
    if (error) {
      future->setError(error);
    } else {
      future->markCompleted(c10::IValue(outputs));
    }
  };
  const std::lock_guard lock(future_mutex_);
  if (is_cpu_ && is_future_taken_) {
    Completions::get().run(mark);
  } else {
    mark();
  }
}

c10::intrusive_ptr<c10::ivalue::Future> Work::getFuture() {
  const std::lock_guard lock(future_mutex_);
  is_future_taken_ = true;
  return future_;
}

bool Work::wait(std::chrono::milliseconds timeout) {
  using Clock = std::chrono::steady_clock;
  const bool is_limited = timeout > kNoTimeout;
  const Clock::time_point end = Clock::now() + timeout;
  const auto left = [&] {
    const auto rest = std::chrono::ceil<std::chrono::milliseconds>(end - Clock::now());
    return is_limited ? std::max(rest, std::chrono::milliseconds(1)) : kNoTimeout;
  };
  for (const auto& one : earlier_) one->wait(left());
  if (!is_cpu_) {
    wait_on_stream();
    return true;
  }
  // A thread that waits performs the operation itself, if no other thread does.
  for (const auto& operation : operations_) {
    if (!is_limited) {
      atoll_work_synchronize(operation.get());
      continue;
    }
    int32_t done = 0;
    const atoll_status status = atoll_work_synchronize_for(operation.get(), left().count(), &done);
    if (status == ATOLL_OK && done == 0)
      C10_THROW_ERROR(DistBackendError,
                      name() + ": not complete after " + std::to_string(timeout.count()) + " ms");
  }
  return c10d::Work::wait(kNoTimeout);  // until the callback of atoll has come
}

void Work::synchronize() {
  if (!is_cpu_) wait_on_stream();
}

bool Work::isCompleted() { return event_ ? event_->query() : c10d::Work::isCompleted(); }

// Makes the current stream of PyTorch wait for the call.
void Work::wait_on_stream() {
  for (const auto& operation : operations_) {
    const atoll_status status = atoll_work_error(operation.get());
    if (status != ATOLL_OK) fail(status, atoll_last_error(), name());
  }
  const c10::impl::VirtualGuardImpl guard(c10::DeviceType::CUDA);
  event_->block(guard.getStream(channel_->torch_stream().device()));
  if (call_.kind == c10d::OpType::BARRIER) event_->synchronize();
}

int Work::sourceRank() const {
  int32_t source = -1, tag = -1;
  if (!operations_.empty()) check(atoll_work_source(operations_.back().get(), &source, &tag));
  return source;
}

void Work::abort() {
  std::shared_ptr<Channel> channel;
  {
    const std::lock_guard lock(mutex_);
    channel = channel_;
  }
  if (channel) channel->abort("an operation was aborted by the program");
}

}  // namespace atoll_torch
