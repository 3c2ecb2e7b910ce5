// How the backend opens and ends, and what all of its calls share.
#include "backend.hpp"

#include <Python.h>

#include <utility>

#include "place.hpp"

namespace atoll_torch {

Backend::Backend(GroupOptions options)
    : c10d::Backend(options.rank, options.size),
      group_(std::move(options)),
      is_default_(group_.global_ranks.empty()) {
  if (group_.is_reconfigurable) return;  // reconfigure() opens it
  job_ = Job::of(group_);
  job_->begin_use();
  channel_for(at::Device(at::kCPU));
}

Backend::~Backend() { close(); }

// Waits for other ranks, so it must not hold the lock of the Python interpreter.
void Backend::release(const std::string& reason) {
  const bool has_lock = Py_IsInitialized() != 0 && PyGILState_Check() != 0;
  PyThreadState* const state = has_lock ? PyEval_SaveThread() : nullptr;
  std::map<int, std::shared_ptr<Channel>> channels;
  std::shared_ptr<Job> job;
  {
    const std::lock_guard lock(mutex_);
    channels.swap(channels_);
    job.swap(job_);
  }
  for (const auto& [index, channel] : channels) {
    if (!reason.empty()) channel->abort(reason);
    channel->await_callbacks();
  }
  channels.clear();
  if (job) job->end_use(reason);
  job.reset();
  if (state != nullptr) PyEval_RestoreThread(state);
}

std::chrono::milliseconds Backend::limit(std::chrono::milliseconds timeout) const {
  return timeout.count() > 0 ? timeout : timeout_.load();
}

std::shared_ptr<Channel> Backend::channel_for(const at::Device& device) {
  TORCH_CHECK(device.is_cpu() || device.is_cuda(), "atoll has no collectives for tensors on ",
              device.str());
  const int index = device.is_cpu() ? -1 : device.index();
  const auto find = [&] {
    const std::lock_guard lock(mutex_);
    TORCH_CHECK(
        job_ != nullptr, "atoll: the process group ",
        group_.is_reconfigurable ? "has no members: call reconfigure()" : "has been shut down");
    const auto found = channels_.find(index);
    return std::pair(found == channels_.end() ? nullptr : found->second, job_);
  };
  if (auto channel = find().first) return channel;
  const std::lock_guard opening(opening_);  // abort() must not wait for it
  auto [channel, job] = find();
  if (channel) return channel;
  channel = std::make_shared<Channel>(std::move(job), group_, device.type(), device.index());
  const std::lock_guard lock(mutex_);
  channels_[index] = channel;
  return channel;
}

Work::Call Backend::call(c10d::OpType kind, const char* title, Tensors inputs, Tensors outputs) {
  return {rank_, kind, title, std::move(inputs), std::move(outputs), {}, ++sequence_};
}

Backend::WorkPtr Backend::run(Work::Call call, const at::Tensor& example,
                              std::chrono::milliseconds timeout, const Enqueue& enqueue) {
  const auto channel = channel_for(example.device());
  auto work = c10::make_intrusive<Work>(std::move(call), channel);
  channel->follow_current_stream();
  try {
    enqueue({channel->collectives(limit(timeout)), channel->stream()}, *work);
  } catch (const c10::DistBackendError& error) {
    C10_THROW_ERROR(DistBackendError, work->name() + ": " + error.what_without_backtrace());
  }
  work->start();
  if (batch_) batch_->works.push_back(work);
  return work;
}

Backend::WorkPtr Backend::barrier(const c10d::BarrierOptions& options) {
  const at::Tensor none = at::empty({0}, options.device.value_or(at::Device(at::kCPU)));
  return run(call(c10d::OpType::BARRIER, "atoll:barrier", {}, {}), none, options.timeout,
             [](const Place& place, Work& work) {
               work.add(make<atoll_work>(atoll_barrier, place.comm, place.stream));
             });
}

#if ATOLL_TORCH_FROM(7)
c10d::ErrorType Backend::getError() {
  const std::lock_guard lock(mutex_);
  if (is_revoked_) return c10d::ErrorType::SUCCESS;
  for (const auto& [index, channel] : channels_) {
    switch (channel->status()) {
      case ATOLL_OK:
        continue;
      case ATOLL_TIMEOUT:
        return c10d::ErrorType::TIMEOUT;
      case ATOLL_PEER_LOST:
      case ATOLL_ABORTED:
        return c10d::ErrorType::REMOTE_ERROR;
      default:
        return c10d::ErrorType::COMM_ERROR;
    }
  }
  return c10d::ErrorType::SUCCESS;
}

void Backend::abort() {
  const std::lock_guard lock(mutex_);
  is_revoked_ = group_.is_reconfigurable;
  for (const auto& [index, channel] : channels_) channel->abort("the process group was aborted");
}

at::Tensor Backend::allocateTensor(long size, at::TensorOptions options) {
  TORCH_CHECK(options.device().is_cpu(), "atoll: allocate_tensor is for CPU memory");
  return channel_for(options.device())->allocate(size, options);
}
#endif

#if ATOLL_TORCH_FROM(9)
void Backend::setTimeout(std::chrono::milliseconds timeout) { timeout_ = timeout; }

c10::intrusive_ptr<Backend::Options> Backend::getBackendOptions() {
  return c10::make_intrusive<Options>("atoll", group_.timeout);
}

c10::intrusive_ptr<c10d::Backend> Backend::split(const c10::intrusive_ptr<c10d::Store>& store,
                                                 const std::vector<int>& ranks,
                                                 const c10::intrusive_ptr<Options>& options) {
  GroupOptions part;
  part.store = store;
  part.rank = -1;
  part.size = static_cast<int>(ranks.size());
  part.name = options->group_name;
  part.timeout = options->timeout;
  {
    const std::lock_guard lock(mutex_);
    TORCH_CHECK(job_ != nullptr, "atoll: the process group that is split has no members");
    part.parent = job_;
  }
  const std::vector<int32_t> own = part.parent->ranks_of(group_);
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    if (ranks[i] == rank_) part.rank = static_cast<int>(i);
    part.global_ranks.push_back(own.at(static_cast<std::size_t>(ranks[i])));
  }
  if (part.rank < 0) return nullptr;
  return c10::make_intrusive<Backend>(std::move(part));
}
#endif

}  // namespace atoll_torch
