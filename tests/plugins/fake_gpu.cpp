#include "fake_gpu.hpp"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "fake_collectives.hpp"

// The emulated GPU (tests/gpu/emulated) defines this function. In programs without the emulated GPU
// its address is null.
namespace emulated {
[[gnu::weak]] void enqueue(cudaStream_t stream, std::function<void()> work);
}

namespace {

using fake_gpu::Call;
using fake_gpu::Clique;
using fake_gpu::Kind;
using fake_gpu::Place;
using fake_gpu::Shared;
using fake_gpu::Split;

std::mutex mutex;
std::condition_variable changed;  // notified whenever a call is complete or aborted
std::map<std::string, std::shared_ptr<Clique>> cliques;
std::map<int, ncclResult_t> failures;
ncclResult_t later = ncclSuccess;
std::atomic<int> version{NCCL_VERSION_CODE};
std::atomic<bool> gives_windows{true};
fake_gpu::Left counted;
std::set<std::pair<ncclComm_t, void*>> live_windows;
int aborts = 0;
std::map<std::string, int, std::less<>> policies;      // CTAPolicy by name of the communicator
std::set<std::string, std::less<>> with_copy_engines;  // names of communicators that took them
int identities = 0;
thread_local int depth = 0;
thread_local std::vector<std::pair<ncclComm_t, Shared>> group;

int current_device() {
  int current = 0;
  cudaGetDevice(&current);
  return current;
}

// Selects the current device of the thread again, as NCCL does after it has freed memory on another
// device. This creates a context on the current device.
void go_back_to_device() { cudaSetDevice(current_device()); }

void arrive_and_tell(Clique& clique, int rank, const Shared& call) {
  arrive(clique, rank, call);
  changed.notify_all();
}

// Returns how long a gather of this communicator takes at least: 20 ms if FAKE_NCCL_SLOW_POLICY is
// its CTAPolicy.
std::chrono::milliseconds least_time(int policy) {
  const char* const slow = std::getenv("FAKE_NCCL_SLOW_POLICY");
  return std::chrono::milliseconds(slow != nullptr && std::atoi(slow) == policy ? 20 : 0);
}

// Waits on the GPU for the calls of the other ranks, as a kernel of NCCL does. Ends when all calls
// are complete or aborted.
void run_in_stream(const std::shared_ptr<Clique>& clique, int rank,
                   const std::vector<Shared>& calls) {
  std::unique_lock lock(mutex);
  for (const Shared& call : calls) {
    if (!call->given_up) arrive_and_tell(*clique, rank, call);
  }
  changed.wait(lock, [&] {
    return std::ranges::all_of(calls, [](const Shared& c) { return c->done || c->given_up; });
  });
}

}  // namespace

struct ncclComm {
  std::shared_ptr<Clique> clique;
  int rank;
  int device;
  std::vector<Shared> pending{};
  // True if ncclCommGetAsyncError was called since the last operation.
  bool asked = false;
  // While `busy` is true, the communicator accepts no operation. ncclCommGetAsyncError clears it
  // when it returns success.
  bool busy = false;
  bool splitting = false;
  bool finalizing = false;
  // Pairs of a new communicator and the variable in which the caller of ncclCommSplit expects it.
  // The next successful status query sets these variables.
  std::vector<std::pair<ncclComm_t*, ncclComm_t>> parts{};
  // Pairs of a new window and the variable in which the caller of ncclCommWindowRegister expects
  // it. The next successful status query sets these variables.
  std::vector<std::pair<ncclWindow_t*, ncclWindow_t>> windows{};
  // Every window that was ever registered, in the order of registration.
  std::vector<std::span<const char>> registered{};
  std::string name{};             // ncclConfig_t::commName
  int policy = 0;                 // ncclConfig_t::CTAPolicy
  bool has_copy_engines = false;  // true once a collective has taken them
};

