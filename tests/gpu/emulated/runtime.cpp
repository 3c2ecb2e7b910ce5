// The functions of the CUDA runtime that atoll calls, for the emulated GPU. Streams are host
// threads.
#include <cuda.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string_view>
#include <thread>
#include <vector>

#include "block.hpp"

// The largest shared memory of a block on sm_90.
constinit thread_local float4 dynamic_shared[(227u << 10) / sizeof(float4)];

namespace {

using Clock = std::chrono::steady_clock;

std::size_t page() { return static_cast<std::size_t>(::sysconf(_SC_PAGESIZE)); }

std::size_t round_up(std::size_t bytes, std::size_t to) { return (bytes + to - 1) / to * to; }

struct Range {
  void* first = nullptr;  // address of the first byte of the mapping
  std::size_t bytes = 0;  // number of mapped bytes, including the protected page at the end
};
using Ranges = std::map<void*, Range>;  // by the address that the caller got

bool has(const Ranges& ranges, const void* address) {
  const auto behind = ranges.upper_bound(const_cast<void*>(address));
  if (behind == ranges.begin()) return false;
  const Range& range = std::prev(behind)->second;
  return address < static_cast<std::byte*>(range.first) + range.bytes;
}

// Device memory. The host can access it while any stream has work; once the host has waited for all
// work, the memory is protected against access.
class Memory {
 public:
  void begin_work() {
    const std::lock_guard lock(mutex_);
    if (work_++ == 0 && closed_) protect(PROT_READ | PROT_WRITE);
  }
  void end_work() {
    const std::lock_guard lock(mutex_);
    --work_;
  }
  void close_if_idle() {
    const std::lock_guard lock(mutex_);
    if (work_ == 0 && !closed_ && closes_) protect(PROT_NONE);
  }
  void add(void* data, Range range) {
    const std::lock_guard lock(mutex_);
    ranges_[data] = range;
    if (closed_) ::mprotect(range.first, range.bytes, PROT_NONE);
  }
  bool has(const void* address) {
    const std::lock_guard lock(mutex_);
    return ::has(ranges_, address);
  }
  // Removes an allocation from the list and returns its range. Returns an empty range if there is
  // no such allocation.
  Range remove(void* data) {
    const std::lock_guard lock(mutex_);
    const auto found = ranges_.find(data);
    if (found == ranges_.end()) return {};
    const Range range = found->second;
    ranges_.erase(found);
    return range;
  }

 private:
  void protect(int rights) {
    for (const auto& [data, range] : ranges_) {
      ::mprotect(range.first, range.bytes - page(), rights);
    }
    closed_ = rights == PROT_NONE;
  }

  std::mutex mutex_;
  Ranges ranges_;
  std::uint64_t work_ = 0;  // number of operations that are enqueued but not complete
  bool closed_ = false;
  // False if EMULATED_GPU_OPEN is set. Memory then always stays accessible, because protecting it
  // would take most of the time of test suites with thousands of small operations.
  bool closes_ = std::getenv("EMULATED_GPU_OPEN") == nullptr;
};
Memory& memory() {
  // Never destroyed, because streams may still use it after main has returned.
  static auto* const one = new Memory;
  return *one;
}

// Pinned CPU memory. Copies access it only when their stream reaches them.
struct Pinned {
  std::mutex mutex;
  Ranges ranges;
};
Pinned& pinned() {
  static auto* const one = new Pinned;
  return *one;
}
bool is_pageable(const void* address) {
  const std::lock_guard lock(pinned().mutex);
  return !memory().has(address) && !has(pinned().ranges, address);
}

constexpr int devices = 8;
thread_local int current_device = 0;
// For each device, whether this process has a context on it. A call that needs a context creates
// one on the current device of the thread.
std::atomic<bool> contexts[devices];
void bring_up() { contexts[current_device] = true; }
thread_local cudaError_t last_error = cudaSuccess;
cudaError_t give(cudaError_t error) {
  if (error != cudaSuccess && error != cudaErrorNotReady) last_error = error;
  return error;
}

// Limits in bytes of dynamic shared memory, for kernels that requested more than the default.
struct SharedLimits {
  std::mutex mutex;
  std::map<const void*, std::size_t> bytes;
};
SharedLimits& shared_limits() {
  static auto* const one = new SharedLimits;
  return *one;
}
std::size_t shared_limit(const void* kernel) {
  constexpr std::size_t usual = 48u << 10;
  const std::lock_guard lock(shared_limits().mutex);
  const auto found = shared_limits().bytes.find(kernel);
  return found == shared_limits().bytes.end() ? usual : found->second;
}

}  // namespace

