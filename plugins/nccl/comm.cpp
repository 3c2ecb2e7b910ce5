#include "comm.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <utility>

#include "collectives.hpp"
#include "log.hpp"
#include "sdk/describe.hpp"
#include "sdk/guard.hpp"

namespace atoll_sdk::nccl {
namespace {

using namespace std::chrono_literals;

constexpr auto shortest_pause = 10us;
constexpr auto longest_pause = 1ms;
// For the other ranks to close their communicators too; NCCL frees nothing of one that is in use.
constexpr auto farewell = 10s;

// Where every rank comes before NCCL is entered, which would not say who is absent.
class Meeting {
 public:
  Meeting(const atoll_host& host, const atoll_group& group) : host_(host), group_(group) {}

  // Rank 0 finds out who does not come; the others go on.
  void arrive() const {
    if (group_.rank != 0) return put(key("ready/" + std::to_string(group_.rank)), {});
    for (int rank = 1; rank < group_.nranks; ++rank) get(key("ready/" + std::to_string(rank)), {});
  }

  // What rank 0 gets from NCCL once all are here.
  ncclUniqueId identity() const {
    arrive();
    ncclUniqueId id{};
    if (group_.rank == 0) {
      check(ncclGetUniqueId(&id), "ncclGetUniqueId");
      put(key("id"), {id.internal, sizeof id.internal});
    } else {
      get(key("id"), {id.internal, sizeof id.internal});
    }
    return id;
  }

 private:
  std::string key(const std::string& what) const {
    return fmt::format("{}/nccl/{}", group_.id, what);
  }
  void put(const std::string& name, std::span<const char> value) const {
    const atoll_status status = host_.put(host_.ctx, name.c_str(), value.data(), value.size());
    if (status != ATOLL_OK) throw Error(status, fmt::format("cannot put {} into the store", name));
  }
  void get(const std::string& name, std::span<char> value) const {
    std::size_t n = value.size();
    const atoll_status status =
        host_.get(host_.ctx, name.c_str(), value.data(), &n, group_.timeout_ns);
    if (status == ATOLL_OK && n == value.size()) return;
    throw Error(
        status == ATOLL_OK ? ATOLL_BAD_DATA : status,
        fmt::format("the ranks of {} do not meet: {} is not in the store", group_.name, name));
  }

