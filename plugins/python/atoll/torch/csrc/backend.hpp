// The backend "atoll" of torch.distributed.
#pragma once

#include <torch/version.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "tensors.hpp"
#include "work.hpp"
#include "world.hpp"

// True for torch of this minor version and later ones.
#define ATOLL_TORCH_FROM(minor) (TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR >= (minor))

namespace atoll_torch {

// A group has communicators for CPU tensors, and others for the tensors of each GPU. Collectives of
// a group run in the order of their calls, and so do messages with the same peer and tag.
class Backend final : public c10d::Backend {
 public:
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;
  using Tensors = std::vector<at::Tensor>;

  explicit Backend(GroupOptions options);
  ~Backend() override;

  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override;
  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override;
  WorkPtr allreduce_coalesced(Tensors& tensors,
                              const c10d::AllreduceCoalescedOptions& options) override;
  WorkPtr reduce(Tensors& tensors, const c10d::ReduceOptions& options) override;
  WorkPtr allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                    const c10d::AllgatherOptions& options) override;
  // From 2.14 on, torch calls the names all_gather_single and so on, whose defaults call these.
  WorkPtr _allgather_base(at::Tensor& output, at::Tensor& input,
                          const c10d::AllgatherOptions& options) override;
  WorkPtr allgather_coalesced(std::vector<Tensors>& outputs, Tensors& inputs,
                              const c10d::AllgatherOptions& options) override;
  WorkPtr allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::AllgatherOptions& options) override;
  WorkPtr gather(std::vector<Tensors>& outputs, Tensors& inputs,
                 const c10d::GatherOptions& options) override;
  WorkPtr scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                  const c10d::ScatterOptions& options) override;
  WorkPtr reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                         const c10d::ReduceScatterOptions& options) override;
  WorkPtr _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                               const c10d::ReduceScatterOptions& options) override;
  WorkPtr reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::ReduceScatterOptions& options) override;
  WorkPtr alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_splits,
                        std::vector<int64_t>& input_splits,
                        const c10d::AllToAllOptions& options) override;
  WorkPtr alltoall(Tensors& outputs, Tensors& inputs,
                   const c10d::AllToAllOptions& options) override;
  WorkPtr barrier(const c10d::BarrierOptions& options) override;
  void monitoredBarrier(const c10d::BarrierOptions& options, bool wait_all_ranks) override;

  WorkPtr send(Tensors& tensors, int peer, int tag) override;
  WorkPtr recv(Tensors& tensors, int peer, int tag) override;
  WorkPtr recvAnysource(Tensors& tensors, int tag) override;
  void startCoalescing() override;
  WorkPtr endCoalescing() override;

  const std::string getBackendName() const override { return "atoll"; }
  void setSequenceNumberForGroup() override {}
  uint64_t getSequenceNumberForGroup() override { return sequence_; }
  bool supportsSplitting() const override { return true; }
#if ATOLL_TORCH_FROM(7)
  bool supportsCoalescing() const override { return true; }
  c10d::ErrorType getError() override;
  // In a group that can be reconfigured, only ends the operations: it goes on after reconfigure().
  void abort() override;
  void shutdown() override { close(); }
  // Only for CPU memory, whose device has the index -1.
  bool supportsTensorAlloc(c10::DeviceIndex device) override { return device < 0; }
  at::Tensor allocateTensor(long size, at::TensorOptions options) override;
#endif
#if ATOLL_TORCH_FROM(9)
  void setTimeout(std::chrono::milliseconds timeout) override;
  c10::intrusive_ptr<Options> getBackendOptions() override;
  c10::intrusive_ptr<c10d::Backend> split(const c10::intrusive_ptr<c10d::Store>& store,
                                          const std::vector<int>& ranks,
                                          const c10::intrusive_ptr<Options>& options) override;
#endif
#ifdef C10D_BACKEND_HAS_RECONFIGURE
  bool supportsReconfigure() const override { return true; }
  c10d::ReconfigureHandle get_reconfigure_handle() const override;
  // Collective over the new members. Operations of the old members that are not complete fail.
  WorkPtr reconfigure(const c10d::ReconfigureOptions& options) override;
#endif
  void close() { release(""); }

 private:
  struct Place;
  using Enqueue = std::function<void(const Place&, Work&)>;

  // Enqueues the operations of one call on the device of its tensors.
  WorkPtr run(Work::Call call, const at::Tensor& example, std::chrono::milliseconds timeout,
              const Enqueue& enqueue);
  WorkPtr message(Work::Call call, int kind, const at::Tensor& tensor, int peer, int tag);
  void enqueue_message(const atoll_message& message, const std::shared_ptr<Channel>& channel,
                       Work& work);
  // Enqueues collectives that the program passes in one call.
  WorkPtr coalesced(std::size_t count, const std::function<WorkPtr(std::size_t)>& enqueue);
  WorkPtr nothing();
  std::shared_ptr<Channel> channel_for(const at::Device& device);
  std::chrono::milliseconds limit(std::chrono::milliseconds timeout) const;
  Work::Call call(c10d::OpType kind, const char* title, Tensors inputs, Tensors outputs);
  void reduce_all(const at::Tensor& tensor, const c10d::ReduceOp& op, const Place& place,
                  Work& work);

  // Leaves the World. Waits for the operations, or aborts them for a reason that is not empty.
  void release(const std::string& reason);

  GroupOptions group_;
  bool is_default_;           // true in the default group
  std::shared_ptr<Job> job_;  // null before reconfigure() and after close()
  mutable std::mutex mutex_;
  std::mutex opening_;  // held while a channel opens
  mutable std::string handle_;
  std::set<int64_t> used_;  // the uuids of reconfigure()
  bool is_revoked_ = false;
  uint64_t monitored_barriers_ = 0;
  std::map<int, std::shared_ptr<Channel>> channels_;  // by ordinal of the GPU; -1 is the CPU
  std::atomic<std::chrono::milliseconds> timeout_{std::chrono::milliseconds(-1)};
  std::atomic<uint64_t> sequence_{0};
  struct Batch;
  std::shared_ptr<Batch> batch_;  // calls between startCoalescing() and endCoalescing()
};

}  // namespace atoll_torch
