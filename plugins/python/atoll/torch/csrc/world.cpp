#include "world.hpp"

#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <torch/version.h>

#include <cstring>
#include <exception>
#include <functional>
#include <numeric>
#include <string_view>
#include <utility>

#include "memory_pool.hpp"

namespace atoll_torch {
namespace {

// The World of the default group, if there is one.
std::weak_ptr<Job> default_job;
std::mutex default_mutex;

const std::string world_key = "atoll/world";

struct Broadcast {
  const GroupOptions& options;
  std::exception_ptr error;
  std::size_t hash = 0;  // of the bytes, which contain a random secret
};

// Passes the bytes of rank 0 to all ranks through the store of c10d.
int broadcast(void* context, void* data, size_t bytes) {
  auto& self = *static_cast<Broadcast*>(context);
  try {
    auto* begin = static_cast<uint8_t*>(data);
    c10d::Store& store = *self.options.store;
    if (self.options.rank == 0) {
      store.set(world_key, std::vector<uint8_t>(begin, begin + bytes));
    } else {
      store.wait({world_key}, self.options.join_timeout);
      const std::vector<uint8_t> value = store.get(world_key);
      if (value.size() != bytes) return 1;
      std::memcpy(data, value.data(), bytes);
    }
    self.hash = std::hash<std::string_view>()({static_cast<const char*>(data), bytes});
    return 0;
  } catch (...) {
    self.error = std::current_exception();
    return 1;
  }
}

void set(atoll_config* config, const char* name, const std::string& value) {
  check(atoll_config_set(config, name, value.c_str()));
}

// The cudaStream_t of a stream. A template, because older versions of torch do not have the member.
template <class Stream>
void* native(const Stream& stream) {
  if constexpr (requires { stream.native_handle(); }) {
    return stream.native_handle();
  } else {
    TORCH_CHECK(false, "atoll: collectives on CUDA tensors need a later version of torch than ",
                TORCH_VERSION);
  }
}

std::string seconds(std::chrono::milliseconds time) {
  return std::to_string(std::chrono::ceil<std::chrono::seconds>(time).count());
}

}  // namespace

void fail(atoll_status status, const std::string& text, const std::string& where) {
  C10_THROW_ERROR(DistBackendError, "atoll: " + (where.empty() ? "" : where + ": ") +
                                        atoll_status_name(status) + ": " + text);
}

Job::Job(const GroupOptions& options, bool is_default)
    : size_(options.size), is_default_(is_default) {
  auto config = make<atoll_config>(atoll_config_open);
  set(config.get(), "failure_scope", "communicator");
  set(config.get(), "rendezvous_timeout", seconds(options.join_timeout));
  set(config.get(), "timeout", seconds(options.timeout));
  Broadcast context{options, nullptr};
  atoll_world* world = nullptr;
  const atoll_status status =
      atoll_world_open_ranks(options.rank, options.size, broadcast, &context, config.get(), &world);
  world_.reset(world);
  // All ranks have read it by now, or have failed. A later group may use the same key.
  if (options.rank == 0) options.store->deleteKey(world_key);
  if (context.error) std::rethrow_exception(context.error);
  check(status);
  id_ = std::to_string(context.hash);
}

std::shared_ptr<Job> Job::of(const GroupOptions& options) {
  if (options.parent) return options.parent;
  const bool is_default = options.global_ranks.empty();
  {
    const std::lock_guard lock(default_mutex);
    if (auto job = default_job.lock(); job && !is_default) return job;
  }
  return open(options, is_default);
}

std::shared_ptr<Job> Job::open(const GroupOptions& options, bool is_default) {
  GroupOptions complete = options;
  if (complete.join_timeout.count() == 0) complete.join_timeout = options.timeout;
  std::shared_ptr<Job> job(new Job(complete, is_default));
  if (is_default) {
    const std::lock_guard lock(default_mutex);
    default_job = job;
  }
  return job;
}

void Job::end_use(const std::string& reason) {
  if (--uses_ == 0 && !reason.empty()) atoll_world_fail(world_.get(), reason.c_str());
}

std::vector<int32_t> Job::ranks_of(const GroupOptions& options) const {
  const bool is_shared = options.parent || (is_default_ && !options.global_ranks.empty());
  if (is_shared) return {options.global_ranks.begin(), options.global_ranks.end()};
  std::vector<int32_t> all(static_cast<std::size_t>(size_));
  std::iota(all.begin(), all.end(), 0);
  return all;
}

Channel::Channel(std::shared_ptr<Job> job, const GroupOptions& options, c10::DeviceType type,
                 int index)
    : job_(std::move(job)),
      is_cpu_(type == c10::DeviceType::CPU),
      pool_(std::make_shared<MemoryPool>()) {
  device_ = make<atoll_device>(atoll_device_open, is_cpu_ ? ATOLL_MEMORY_CPU : ATOLL_MEMORY_CUDA,
                               static_cast<int32_t>(index));
  const std::string name = "torch." + options.name + (is_cpu_ ? ".cpu" : ".cuda");
  const std::string tagged = name + ".messages";
  const std::vector<int32_t> ranks = job_->ranks_of(options);
  atoll_communicator_options settings{};
  settings.size = sizeof settings;
  settings.name = name.c_str();
  settings.device = device_.get();
  settings.timeout_ms = options.timeout.count();
  const auto open = [&] {
    return make<atoll_communicator>(atoll_communicator_open_ranks, job_->world(), ranks.data(),
                                    ranks.size(),
                                    static_cast<const atoll_communicator_options*>(&settings));
  };
  collectives_[-1] = open();
  if (is_cpu_) {
    settings.name = tagged.c_str();
    settings.tags = 1;
    messages_[-1] = open();
  }
  const auto* device = static_cast<const atoll_device*>(device_.get());
  if (is_cpu_) {
    stream_ = make<atoll_stream>(atoll_stream_open, device, name.c_str());
    return;
  }
  const c10::impl::VirtualGuardImpl guard(type);
  torch_stream_ = guard.getStreamFromGlobalPool(
      c10::Device(type, static_cast<c10::DeviceIndex>(index)), /*isHighPriority=*/true);
  stream_ = make<atoll_stream>(atoll_stream_wrap, device, native(*torch_stream_), name.c_str());
}

// synchronize() returns the error of a stream, which then counts as told. A stream that is closed
// with an error that nobody was told fails the job.
Channel::~Channel() {
  atoll_stream_synchronize(stream_.get());
  for (const auto& stream : idle_) atoll_stream_synchronize(stream.get());
  pool_->clear();
}

atoll_communicator* Channel::with_timeout(Handles& handles, std::chrono::milliseconds timeout) {
  const std::lock_guard lock(mutex_);
  const int64_t limit = timeout.count() > 0 ? timeout.count() : -1;
  auto& handle = handles[limit];
  if (!handle) {
    handle = make<atoll_communicator>(atoll_communicator_with_timeout,
                                      static_cast<const atoll_communicator*>(handles.at(-1).get()),
                                      limit);
  }
  return handle.get();
}

atoll_communicator* Channel::collectives(std::chrono::milliseconds timeout) {
  return with_timeout(collectives_, timeout);
}

atoll_communicator* Channel::messages(std::chrono::milliseconds timeout) {
  return with_timeout(is_cpu_ ? messages_ : collectives_, timeout);
}

Channel::MessageStream::MessageStream(std::shared_ptr<Channel> channel)
    : channel_(std::move(channel)) {
  {
    const std::lock_guard lock(channel_->mutex_);
    if (!channel_->idle_.empty()) {
      stream_ = std::move(channel_->idle_.back());
      channel_->idle_.pop_back();
    }
  }
  if (stream_) {
    atoll_stream_synchronize(stream_.get());  // reads a failure, so that the stream works again
    return;
  }
  stream_ = make<atoll_stream>(
      atoll_stream_open, static_cast<const atoll_device*>(channel_->device_.get()), "message");
}

std::shared_ptr<Channel::MessageStream> Channel::message_stream(
    const std::shared_ptr<Channel>& self, const MessageKey& key) {
  const std::lock_guard lock(self->order_);
  constexpr std::size_t many = 1024;
  if (self->newest_.size() > many)
    std::erase_if(self->newest_, [](const auto& entry) { return entry.second.expired(); });
  auto stream = self->newest_[key].lock();
  if (!stream) self->newest_[key] = stream = std::make_shared<MessageStream>(self);
  return stream;
}

Channel::MessageStream::~MessageStream() {
  const std::lock_guard lock(channel_->mutex_);
  channel_->idle_.push_back(std::move(stream_));
}

void Channel::begin_callback() {
  const std::lock_guard lock(mutex_);
  ++callbacks_;
}

void Channel::end_callback() {
  const std::lock_guard lock(mutex_);
  if (--callbacks_ == 0) no_callbacks_.notify_all();
}

void Channel::await_callbacks() {
  std::unique_lock lock(mutex_);
  const auto none = [this] { return callbacks_ == 0; };
  if (no_callbacks_.wait_for(lock, std::chrono::seconds(10), none)) return;
  lock.unlock();
  abort("the process group was destroyed before its operations were complete");
  lock.lock();
  no_callbacks_.wait(lock, none);
}

void Channel::follow_current_stream() {
  if (is_cpu_) return;
  const c10::impl::VirtualGuardImpl guard(c10::DeviceType::CUDA);
  c10::Event event(c10::DeviceType::CUDA);
  event.record(guard.getStream(torch_stream_->device()));
  event.block(*torch_stream_);
}

at::Tensor Channel::allocate(int64_t elements, const at::TensorOptions& options) {
  const std::size_t bytes = static_cast<std::size_t>(elements) *
                            c10::elementSize(c10::typeMetaToScalarType(options.dtype()));
  auto buffer = pool_->take(device_.get(), bytes, collectives({}), pool_);
  void* data = nullptr;
  check(atoll_buffer_data(buffer.get(), &data));
  return at::from_blob(
      data, {elements}, [buffer](void*) {}, options);
}

void Channel::abort(const std::string& reason) {
  const std::lock_guard lock(mutex_);
  for (Handles* handles : {&collectives_, &messages_}) {
    const auto found = handles->find(-1);
    if (found != handles->end()) atoll_communicator_abort(found->second.get(), reason.c_str());
  }
}

atoll_status Channel::status() const {
  const std::lock_guard lock(mutex_);
  for (const Handles* handles : {&collectives_, &messages_}) {
    const auto found = handles->find(-1);
    if (found == handles->end()) continue;
    const atoll_status status = atoll_communicator_check(found->second.get());
    if (status != ATOLL_OK) return status;
  }
  return ATOLL_OK;
}

}  // namespace atoll_torch
