// The job of a process group: its World, and the communicators that its backends open.
#pragma once

#include <ATen/ATen.h>
#include <c10/core/Stream.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "atoll_handles.hpp"

namespace atoll_torch {

// The arguments with which PyTorch opens the backend of a group.
struct GroupOptions {
  c10::intrusive_ptr<c10d::Store> store;
  int rank = 0;
  int size = 1;
  std::string name;
  // For each rank of the group its rank in the default group; empty: the group is the default one.
  std::vector<int64_t> global_ranks;
  std::chrono::milliseconds timeout{0};
  std::chrono::milliseconds join_timeout{0};  // 0: as `timeout`
  bool is_reconfigurable = false;             // true: opens nothing before reconfigure()
  // The World of the group from which this one is split; global_ranks are ranks of this World.
  std::shared_ptr<class Job> parent;
};

// A World whose ranks find each other through a store of c10d. Default groups make one; the groups
// of some of its ranks share it.
class Job {
 public:
  // Collective over the group. Returns the World of the default group if it contains the ranks of
  // this group, and else makes one.
  static std::shared_ptr<Job> of(const GroupOptions& options);
  // Collective over the group. Makes a new World.
  static std::shared_ptr<Job> open(const GroupOptions& options, bool is_default);

  atoll_world* world() const { return world_.get(); }
  // The ranks of the World that form the group, in the order of the group.
  std::vector<int32_t> ranks_of(const GroupOptions& options) const;
  // A text that is equal on all ranks of this World, and different from those of other Worlds.
  const std::string& id() const { return id_; }
  // A backend calls begin_use() when it starts to use the World and end_use() when it stops. If the
  // last backend to stop gives a reason, the World fails with it on all ranks, so that closing it
  // waits for nobody.
  void begin_use() { ++uses_; }
  void end_use(const std::string& reason);

 private:
  Job(const GroupOptions& options, bool is_default);

  int size_;
  bool is_default_;  // true: the World of the default group, which other groups share
  std::string id_;
  Handle<atoll_world> world_;
  std::atomic<int> uses_{0};
};

// The communicators of one group on one device.
class Channel {
 public:
  // Collective over the group. `index` is the ordinal of a GPU.
  Channel(std::shared_ptr<Job> job, const GroupOptions& options, c10::DeviceType type, int index);
  ~Channel();

  bool is_cpu() const { return is_cpu_; }
  atoll_device* device() const { return device_.get(); }
  atoll_stream* stream() const { return stream_.get(); }
  // Handles whose operations have this time limit; -1 ms means that of the group.
  atoll_communicator* collectives(std::chrono::milliseconds timeout);
  atoll_communicator* messages(std::chrono::milliseconds timeout);

  // On a GPU: the stream of PyTorch in which the operations run.
  c10::Stream torch_stream() const { return *torch_stream_; }
  // Makes the stream wait for what PyTorch has enqueued on its current stream. Nothing on the CPU.
  void follow_current_stream();
  // Registered memory from a pool, which the tensor keeps. Only on the CPU.
  at::Tensor allocate(int64_t elements, const at::TensorOptions& options);

  // A stream for messages that must stay in order. Others must not wait for each other.
  class MessageStream {
   public:
    explicit MessageStream(std::shared_ptr<Channel> channel);
    ~MessageStream();
    MessageStream(const MessageStream&) = delete;
    MessageStream& operator=(const MessageStream&) = delete;
    atoll_stream* get() const { return stream_.get(); }

   private:
    std::shared_ptr<Channel> channel_;
    Handle<atoll_stream> stream_;
  };

  // Messages in one direction with the same peer and tag stay in the order of their calls.
  using MessageKey = std::tuple<int, int, int>;  // ATOLL_SEND or ATOLL_RECV, peer, tag
  static std::shared_ptr<MessageStream> message_stream(const std::shared_ptr<Channel>& self,
                                                       const MessageKey& key);

  // A thread of atoll that calls back must not destroy the channel, because that waits for the
  // thread. So the owner of the channel waits for the callbacks first. Operations that are not
  // complete after 10 s, such as a receive without a sender, are aborted.
  void begin_callback();
  void end_callback();
  void await_callbacks();

  void abort(const std::string& reason);
  atoll_status status() const;

 private:
  using Handles = std::map<int64_t, Handle<atoll_communicator>>;
  atoll_communicator* with_timeout(Handles& handles, std::chrono::milliseconds timeout);

  std::shared_ptr<Job> job_;
  bool is_cpu_;
  Handle<atoll_device> device_;
  Handles collectives_, messages_;  // by time limit in ms; -1 is the communicator itself
  std::optional<c10::Stream> torch_stream_;
  Handle<atoll_stream> stream_;
  mutable std::mutex mutex_;
  std::mutex order_;
  std::map<MessageKey, std::weak_ptr<MessageStream>> newest_;
  std::condition_variable no_callbacks_;
  int callbacks_ = 0;
  std::vector<Handle<atoll_stream>> idle_;
  std::shared_ptr<class MemoryPool> pool_;
};

}  // namespace atoll_torch