namespace {

ncclResult_t post(ncclComm_t comm, Call call) {
  if (emulated::enqueue == nullptr) call.stream = nullptr;
  group.emplace_back(comm, std::make_shared<Call>(call));
  if (depth > 0) return ncclSuccess;
  ++depth;
  return ncclGroupEnd();
}

Place place_of(const ncclComm& comm, const void* memory) {
  const auto* const at = static_cast<const char*>(memory);
  for (std::size_t i = comm.registered.size(); i-- > 0;) {
    const auto& window = comm.registered[i];
    if (at < window.data() || at >= window.data() + window.size()) continue;
    return {static_cast<int>(i), static_cast<std::size_t>(at - window.data())};
  }
  return {};
}

void begin(ncclComm& comm) {
  comm.asked = false;
  comm.busy = true;
}

bool complete(const ncclComm& comm) {
  const Clique& clique = *comm.clique;
  if (clique.joined < clique.ranks || comm.splitting) return false;
  if (comm.finalizing && clique.finalized < clique.ranks) return false;
  // A call on a stream is treated as complete once it is launched.
  return std::ranges::all_of(comm.pending,
                             [](const Shared& call) { return call->done || call->stream; });
}

}  // namespace

namespace fake_gpu {

void fail_next(int rank, ncclResult_t result) {
  const std::lock_guard lock(mutex);
  failures[rank] = result;
}
void fail_later(ncclResult_t result) {
  const std::lock_guard lock(mutex);
  later = result;
}
void set_version(int code) { version = code; }
void give_windows(bool gives) { gives_windows = gives; }
Left left() {
  const std::lock_guard lock(mutex);
  counted.windows = static_cast<int>(live_windows.size());
  return counted;
}
int aborted() {
  const std::lock_guard lock(mutex);
  return aborts;
}

int policy(const char* name) {
  const std::lock_guard lock(mutex);
  return policies.at(name);
}

bool used_copy_engines(const char* name) {
  const std::lock_guard lock(mutex);
  return with_copy_engines.contains(name);
}

}  // namespace fake_gpu

extern "C" {

const char* ncclGetErrorString(ncclResult_t result) {
  return result == ncclRemoteError ? "remote error" : "an error";
}
const char* ncclGetLastError(ncclComm_t) { return "as planted"; }

ncclResult_t ncclGetVersion(int* code) {
  *code = version;
  return ncclSuccess;
}

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  const std::lock_guard lock(mutex);
  *id = {};
  std::strncpy(id->internal, ("clique " + std::to_string(++identities)).c_str(),
               sizeof id->internal - 1);
  return ncclSuccess;
}

// Appends `text` to the file that NCCL_DEBUG_FILE names, as NCCL appends its log.
void write_log(const char* text) {
  // The environment variable is read only once per process.
  static const char* const file = [] {
    const char* const name = std::getenv("NCCL_DEBUG_FILE");
    return name ? ::strdup(name) : nullptr;
  }();
  if (file == nullptr || text == nullptr) return;
  std::FILE* const log = std::fopen(file, "a");
  if (log == nullptr) return;
  std::fputs(text, log);
  std::fclose(log);
}

// Copy engines run gathers and exchanges whose buffers are in windows, if the policy of the
// communicator leaves the SMs alone. NCCL logs the first time that a communicator takes them.
void open_copy_engines(ncclComm& comm, const Call& call) {
#ifdef NCCL_CTA_POLICY_ZERO
  const bool can = call.kind == Kind::all_gather || call.kind == Kind::all_to_all;
  const bool takes = can && comm.policy == NCCL_CTA_POLICY_ZERO && call.src_place.window >= 0 &&
                     call.dst_place.window >= 0;
  if (!takes || comm.has_copy_engines) return;
  comm.has_copy_engines = true;
  with_copy_engines.insert(comm.name);
  write_log("NCCL INFO Init CE, rank 0\n");
#endif
}