// A stream of the emulated GPU: a queue of work and a thread that runs the work.
struct CUstream_st {
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<std::function<void()>> work;
  bool busy = false, ending = false;
  std::thread thread{[this] { run(); }};

  ~CUstream_st() {
    {
      const std::lock_guard lock(mutex);
      ending = true;
    }
    changed.notify_all();
    thread.join();
  }
  void push(std::function<void()> item) {
    {
      const std::lock_guard lock(mutex);
      work.push_back(std::move(item));
    }
    changed.notify_all();
  }
  void wait_until_idle() {
    std::unique_lock lock(mutex);
    changed.wait(lock, [this] { return work.empty() && !busy; });
  }
  void run() {
    std::unique_lock lock(mutex);
    while (true) {
      changed.wait(lock, [this] { return ending || !work.empty(); });
      if (work.empty()) return;
      auto item = std::move(work.front());
      work.pop_front();
      busy = true;
      lock.unlock();
      item();
      item = nullptr;
      lock.lock();
      busy = false;
      changed.notify_all();
    }
  }
};

// An event of the emulated GPU, which refers to the last time that it was recorded.
struct CUevent_st {
  struct Record {
    std::mutex mutex;
    std::condition_variable changed;
    bool done = false;
    Clock::time_point time;

    void complete() {
      {
        const std::lock_guard lock(mutex);
        time = Clock::now();
        done = true;
      }
      changed.notify_all();
    }
    void wait() {
      std::unique_lock lock(mutex);
      changed.wait(lock, [this] { return done; });
    }
  };
  std::mutex mutex;
  std::shared_ptr<Record> record;

  std::shared_ptr<Record> now() {
    const std::lock_guard lock(mutex);
    return record;
  }
};

namespace {

// Returns the stream of a handle; the handles of the legacy default stream have no memory.
CUstream_st* queue(cudaStream_t stream) {
  static auto* const legacy = new CUstream_st;
  return stream == cudaStreamLegacy || stream == nullptr ? legacy : stream;
}

}  // namespace

namespace emulated {

bool has_context(int device) { return contexts[device]; }
void forget_contexts() {
  for (auto& context : contexts) context = false;
}

void enqueue(cudaStream_t stream, std::function<void()> work) {
  memory().begin_work();
  queue(stream)->push([work = std::move(work)] {
    work();
    memory().end_work();
  });
}

cudaError_t launch(const Kernel& kernel, std::function<void()> thread) {
  bring_up();
  const std::uint64_t blocks = std::uint64_t{kernel.grid.x} * kernel.grid.y * kernel.grid.z;
  const bool fits = kernel.shared_bytes <= shared_limit(kernel.function) && kernel.grid.y < 65536 &&
                    kernel.grid.z < 65536 && blocks > 0;
  if (!fits) return give(cudaErrorInvalidConfiguration);
  ++launches().kernels;
  enqueue(kernel.stream, [kernel, thread = std::move(thread)] {
    uint3 at{};
    for (at.z = 0; at.z < kernel.grid.z; ++at.z) {
      for (at.y = 0; at.y < kernel.grid.y; ++at.y) {
        for (at.x = 0; at.x < kernel.grid.x; ++at.x) {
          std::memset(static_cast<void*>(dynamic_shared), 0xff, kernel.shared_bytes);
          block().run(kernel, at, thread);
        }
      }
    }
  });
  return cudaSuccess;
}

}  // namespace emulated

