#include "communicator.hpp"

#include <fmt/format.h>
#include <sys/utsname.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "atoll/cuda/environment.hpp"
#include "log.hpp"
#include "sdk/backend.hpp"

namespace atoll_nccl {
namespace {

using namespace std::chrono_literals;

// A launch takes 10 to 100 us. A sleep of the thread that launches compute would take at least the
// 50 us of Linux' timer slack, so the thread polls for this time before it sleeps.
constexpr auto polling_time = 200us;
constexpr auto shortest_pause = 10us;
constexpr auto longest_pause = 1ms;
// Interval at which a communicator that is opening asks the store whether the job has failed. It
// doubles up to longest_failure_interval, to spare the store on rank 0.
constexpr auto failure_interval = 250ms;
constexpr auto longest_failure_interval = 2'000ms;
// Maximum time to wait until the other ranks close the communicator as well. NCCL frees its memory
// only after that.
constexpr auto finalize_limit = 10s;

std::uintptr_t address_of(const void* memory) { return reinterpret_cast<std::uintptr_t>(memory); }

std::string key(const atoll_group& group, std::string_view what) {
  return fmt::format("{}/nccl/{}", group.id, what);
}

void put(const atoll_core& core, const std::string& name, std::span<const char> value) {
  const atoll_status status = core.put(core.ctx, name.c_str(), value.data(), value.size());
  if (status != ATOLL_OK)
    throw Error(status, fmt::format("cannot write the key {} to the store", name));
}

void get(const atoll_core& core, const atoll_group& group, const std::string& name,
         std::span<char> value) {
  std::size_t n = value.size();
  const atoll_status status = core.get(core.ctx, name.c_str(), value.data(), &n, group.timeout_ns);
  if (status == ATOLL_OK && n == value.size()) return;
  throw Error(status == ATOLL_OK ? ATOLL_BAD_DATA : status,
              fmt::format("opening communicator {}: the key {} did not appear in the store; has "
                          "every rank started?",
                          group.name, name));
}

// A barrier over the ranks of a group that uses the store. It runs before NCCL's bootstrap, which
// would not name absent ranks. Rank 0 waits until all ranks have arrived, and throws an error that
// names an absent rank at the timeout. The other ranks do not wait.
void meet(const atoll_core& core, const atoll_group& group) {
  if (group.rank != 0) return put(core, key(group, fmt::format("ready/{}", group.rank)), {});
  for (int rank = 1; rank < group.nranks; ++rank) {
    get(core, group, key(group, fmt::format("ready/{}", rank)), {});
  }
}

// Returns NCCL's unique id, which rank 0 creates after all ranks have arrived.
ncclUniqueId identity(const atoll_core& core, const atoll_group& group) {
  meet(core, group);
  ncclUniqueId id{};
  if (group.rank == 0) {
    check(ncclGetUniqueId(&id), "ncclGetUniqueId");
    put(core, key(group, "id"), id.internal);
  } else {
    get(core, group, key(group, "id"), id.internal);
  }
  return id;
}

// Throws Error for options that NCCL cannot honor: NCCL chooses algorithms by its own model and
// cannot order its sums.
void refuse_options(const atoll_group& group) {
  if (group.tuning != nullptr && *group.tuning != '\0') {
    throw Error(ATOLL_INVALID_ARGUMENT,
                "the nccl backend leaves algorithms to NCCL: set NCCL_ALGO or NCCL_TUNER_PLUGIN "
                "instead of ATOLL_ALGORITHM and ATOLL_TUNING");
  }
  if (group.tags != 0) throw Error(ATOLL_UNSUPPORTED, "the nccl backend does not support tags");
  if (group.deterministic != 0) {
    throw Error(ATOLL_UNSUPPORTED,
                "the nccl backend cannot sum in a fixed order, because NCCL chooses the order");
  }
}

// The version of the loaded NCCL, which may be older or newer than that of the build.
int loaded_version() {
  int version = 0;
  check(ncclGetVersion(&version), "ncclGetVersion");
  return version;
}

// NCCL's policy for the compute units (SMs) that kernels of a communicator take. NCCL 2.27 refuses
// the policy that takes none.
int policy_of(std::int32_t compute_units) {
  constexpr int zero = 2;  // value of NCCL_CTA_POLICY_ZERO
  const bool none = compute_units == ATOLL_COMPUTE_UNITS_NONE;
  if (none && loaded_version() >= NCCL_VERSION(2, 28, 0)) return zero;
  return compute_units == ATOLL_COMPUTE_UNITS_ANY ? NCCL_CTA_POLICY_DEFAULT
                                                  : NCCL_CTA_POLICY_EFFICIENCY;
}

ncclConfig_t config_of(const atoll_group* group) {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  if (group == nullptr) return config;
  config.commName = group->name;
  config.CTAPolicy = policy_of(group->compute_units);
  return config;
}

// Warns once if the loaded NCCL can hang: on ARM processors, the proxy of versions before 2.29.3,
// which moves data between hosts, can lose entries of its queue. A rank then waits forever, without
// an error.
void warn_of_hang(const atoll_core& core, const atoll_group& group) {
  const auto placements = std::span(group.placements, static_cast<std::size_t>(group.nranks));
  const bool one_host = std::ranges::all_of(
      placements, [&](const atoll_placement* one) { return one->host == placements[0]->host; });
  utsname system{};
  if (group.rank != 0 || one_host || ::uname(&system) != 0) return;
  if (std::string_view(system.machine) != "aarch64") return;
  const int version = loaded_version();
  if (version >= NCCL_VERSION(2, 29, 3)) return;
  static std::atomic<bool> warned{false};
  if (warned.exchange(true)) return;
  core.log(core.ctx, ATOLL_LOG_WARN,
           fmt::format("NCCL {}.{}.{} can hang between hosts with ARM processors, such as Grace, "
                       "without an error: install NCCL 2.29.3 or later",
                       version / 10'000, version / 100 % 100, version % 100)
               .c_str());
}

// The preference that probe() reports. It exceeds that of other backends, because NCCL is the best
// choice for GPU memory.
constexpr std::int32_t preference = 100;

}  // namespace

std::int32_t NcclCommunicator::probe(const atoll_group& world) {
  if (world.memory != ATOLL_MEMORY_CUDA) {
    throw Error(ATOLL_UNSUPPORTED, "the nccl backend supports GPU memory only");
  }
  int devices = 0;
  const cudaError_t found = cudaGetDeviceCount(&devices);
  if (found == cudaSuccess && devices > 0) return preference;
  cudaGetLastError();  // clears the error that the CUDA runtime has stored
  throw Error(ATOLL_UNSUPPORTED,
              found == cudaSuccess
                  ? std::string("the CUDA runtime finds no GPU")
                  : std::string("the CUDA runtime finds no GPU: ") + cudaGetErrorString(found));
}

// Returns 2 for reductions of bf16 and f16, because NCCL's rings round a partial result at every
// rank, and for averages of floating types, because NCCL divides before it adds. Returns 0 for
// 16-bit integers and operators of bits, which NCCL lacks, and for all_to_all_v and gather_v, which
// this backend would also have to build from messages.
std::int32_t NcclCommunicator::capability(std::int32_t kind, std::int32_t dtype, std::int32_t op,
                                          std::int32_t memory) {
  if (memory != ATOLL_MEMORY_CUDA || !is_known(kind, dtype, op)) return 0;
  if (kind == ATOLL_ALL_TO_ALL_V || kind == ATOLL_GATHER_V) return 0;
  if (kind == ATOLL_BARRIER || !reduces(kind)) return 1;
  if (atoll_abi::is_bitwise(op)) return 0;
  if (atoll_abi::is_integer(dtype)) return dtype_size(dtype) == 2 ? 0 : 1;
  return dtype_size(dtype) == 2 || op == ATOLL_AVG ? 2 : 1;
}

std::unique_ptr<NcclCommunicator> NcclCommunicator::open(const atoll_core& core,
                                                         const atoll_group& group) {
  if (group.memory != ATOLL_MEMORY_CUDA) {
    throw Error(ATOLL_UNSUPPORTED, "the nccl backend supports GPU memory only");
  }
  refuse_options(group);
  const int device = group.placements[group.rank]->device;
  if (device < 0)
    throw Error(ATOLL_INVALID_ARGUMENT, "the placement of this rank does not specify a GPU");
  // Makes NCCL run the operations of several communicators on one GPU in launch order. All ranks
  // launch in the same order, so no operation waits for a GPU that another operation occupies.
  constexpr const char* order = "NCCL_LAUNCH_ORDER_IMPLICIT";
  static std::once_flag ordered;
  std::call_once(ordered, [&] {
    if (group.owns_process != 0) return atoll_abi::add_to_environment({fmt::format("{}=1", order)});
    if (std::getenv(order) != nullptr) return;
    core.log(core.ctx, ATOLL_LOG_INFO,
             fmt::format("{} is not set: operations of two communicators on one GPU can wait for "
                         "each other; set it to 1, or set ATOLL_OWNS_PROCESS=1",
                         order)
                 .c_str());
  });
  keep_log(group.owns_process != 0);
  const auto deadline = deadline_of(group.timeout_ns);
  const Current current(device);
  std::unique_ptr<NcclCommunicator> comm(new NcclCommunicator(core, group, device));
  // Allocates the barrier word before identity() waits for the other ranks through the store. If
  // the allocation fails here, the other ranks report this rank as absent.
  comm->make_barrier_word();
  const ncclUniqueId id = identity(core, group);
  warn_of_hang(core, group);
  ncclConfig_t config = config_of(&group);
  comm->run("ncclCommInitRankConfig", deadline, [&] {
    return ncclCommInitRankConfig(&comm->nccl_, group.nranks, id, group.rank, &config);
  });
  release_environment();
  comm->broken_ = false;
  return comm;
}

std::unique_ptr<NcclCommunicator> NcclCommunicator::split(const atoll_group* group) {
  const Current current(device_);
  std::unique_ptr<NcclCommunicator> part;
  if (group != nullptr) {
    refuse_options(*group);
    part.reset(new NcclCommunicator(core_, *group, device_));
    part->make_barrier_word();
    meet(core_, *group);
  }
  const auto deadline = deadline_of(timeout_ns_);
  // ncclCommSplit() needs a color for each group: the world rank of the group's first rank. It is
  // unique, because the groups of a split are disjoint.
  const int color = group ? group->placements[0]->world_rank : NCCL_SPLIT_NOCOLOR;
  ncclConfig_t config = config_of(group);
  ncclComm_t& made = *splits_.emplace_back(std::make_unique<ncclComm_t>(nullptr));
  // `made` becomes valid when the parent communicator is ready.
  run("ncclCommSplit", deadline,
      [&] { return ncclCommSplit(nccl_, color, group ? group->rank : 0, &made, &config); });
  if (!part) return nullptr;
  if (made == nullptr) throw Error(ATOLL_BACKEND, "ncclCommSplit returned no communicator");
  part->nccl_ = made;
  part->complete(ncclInProgress, "ncclCommSplit", deadline);
  part->broken_ = false;
  return part;
}

NcclCommunicator::NcclCommunicator(const atoll_core& core, const atoll_group& group, int device)
    : core_(core),
      rank_(group.rank),
      size_(group.nranks),
      device_(device),
      unset_key_(key(group, "unset")),
      timeout_ns_(group.timeout_ns) {
  note_open();
}

void NcclCommunicator::make_barrier_word() {
  void* word = nullptr;
  check(cudaMalloc(&word, sizeof(std::int32_t)), "cudaMalloc");
  barrier_word_.reset(word);
  check(cudaMemset(word, 0, sizeof(std::int32_t)), "cudaMemset");
  check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
}

NcclCommunicator::~NcclCommunicator() {
  note_closed();
  try {
    const Current current(device_);  // the closing thread may have another current device
    end();
    barrier_word_.reset();
  } catch (const Error&) {
    end();
    // The device has no context left, so its memory, including barrier_word_, no longer exists.
    // Freeing the word here would create a context on another device.
    static_cast<void>(barrier_word_.release());
  }
}

// Closes the NCCL communicator. Finalizing it waits for operations in flight, also on other ranks.
// After finalizing has timed out once, this process aborts its other communicators without waiting.
void NcclCommunicator::end() noexcept {
  static std::atomic<bool> others_are_gone{false};
  const std::lock_guard lock(calls_);
  if (nccl_ == nullptr) return;
  ncclResult_t state = broken_ || others_are_gone ? ncclSystemError : ncclSuccess;
  const auto deadline = Clock::now() + finalize_limit;
  const auto finish = [&](ncclResult_t result) {
    // The call may still be in progress although it has returned ncclSuccess.
    state = result == ncclSuccess ? ncclInProgress : result;
    while (state == ncclInProgress && Clock::now() < deadline) {
      if (ncclCommGetAsyncError(nccl_, &state) != ncclSuccess) state = ncclSystemError;
      if (state == ncclInProgress) std::this_thread::sleep_for(longest_pause);
    }
  };
  // Deregisters all windows first, because NCCL 2.28 otherwise never frees their memory.
  for (const ncclWindow_t window : windows_) {
    if (window != nullptr && state == ncclSuccess) {
      finish(ncclCommWindowDeregister(nccl_, window));
    }
  }
  if (state == ncclSuccess) finish(ncclCommFinalize(nccl_));
  if (state == ncclInProgress) others_are_gone = true;
  if (state == ncclSuccess) {
    ncclCommDestroy(nccl_);
  } else {
    ncclCommAbort(nccl_);
  }
  nccl_ = nullptr;
}

void NcclCommunicator::abort() noexcept {
  if (aborted_.exchange(true)) return;
  const std::lock_guard lock(calls_);
  ncclComm_t comm = std::exchange(nccl_, nullptr);
  if (comm == nullptr) return;
  aborting_ = std::jthread([comm, device = device_] {
    // Before ncclCommAbort() returns, it restores the device that was current when it was called.
    cudaSetDevice(device);
    ncclCommAbort(comm);
  });
}

NcclCommunicator::Clock::time_point NcclCommunicator::deadline_of(std::int64_t timeout_ns) {
  const auto now = Clock::now();
  const auto timeout = std::chrono::nanoseconds(timeout_ns);
  const bool limited = timeout_ns > 0 && timeout < Clock::time_point::max() - now;
  return limited ? now + timeout : Clock::time_point::max();
}

std::unique_lock<std::mutex> NcclCommunicator::lock(std::string_view call) {
  std::unique_lock locked(calls_);
  if (aborted_) throw Error(ATOLL_ABORTED, fmt::format("{}: the communicator was aborted", call));
  return locked;
}

// Asks the store for a key that no rank puts. The request times out, unless the job has failed.
void NcclCommunicator::check_job(std::string_view call) const {
  constexpr std::int64_t at_once_ns = 1'000'000;
  std::size_t n = 0;
  const atoll_status status = core_.get(core_.ctx, unset_key_.c_str(), nullptr, &n, at_once_ns);
  if (status == ATOLL_OK || status == ATOLL_TIMEOUT) return;
  throw Error(ATOLL_ABORTED, fmt::format("{}: the job has failed", call));
}

void NcclCommunicator::complete(ncclResult_t result, std::string_view call,
                                Clock::time_point deadline) {
  const auto sleeping = Clock::now() + polling_time;
  auto interval = failure_interval;
  auto next_check = Clock::now() + interval;
  std::chrono::microseconds pause = shortest_pause;
  while (true) {
    {
      const auto locked = lock(call);
      // ncclCommSplit and ncclCommWindowRegister may return ncclSuccess while they are still in
      // progress, so the state of the communicator is also queried after ncclSuccess.
      if (result == ncclInProgress || result == ncclSuccess) {
        check(ncclCommGetAsyncError(nccl_, &result), "ncclCommGetAsyncError", nccl_);
      }
      if (result != ncclInProgress) return check(result, call, nccl_);
    }
    const auto now = Clock::now();
    if (now >= deadline) throw Error(ATOLL_TIMEOUT, fmt::format("{}: timed out", call));
    if (now < sleeping) continue;
    // Core cannot abort a communicator that is not open yet, so this loop looks for a failed job.
    if (broken_ && now >= next_check) {
      check_job(call);
      interval = std::min(2 * interval, longest_failure_interval);
      next_check = Clock::now() + interval;
    }
    std::this_thread::sleep_for(pause);
    pause = std::min<std::chrono::microseconds>(2 * pause, longest_pause);
  }
}

void NcclCommunicator::submit(std::span<atoll_operation* const> all) {
  for (const atoll_operation* operation : all) {
    // Factors are refused. NCCL could scale with a premultiplied sum, but its factor is part of the
    // operator, and NCCL selects the algorithm by the operator. So ranks with different factors
    // could run different algorithms, and no rank knows the factors of the other ranks.
    if (operation->factor != 1.0) {
      throw Error(ATOLL_UNSUPPORTED,
                  fmt::format("{}: the nccl backend does not support factors other than 1",
                              describe(*operation)));
    }
  }
  try {
    if (broken_) throw Error(ATOLL_ABORTED, "an earlier operation of this communicator failed");
    launch(all);
  } catch (const Error& error) {
    broken_ = true;
    throw Error(error.status(), describe(*all.front()) + ": " + error.what());
  }
}

void NcclCommunicator::launch(std::span<atoll_operation* const> operations) {
  const auto has = [&](std::int32_t kind) {
    return std::ranges::any_of(
        operations, [&](const atoll_operation* o) { return o->kind == kind && o->count > 0; });
  };
  const auto suits_copy_engines = [&](const atoll_operation* o) {
    return o->kind == ATOLL_ALL_GATHER && is_in_window(o->src) && is_in_window(o->dst);
  };
  const bool gathers = has(ATOLL_ALL_GATHER), exchanges = has(ATOLL_ALL_TO_ALL);
  const std::int64_t before = log_size();
  const auto deadline = deadline_of(operations.front()->timeout_ns);
  const Current current(device_);
  // Waits until all work is launched, because the caller records events after this function
  // returns.
  run("launching the operations", deadline, [&] {
    check(ncclGroupStart(), "ncclGroupStart", nccl_);
    ncclResult_t result = ncclSuccess;
    for (const atoll_operation* operation : operations) {
      result = worse(result, perform(*this, *operation));
    }
    return worse(result, ncclGroupEnd());  // the group must end even if a call in it has failed
  });
  // Only these collectives can run on copy engines. opened_copy_engines() reads the log since
  // `before`, where no other launch writes, because the library launches on one thread.
  if ((gathers || exchanges) && !has_copy_engines_) has_copy_engines_ = opened_copy_engines(before);
  if (gathers) {
    note_gather(has_copy_engines_ && std::ranges::any_of(operations, suits_copy_engines));
  }
}

void NcclCommunicator::check_async() {
  const auto locked = lock("ncclCommGetAsyncError");
  ncclResult_t state = ncclSuccess;
  check(ncclCommGetAsyncError(nccl_, &state), "ncclCommGetAsyncError", nccl_);
  if (state == ncclInProgress) return;
  if (state != ncclSuccess) broken_ = true;
  check(state, "an operation failed after its launch", nccl_);
}

void NcclCommunicator::register_window(void* memory, std::size_t bytes) {
  const Current current(device_);
  ncclWindow_t& window = windows_.emplace_back(nullptr);
  run("ncclCommWindowRegister", deadline_of(timeout_ns_), [&] {
    return ncclCommWindowRegister(nccl_, memory, bytes, &window, NCCL_WIN_COLL_SYMMETRIC);
  });
  // From 2.29 on, NCCL registers nothing and leaves the handle null if the communicator has no
  // symmetric memory.
  const bool is_window = window != nullptr;
  void* const handle = is_window ? nullptr : register_with_networks(memory, bytes);
  registered_.insert_or_assign(address_of(memory), Registered{bytes, handle, true, is_window});
}

void* NcclCommunicator::register_with_networks(void* memory, std::size_t bytes) {
  void* handle = nullptr;
  run("ncclCommRegister", deadline_of(timeout_ns_),
      [&] { return ncclCommRegister(nccl_, memory, bytes, &handle); });
  return handle;
}

bool NcclCommunicator::is_in_window(const void* memory) const {
  const std::uintptr_t address = address_of(memory);
  const auto next = registered_.upper_bound(address);
  if (next == registered_.begin()) return false;
  const auto& [begin, range] = *std::prev(next);
  return range.is_window && address - begin < range.bytes;
}

void NcclCommunicator::check_unregistered(void* memory, std::size_t bytes) const {
  const std::uintptr_t begin = address_of(memory);
  auto next = registered_.upper_bound(begin);
  // Registered ranges do not overlap, so only the ranges next to the address can overlap it.
  const bool overlaps_next = next != registered_.end() && next->first - begin < bytes;
  if (!overlaps_next) {
    if (next == registered_.begin()) return;
    --next;
    if (begin - next->first >= next->second.bytes) return;
  }
  const auto& [address, other] = *next;
  throw Error(
      ATOLL_INVALID_ARGUMENT,
      fmt::format("the {} bytes at {:#x} overlap the {} bytes at {:#x}, which are registered "
                  "already: {}",
                  bytes, begin, other.bytes, address,
                  other.is_own ? "memory from allocate() needs no other registration"
                               : "end that registration first"));
}

void NcclCommunicator::register_buffer(void* memory, std::size_t bytes) {
  check_unregistered(memory, bytes);
  const Current current(device_);
  registered_.emplace(address_of(memory), Registered{bytes, register_with_networks(memory, bytes)});
}

void NcclCommunicator::deregister_buffer(void* memory) {
  const auto found = registered_.find(address_of(memory));
  if (found == registered_.end() || found->second.is_own) {
    throw Error(ATOLL_NOT_FOUND, "deregister_caller_memory: this address is not registered");
  }
  void* const handle = found->second.handle;
  registered_.erase(found);
  if (handle == nullptr) return;
  const Current current(device_);
  run("ncclCommDeregister", deadline_of(timeout_ns_),
      [&] { return ncclCommDeregister(nccl_, handle); });
}

}  // namespace atoll_nccl