// NCCL 2.27 knows only the policies 0 and 1.
bool is_valid(const ncclConfig_t& config) {
  return config.blocking == 0 && (version >= NCCL_VERSION(2, 28, 0) || config.CTAPolicy <= 1);
}

// The caller must hold `mutex`.
void configure(ncclComm& comm, const ncclConfig_t& config) {
  comm.policy = config.CTAPolicy;
  if (config.commName == nullptr) return;
  comm.name = config.commName;
  policies[comm.name] = comm.policy;
  with_copy_engines.erase(comm.name);
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int n, ncclUniqueId id, int rank,
                                    ncclConfig_t* config) {
  const std::lock_guard lock(mutex);
  if (!is_valid(*config)) return ncclInvalidArgument;
  auto& clique = cliques[id.internal];
  if (!clique) clique = std::make_shared<Clique>(n);
  ++clique->joined;
  write_log(std::getenv("FAKE_NCCL_LOG"));
  ++counted.communicators;
  *comm = std::make_unique<ncclComm>(ncclComm{clique, rank, current_device()}).release();
  configure(**comm, *config);
  begin(**comm);
  return ncclInProgress;
}

// Returns success at once, but sets *out only when a later status query of the parent communicator
// returns success, as NCCL does.
ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t* out,
                           ncclConfig_t* config) {
  const std::lock_guard lock(mutex);
  if (!is_valid(*config)) return ncclInvalidArgument;
  Clique& clique = *comm->clique;
  *out = nullptr;
  // A communicator can be split only if it is idle.
  const bool calls =
      std::ranges::any_of(comm->pending, [](const Shared& call) { return !call->done; });
  if (calls || comm->busy || comm->device != current_device()) return ncclInvalidUsage;
  begin(*comm);
  comm->splitting = true;
  clique.splits.push_back({comm->rank, color, key, comm, out, *config});
  if (static_cast<int>(clique.splits.size()) < clique.ranks) return ncclSuccess;
  auto splits = std::exchange(clique.splits, {});
  std::ranges::sort(splits, {}, [](const Split& one) { return std::pair(one.key, one.rank); });
  std::map<int, std::vector<Split>> groups;
  for (const Split& one : splits) {
    one.comm->splitting = false;
    if (one.color >= 0) groups[one.color].push_back(one);
  }
  for (const auto& [group_color, members] : groups) {
    auto made = std::make_shared<Clique>(static_cast<int>(members.size()));
    made->joined = made->ranks;
    int rank = 0;
    for (const Split& one : members) {
      auto part = std::make_unique<ncclComm>(ncclComm{made, rank++, one.comm->device});
      configure(*part, one.config);
      begin(*part);
      one.comm->parts.emplace_back(one.out, part.release());
      ++counted.communicators;
    }
  }
  return ncclSuccess;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* state) {
  const std::lock_guard lock(mutex);
  const bool first = !std::exchange(comm->asked, true);
  *state = first || !complete(*comm) ? ncclInProgress : later;
  if (comm->clique->broken) *state = ncclInvalidUsage;
  if (*state == ncclSuccess) {
    std::erase_if(comm->pending, [](const Shared& call) { return call->done; });
    comm->busy = false;
    for (const auto& [out, part] : std::exchange(comm->parts, {})) *out = part;
    for (const auto& [out, window] : std::exchange(comm->windows, {})) *out = window;
  }
  return ncclSuccess;
}

// NCCL has this function from version 2.29.7 on. Only the `stat` 3, all memory, is implemented.
#if NCCL_VERSION_CODE < NCCL_VERSION(2, 29, 7)
using ncclCommMemStat_t = int;
#endif
ncclResult_t ncclCommMemStats(ncclComm_t comm, ncclCommMemStat_t stat, std::uint64_t* bytes) {
  const std::lock_guard lock(mutex);
  if (comm->busy || stat != 3) return ncclInvalidArgument;
  *bytes = 48'000'000;
  return ncclSuccess;
}