extern "C" {

cudaError_t cudaGetDeviceCount(int* count) {
  *count = devices;
  return cudaSuccess;
}
cudaError_t cudaGetDevice(int* device) {
  *device = current_device;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) {
  if (device < 0 || device >= devices) return give(cudaErrorInvalidDevice);
  current_device = device;
  bring_up();
  return cudaSuccess;
}
// Does nothing, because all work runs on streams, which callers synchronize one by one.
cudaError_t cudaDeviceSynchronize() { return cudaSuccess; }
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  *properties = {};
  std::snprintf(properties->name, sizeof properties->name, "emulated");
  properties->totalGlobalMem = std::size_t{1} << 30;
  properties->major = 9;
  properties->uuid.bytes[15] = static_cast<char>(device);
  return cudaSuccess;
}
CUresult primary_context_state(CUdevice device, unsigned* flags, int* active) {
  *flags = 0;
  *active = contexts[device];
  return CUDA_SUCCESS;
}
cudaError_t cudaGetDriverEntryPointByVersion(const char* symbol, void** function, unsigned,
                                             unsigned long long,
                                             cudaDriverEntryPointQueryResult* result) {
  *function = nullptr;
  if (std::string_view(symbol) == "cuDevicePrimaryCtxGetState")
    *function = reinterpret_cast<void*>(primary_context_state);
  *result = *function ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
  return cudaSuccess;
}
cudaError_t cudaGetLastError() { return std::exchange(last_error, cudaSuccess); }
const char* cudaGetErrorString(cudaError_t) { return "an error of the emulated GPU"; }
const char* cudaGetErrorName(cudaError_t error) {
  return error == cudaErrorMemoryAllocation ? "cudaErrorMemoryAllocation" : "cudaError";
}

// The allocation ends at a protected page, apart from padding to the alignment.
cudaError_t cudaMalloc(void** out, std::size_t bytes) {
  bring_up();
  constexpr std::size_t alignment = 256;
  if (bytes > std::size_t{1} << 40) return give(cudaErrorMemoryAllocation);
  const std::size_t used = round_up(std::max<std::size_t>(bytes, 1), alignment);
  const std::size_t mapped = round_up(used, page());
  void* const first = ::mmap(nullptr, mapped + page(), PROT_READ | PROT_WRITE,
                             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (first == MAP_FAILED) return give(cudaErrorMemoryAllocation);
  std::memset(first, 0xff, mapped);  // every byte 0xff is NaN in every floating point type
  auto* const end = static_cast<std::byte*>(first) + mapped;
  ::mprotect(end, page(), PROT_NONE);
  *out = end - used;
  memory().add(*out, {first, mapped + page()});
  return cudaSuccess;
}
cudaError_t cudaFree(void* data) {
  bring_up();
  if (data == nullptr) return cudaSuccess;
  const Range range = memory().remove(data);
  if (range.first == nullptr) return give(cudaErrorInvalidValue);
  ::munmap(range.first, range.bytes);
  return cudaSuccess;
}
cudaError_t cudaMemGetInfo(std::size_t* free, std::size_t* total) {
  bring_up();
  *free = *total = std::size_t{1} << 30;
  return cudaSuccess;
}
cudaError_t cudaHostAlloc(void** out, std::size_t bytes, unsigned) {
  bring_up();
  *out = std::malloc(bytes);
  if (*out == nullptr) return give(cudaErrorMemoryAllocation);
  const std::lock_guard lock(pinned().mutex);
  pinned().ranges[*out] = {*out, bytes};
  return cudaSuccess;
}
cudaError_t cudaFreeHost(void* data) {
  bring_up();
  const std::lock_guard lock(pinned().mutex);
  pinned().ranges.erase(data);
  std::free(data);
  return cudaSuccess;
}
// Pageable CPU memory is read during the call and written before the call returns, which CUDA
// allows.
cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind,
                            cudaStream_t stream) {
  bring_up();
  if (is_pageable(from)) {
    const auto* const first = static_cast<const std::byte*>(from);
    emulated::enqueue(stream, [to, copy = std::vector<std::byte>(first, first + bytes)] {
      std::memcpy(to, copy.data(), copy.size());
    });
  } else {
    emulated::enqueue(stream, [=] { std::memcpy(to, from, bytes); });
  }
  if (is_pageable(to)) queue(stream)->wait_until_idle();
  return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void* data, int value, std::size_t bytes, cudaStream_t stream) {
  bring_up();
  emulated::enqueue(stream, [=] { std::memset(data, value, bytes); });
  return cudaSuccess;
}