  const atoll_host& host_;
  const atoll_group& group_;
};

// NCCL chooses algorithms by its own model, and cannot order its sums.
void refuse_wishes(const atoll_group& group) {
  if (group.tuning != nullptr && *group.tuning != '\0') {
    throw Error(ATOLL_INVALID_ARGUMENT,
                "the nccl backend leaves algorithms to NCCL: set NCCL_ALGO or NCCL_TUNER_PLUGIN "
                "instead of ATOLL_ALGORITHM and ATOLL_TUNING");
  }
  if (group.deterministic != 0) {
    throw Error(ATOLL_UNSUPPORTED, "the nccl backend leaves the order of sums to NCCL");
  }
}

ncclResult_t perform(Comm& comm, const atoll_operation& operation) {
  const auto stream = static_cast<cudaStream_t>(operation.stream);
  if (operation.kind == ATOLL_BARRIER) return barrier(comm, operation, stream);
  if (operation.count == 0) return ncclSuccess;
  switch (operation.kind) {
    case ATOLL_BROADCAST:
      return broadcast(comm, operation, stream);
    case ATOLL_ALL_GATHER:
      return all_gather(comm, operation, stream);
    case ATOLL_REDUCE_SCATTER:
      return reduce_scatter(comm, operation, stream);
    case ATOLL_ALL_REDUCE:
      return all_reduce(comm, operation, stream);
    case ATOLL_REDUCE:
      return reduce(comm, operation, stream);
    case ATOLL_ALL_TO_ALL:
      return all_to_all(comm, operation, stream);
    case ATOLL_GATHER:
      return gather(comm, operation, stream);
    case ATOLL_SCATTER:
      return scatter(comm, operation, stream);
    case ATOLL_ALL_GATHER_V:
      return all_gather_v(comm, operation, stream);
    case ATOLL_REDUCE_SCATTER_V:
      return reduce_scatter_v(comm, operation, stream);
  }
  return send_recv(comm, operation, stream);
}

std::string describe(const atoll_operation& operation) {
  return fmt::format("{} {} ({} x {})", kind_name(operation.kind), operation.sequence,
                     operation.count, dtype_name(operation.dtype));
}

}  // namespace

// Sums of 16-bit types are core's: NCCL's rings round a partial sum at every rank. So are averages
// of floating types, which NCCL divides before it adds.
std::int32_t capability(std::int32_t kind, std::int32_t dtype, std::int32_t op,
                        std::int32_t memory) {
  if (memory != ATOLL_MEMORY_CUDA || !atoll_abi::within(atoll_abi::kinds, kind)) return 0;
  if (kind == ATOLL_BARRIER) return 1;
  if (!atoll_abi::within(atoll_abi::dtypes, dtype)) return 0;
  if (!reduces(kind)) return 1;
  if (!atoll_abi::within(atoll_abi::ops, op) || dtype == ATOLL_BF16 || dtype == ATOLL_F16) return 0;
  const bool floating = dtype == ATOLL_F32 || dtype == ATOLL_F64;
  return floating && op == ATOLL_AVG ? 0 : 1;
}

std::unique_ptr<Comm> Comm::open(const atoll_host& host, const atoll_group& group) {
  if (group.memory != ATOLL_MEMORY_CUDA) {
    throw Error(ATOLL_UNSUPPORTED, "the nccl backend takes memory of GPUs only");
  }
  refuse_wishes(group);
  const int device = group.placements[group.rank]->device;
  if (device < 0)
    throw Error(ATOLL_INVALID_ARGUMENT, "the group does not say which GPU is its rank's");
  std::unique_ptr<Comm> comm(new Comm(host, group, device));
  comm->start(group);
  return comm;
}

namespace {

ncclConfig_t config_of(const char* name) {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  config.commName = name;
  return config;
}

}  // namespace

std::unique_ptr<Comm> Comm::split(const atoll_group* group) {
  const Current current(device_);
  std::unique_ptr<Comm> part;
  if (group != nullptr) {
    refuse_wishes(*group);
    part.reset(new Comm(host_, *group, device_));
    part->make_barrier_word();
    Meeting(host_, *group).arrive();
  }
  const auto deadline = deadline_of(timeout_ns_);
  // Members of one group have its first rank in common, which no other group has.
  const int color = group ? group->placements[0]->world_rank : NCCL_SPLIT_NOCOLOR;
  ncclConfig_t config = config_of(group ? group->name : nullptr);
  ncclComm_t& made = *splits_.emplace_back(std::make_unique<ncclComm_t>(nullptr));
  ncclResult_t result = ncclSuccess;
  {
    const std::lock_guard lock(calls_);
    if (aborted_) throw Error(ATOLL_ABORTED, "ncclCommSplit: aborted");
    result = ncclCommSplit(nccl_, color, group ? group->rank : 0, &made, &config);
  }
  settle(result, "ncclCommSplit", deadline);  // the parent tells when `made` is there
  if (!part) return nullptr;
  if (made == nullptr) throw Error(ATOLL_BACKEND, "ncclCommSplit made no communicator");
  part->nccl_ = made;
  part->settle(ncclInProgress, "ncclCommSplit", deadline);
  part->broken_ = false;
  return part;
}

Comm::Comm(const atoll_host& host, const atoll_group& group, int device)
    : host_(host),
      rank_(group.rank),
      size_(group.nranks),
      device_(device),
      timeout_ns_(group.timeout_ns) {}

void Comm::start(const atoll_group& group) {
  // Operations of several communicators of a GPU, one for each lane, run in the order in which they
  // are launched, and that is the same on all ranks: none waits for a GPU that another one fills.
  ::setenv("NCCL_LAUNCH_ORDER_IMPLICIT", "1", 0);
  keep_log();
  const auto deadline = deadline_of(group.timeout_ns);
  const Current current(device_);
  make_barrier_word();  // a rank that fails here is named as absent
  const ncclUniqueId id = Meeting(host_, group).identity();
  ncclConfig_t config = config_of(group.name);
  settle(ncclCommInitRankConfig(&nccl_, size_, id, rank_, &config), "ncclCommInitRankConfig",
         deadline);
  release_environment();
  broken_ = false;
}

void Comm::make_barrier_word() {
  void* word = nullptr;
  check(cudaMalloc(&word, sizeof(std::int32_t)), "cudaMalloc");
  barrier_word_.reset(word);
  check(cudaMemset(word, 0, sizeof(std::int32_t)), "cudaMemset");
  check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
}

Comm::~Comm() {
  try {
    const Current current(device_);  // on whatever thread the last handle goes
    end();
    barrier_word_.reset();
  } catch (const Error&) {
    end();
    // On another device this would bring up a context; with its own the word is gone.
    static_cast<void>(barrier_word_.release());
  }
}

// Finalizing waits for what is under way, also on other ranks. Where they do not come once, they
// are not waited for again by this process.
void Comm::end() noexcept {
  static std::atomic<bool> others_are_gone{false};
  const std::lock_guard lock(calls_);
  if (nccl_ == nullptr) return;
  ncclResult_t state = broken_ || others_are_gone ? ncclSystemError : ncclSuccess;
  const auto deadline = Clock::now() + farewell;
  const auto finish = [&](ncclResult_t result) {
    state = result == ncclSuccess ? ncclInProgress : result;  // as settle()
    while (state == ncclInProgress && Clock::now() < deadline) {
      if (ncclCommGetAsyncError(nccl_, &state) != ncclSuccess) state = ncclSystemError;
      if (state == ncclInProgress) std::this_thread::sleep_for(longest_pause);
    }
  };
  // NCCL 2.28 does not give back what a window holds of its memory unless it is told to.
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

void Comm::abort() noexcept {
  if (aborted_.exchange(true)) return;
  const std::lock_guard lock(calls_);
  ncclComm_t comm = std::exchange(nccl_, nullptr);
  if (comm == nullptr) return;
  aborting_ = std::jthread([comm, device = device_] {
    cudaSetDevice(device);  // NCCL goes back to where the thread was
    ncclCommAbort(comm);
  });
}

Comm::Clock::time_point Comm::deadline_of(std::int64_t timeout_ns) {
  const auto now = Clock::now();
  const auto timeout = std::chrono::nanoseconds(timeout_ns);
  const bool limited = timeout_ns > 0 && timeout < Clock::time_point::max() - now;
  return limited ? now + timeout : Clock::time_point::max();
}

void Comm::settle(ncclResult_t result, std::string_view call, Clock::time_point deadline) {
  std::chrono::microseconds pause = shortest_pause;
  while (true) {
    {
      const std::lock_guard lock(calls_);
      if (aborted_) throw Error(ATOLL_ABORTED, fmt::format("{}: aborted", call));
      // ncclCommSplit and ncclCommWindowRegister give ncclSuccess while they are in progress.
      if (result == ncclInProgress || result == ncclSuccess) {
        check(ncclCommGetAsyncError(nccl_, &result), "ncclCommGetAsyncError", nccl_);
      }
      if (result != ncclInProgress) return check(result, call, nccl_);
    }
    if (Clock::now() >= deadline) throw Error(ATOLL_TIMEOUT, fmt::format("{}: timed out", call));
    std::this_thread::sleep_for(pause);
    pause = std::min<std::chrono::microseconds>(2 * pause, longest_pause);
  }
}

void Comm::submit(atoll_operation* const* operations, int n) {
  const std::span all(operations, static_cast<std::size_t>(n));
  for (const atoll_operation* operation : all) {
    if (!capability(operation->kind, operation->dtype, operation->op, operation->memory)) {
      throw Error(ATOLL_UNSUPPORTED,
                  fmt::format("{}: not done by the nccl backend", describe(*operation)));
    }
    check_operation(*operation, rank_, size_, ATOLL_MEMORY_CUDA);
    // NCCL chooses the algorithm by the operator, and a factor is one of its own: ranks with and
    // without would run different algorithms, and no rank knows what the others have.
    if (factor_of(*operation) != 1.0) {
      throw Error(ATOLL_UNSUPPORTED,
                  fmt::format("{}: the nccl backend takes no factors", describe(*operation)));
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

void Comm::launch(std::span<atoll_operation* const> operations) {
  const auto deadline = deadline_of(operations.front()->timeout_ns);
  const Current current(device_);
  ncclResult_t result = ncclSuccess;
  {
    const std::lock_guard lock(calls_);
    if (aborted_) throw Error(ATOLL_ABORTED, "aborted");
    check(ncclGroupStart(), "ncclGroupStart", nccl_);
    for (const atoll_operation* operation : operations) {
      result = worse(result, perform(*this, *operation));
    }
    result = worse(result, ncclGroupEnd());  // also where one was refused
  }
  // Nobody may record an event behind what is not launched yet.
  settle(result, "launch", deadline);
}

void Comm::check_async() {
  const std::lock_guard lock(calls_);
  if (aborted_) throw Error(ATOLL_ABORTED, "aborted");
  ncclResult_t state = ncclSuccess;
  check(ncclCommGetAsyncError(nccl_, &state), "ncclCommGetAsyncError", nccl_);
  if (state == ncclInProgress) return;
  if (state != ncclSuccess) broken_ = true;
  check(state, "after the launch", nccl_);
}

void Comm::register_window(void* memory, std::size_t bytes) {
  const Current current(device_);
  ncclWindow_t& window = windows_.emplace_back(nullptr);  // NULL where NCCL has no use for it
  ncclResult_t result = ncclSuccess;
  {
    const std::lock_guard lock(calls_);
    if (aborted_) throw Error(ATOLL_ABORTED, "aborted");
    result = ncclCommWindowRegister(nccl_, memory, bytes, &window, NCCL_WIN_COLL_SYMMETRIC);
  }
  settle(result, "ncclCommWindowRegister", deadline_of(timeout_ns_));
}

}  // namespace atoll_sdk::nccl