ncclResult_t ncclCommFinalize(ncclComm_t comm) {
  const std::lock_guard lock(mutex);
  if (comm->busy) return ncclInvalidArgument;
  comm->finalizing = true;
  begin(*comm);
  ++comm->clique->finalized;
  return ncclInProgress;
}

ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  const std::lock_guard lock(mutex);
  --counted.communicators;
  std::erase_if(live_windows, [&](const auto& of) { return of.first == comm; });
  go_back_to_device();
  const std::unique_ptr<ncclComm> owned(comm);
  return ncclSuccess;
}

ncclResult_t ncclCommAbort(ncclComm_t comm) {
  const std::lock_guard lock(mutex);
  ++aborts;
  --counted.communicators;
  std::erase_if(live_windows, [&](const auto& of) { return of.first == comm; });
  go_back_to_device();
  for (const auto& [out, part] : comm->parts) {
    --counted.communicators;
    const std::unique_ptr<ncclComm> untold(part);
  }
  // Calls that were aborted must not run, because their memory may already be freed.
  for (const Shared& call : comm->pending) {
    call->given_up = true;
    for (auto& queue : comm->clique->collectives) std::erase(queue, call);
    for (auto& [pair, queues] : comm->clique->messages) {
      std::erase(queues.first, call);
      std::erase(queues.second, call);
    }
  }
  changed.notify_all();
  const std::unique_ptr<ncclComm> owned(comm);
  return ncclSuccess;
}

ncclResult_t ncclGroupStart() {
  ++depth;
  return ncclSuccess;
}

ncclResult_t ncclGroupEnd() {
  if (--depth > 0) return ncclSuccess;
  const auto calls = std::exchange(group, {});
  const std::lock_guard lock(mutex);
  for (const auto& [comm, call] : calls) {
    const auto failure = failures.find(comm->rank);
    if (failure != failures.end()) {
      const ncclResult_t result = failure->second;
      failures.erase(failure);
      return result;
    }
    // A call on a communicator of another GPU than the current one is an error.
    if (comm->device != current_device()) return ncclInvalidUsage;
    if (comm->busy) return ncclInvalidArgument;
  }
  std::map<std::pair<ncclComm_t, cudaStream_t>, std::vector<Shared>> streamed;
  for (const auto& [comm, call] : calls) {
    call->src_place = place_of(*comm, call->src);
    call->dst_place = place_of(*comm, call->dst);
    open_copy_engines(*comm, *call);
    comm->pending.push_back(call);
    comm->asked = false;
    if (call->stream != nullptr) {
      streamed[{comm, call->stream}].push_back(call);
    } else {
      arrive_and_tell(*comm->clique, comm->rank, call);
    }
  }
  for (const auto& [comm, call] : calls) begin(*comm);
  for (const auto& [where, launched] : streamed) {
    const bool gathers = launched.front()->kind == Kind::all_gather;
    const auto least = least_time(gathers ? where.first->policy : -1);
    emulated::enqueue(where.second,
                      [clique = where.first->clique, rank = where.first->rank, launched, least] {
                        std::this_thread::sleep_for(least);
                        run_in_stream(clique, rank, launched);
                      });
  }
  return calls.empty() ? ncclSuccess : ncclInProgress;
}