cudaError_t cudaMemset(void* data, int value, std::size_t bytes) {
  bring_up();
  memory().begin_work();
  std::memset(data, value, bytes);
  memory().end_work();
  return cudaSuccess;
}

cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  *least = *greatest = 0;
  return cudaSuccess;
}
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned, int) {
  bring_up();
  *stream = new CUstream_st;
  return cudaSuccess;
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  return cudaStreamCreateWithPriority(stream, flags, 0);
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  bring_up();
  delete stream;
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  bring_up();
  queue(stream)->wait_until_idle();
  memory().close_if_idle();
  return cudaSuccess;
}
cudaError_t cudaStreamQuery(cudaStream_t stream) {
  bring_up();
  CUstream_st& found = *queue(stream);
  const std::lock_guard lock(found.mutex);
  return found.work.empty() && !found.busy ? cudaSuccess : cudaErrorNotReady;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  bring_up();
  if (auto record = event->now()) queue(stream)->push([record] { record->wait(); });
  return cudaSuccess;
}
cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* data) {
  bring_up();
  queue(stream)->push([=] { function(data); });
  return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  bring_up();
  *event = new CUevent_st;
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete event;
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  bring_up();
  auto record = std::make_shared<CUevent_st::Record>();
  {
    const std::lock_guard lock(event->mutex);
    event->record = record;
  }
  queue(stream)->push([record] { record->complete(); });
  return cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  bring_up();
  const auto record = event->now();
  if (!record) return cudaSuccess;
  const std::lock_guard lock(record->mutex);
  return record->done ? cudaSuccess : cudaErrorNotReady;
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  bring_up();
  if (const auto record = event->now()) record->wait();
  memory().close_if_idle();
  return cudaSuccess;
}
cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t begin, cudaEvent_t end) {
  bring_up();
  const auto first = begin->now(), last = end->now();
  first->wait();
  last->wait();
  *ms = std::chrono::duration<float, std::milli>(last->time - first->time).count();
  return cudaSuccess;
}

cudaError_t cudaFuncSetAttribute(const void* function, cudaFuncAttribute attribute, int value) {
  bring_up();
  if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize) return give(cudaErrorNotSupported);
  if (static_cast<std::size_t>(value) > sizeof(dynamic_shared)) {
    return give(cudaErrorInvalidValue);
  }
  const std::lock_guard lock(shared_limits().mutex);
  shared_limits().bytes[function] = static_cast<std::size_t>(value);
  return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
  if (attribute == cudaDevAttrMultiProcessorCount) {
    *value = 132;  // as many as an H100 has
    return cudaSuccess;
  }
  if (attribute == cudaDevAttrComputeCapabilityMajor ||
      attribute == cudaDevAttrComputeCapabilityMinor) {
    const char* const major = std::getenv("EMULATED_GPU_CAPABILITY");
    *value = attribute == cudaDevAttrComputeCapabilityMinor ? 0 : major ? std::atoi(major) : 9;
    return cudaSuccess;
  }
  if (attribute != cudaDevAttrMaxSharedMemoryPerBlockOptin) return give(cudaErrorNotSupported);
  *value = static_cast<int>(sizeof(dynamic_shared));
  return cudaSuccess;
}

}  // end of extern "C"