ncclResult_t ncclAllGather(const void* src, void* dst, std::size_t count, ncclDataType_t type,
                           ncclComm_t comm, cudaStream_t stream) {
  return post(comm, {Kind::all_gather, src, dst, count, type, 0, 0, stream});
}
ncclResult_t ncclAlltoAll(const void* src, void* dst, std::size_t count, ncclDataType_t type,
                          ncclComm_t comm, cudaStream_t stream) {
  return post(comm, {Kind::all_to_all, src, dst, count, type, 0, 0, stream});
}
ncclResult_t ncclAllReduce(const void* src, void* dst, std::size_t count, ncclDataType_t type,
                           ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
  return post(comm, {Kind::all_reduce, src, dst, count, type, op, 0, stream});
}
ncclResult_t ncclBroadcast(const void* src, void* dst, std::size_t count, ncclDataType_t type,
                           int root, ncclComm_t comm, cudaStream_t stream) {
  return post(comm, {Kind::broadcast, src, dst, count, type, 0, root, stream});
}
ncclResult_t ncclReduce(const void* src, void* dst, std::size_t count, ncclDataType_t type,
                        ncclRedOp_t op, int root, ncclComm_t comm, cudaStream_t stream) {
  return post(comm, {Kind::reduce, src, dst, count, type, op, root, stream});
}
ncclResult_t ncclReduceScatter(const void* src, void* dst, std::size_t count, ncclDataType_t type,
                               ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
  return post(comm, {Kind::reduce_scatter, src, dst, count, type, op, 0, stream});
}
ncclResult_t ncclSend(const void* src, std::size_t count, ncclDataType_t type, int peer,
                      ncclComm_t comm, cudaStream_t stream) {
  return post(comm, {Kind::send, src, nullptr, count, type, 0, peer, stream});
}
ncclResult_t ncclRecv(void* dst, std::size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  return post(comm, {Kind::recv, nullptr, dst, count, type, 0, peer, stream});
}

ncclResult_t ncclMemAlloc(void** memory, std::size_t bytes) {
  const std::lock_guard lock(mutex);
  ++counted.allocations;
  constexpr std::size_t page = 4096;  // the real NCCL uses pages of 2 MiB
  const std::size_t whole = (bytes + page - 1) / page * page;
  return cudaMalloc(memory, whole) == cudaSuccess ? ncclSuccess : ncclSystemError;
}
ncclResult_t ncclMemFree(void* memory) {
  const std::lock_guard lock(mutex);
  if (std::ranges::any_of(live_windows, [&](const auto& of) { return of.second == memory; })) {
    return ncclInvalidUsage;  // the caller must first deregister all windows of this memory
  }
  --counted.allocations;
  go_back_to_device();
  return cudaFree(memory) == cudaSuccess ? ncclSuccess : ncclSystemError;
}
// Returns success at once, but sets *window only when a later status query of the communicator
// returns success, as NCCL does.
ncclResult_t ncclCommWindowRegister(ncclComm_t comm, void* memory, std::size_t bytes,
                                    ncclWindow_t* window, int flags) {
  if (flags != NCCL_WIN_COLL_SYMMETRIC) return ncclInvalidArgument;
  const std::lock_guard lock(mutex);
  if (comm->busy) return ncclInvalidArgument;
  begin(*comm);
  *window = nullptr;
  if (!gives_windows) return ncclSuccess;
  comm->windows.emplace_back(window, static_cast<ncclWindow_t>(memory));
  live_windows.emplace(comm, memory);
  comm->registered.emplace_back(static_cast<const char*>(memory), bytes);
  return ncclSuccess;
}
// Counts as a window in fake_gpu::left(), so that tests find registrations that nobody ended.
ncclResult_t ncclCommRegister(const ncclComm_t comm, void* memory, std::size_t /*bytes*/,
                              void** handle) {
  const std::lock_guard lock(mutex);
  if (comm->busy) return ncclInvalidArgument;
  live_windows.emplace(comm, memory);
  *handle = memory;
  return ncclSuccess;
}
ncclResult_t ncclCommDeregister(const ncclComm_t comm, void* handle) {
  const std::lock_guard lock(mutex);
  if (comm->busy || live_windows.erase({comm, handle}) == 0) return ncclInvalidArgument;
  return ncclSuccess;
}
ncclResult_t ncclCommWindowDeregister(ncclComm_t comm, ncclWindow_t window) {
  const std::lock_guard lock(mutex);
  if (comm->busy || live_windows.erase({comm, window}) == 0) return ncclInvalidArgument;
  return ncclSuccess;
}

}  // end of extern "C"
