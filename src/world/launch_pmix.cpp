// PMIx, as used by Open MPI's mpirun and srun --mpi=pmix. The client library is loaded at run time,
// because most machines do not need it, so the used part of its ABI is declared here. Layouts and
// numbers follow the PMIx standard (3.2 and 4.1, chapters on data structures and the client API)
// and have not changed since version 2 of the library.
//
// PMIx counts calls of PMIx_Init, so an MPI library in this process may also call it, at any time.
// Atoll calls PMIx_Init once, and PMIx_Finalize only at exit: a server that waits for a value never
// answers if rank 0 finalizes and initializes again. Without PMIx_Finalize, the launcher reports a
// crash; this happens after _exit(), exec(), or if the descriptors of PMIx were closed.
#include <dlfcn.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "core/errors.hpp"
#include "core/log.hpp"
#include "core/parse.hpp"
#include "world/launch.hpp"

namespace atoll_v1::atoll::launch {
namespace {

using net::Clock;

struct PmixProcess {
  std::array<char, 256> name_space;
  std::uint32_t rank;
};
struct PmixValue {
  std::uint16_t type;
  union {
    char* text;
    int integer;
    std::uint32_t number;
    std::array<std::uint64_t, 3> room;  // as large as pmix_envar_t, PMIx's largest member
  } data;
};
struct PmixInfo {
  std::array<char, 512> key;
  std::uint32_t flags;
  PmixValue value;
};
static_assert(sizeof(PmixProcess) == 260 && sizeof(PmixValue) == 32 && sizeof(PmixInfo) == 552);

constexpr int pmix_success = 0;
constexpr int pmix_not_found = -46;
constexpr std::uint16_t pmix_string = 3;
constexpr std::uint16_t pmix_int = 6;
constexpr std::uint16_t pmix_uint32 = 14;
constexpr std::uint8_t pmix_global = 3;               // scope of a value: ranks on all hosts
constexpr std::uint32_t pmix_any_rank = 0xffff'fffe;  // PMIX_RANK_WILDCARD: the whole job

class PmixSession {
 public:
  static PmixSession& of_process() {
    static PmixSession session;
    // The threads of PMIx do not exist in a forked child, and PMIx_Init starts none there, because
    // the library counts the call of the parent.
    require(session.owner_ == ::getpid(), ErrorCode::unsupported,
            "PMIx: process {} was forked from rank {}, which uses PMIx already: let the child call "
            "exec(), or set ATOLL_ADDR and ATOLL_TOKEN",
            ::getpid(), session.self_.rank);
    return session;
  }

  PmixSession() {
    // Loaded with RTLD_GLOBAL, because components of the library look up its symbols globally. The
    // library is never closed, because its threads may still run.
    void* library = ::dlopen("libpmix.so.2", RTLD_NOW | RTLD_GLOBAL);
    if (library == nullptr) {
      throw make_error(ErrorCode::not_found,
                       "the launcher uses PMIx, but its client library cannot be loaded ({}): "
                       "install libpmix2, or set ATOLL_ADDR and ATOLL_TOKEN",
                       ::dlerror());
    }
    load(library, "PMIx_Init", init_);
    load(library, "PMIx_Finalize", finalize_);
    load(library, "PMIx_Put", put_);
    load(library, "PMIx_Commit", commit_);
    load(library, "PMIx_Get", get_);
    load(library, "PMIx_Error_string", error_string_);
    check("PMIx_Init", init_(&self_, nullptr, 0));
  }
  ~PmixSession() {
    // A forked child must not end the PMIx session of its parent.
    if (owner_ != ::getpid()) return;
    if (!has_descriptors()) {
      // Without its descriptors, PMIx_Finalize would wait for ever.
      log::warn(
          "this process has closed the descriptors of PMIx, so the launcher will report a crash "
          "when it ends");
      return;
    }
    const int status = finalize_(nullptr, 0);
    if (status != pmix_success) log::debug("PMIx_Finalize: {}", error_string_(status));
  }
  PmixSession(const PmixSession&) = delete;
  PmixSession& operator=(const PmixSession&) = delete;

  int rank() const { return static_cast<int>(self_.rank); }

  int size() {
    const std::string text = get(pmix_any_rank, "pmix.job.size", std::chrono::seconds(60));
    const int result = number_from<int>(text).value_or(0);
    require(result >= 1, ErrorCode::backend, "PMIx: the launcher does not report the job size");
    return result;
  }

  // Returns the value of a key as text; "" if it is neither text nor a number.
  std::string get(std::uint32_t rank, const char* key, std::chrono::seconds timeout) {
    PmixProcess whose = self_;
    whose.rank = rank;
    PmixInfo limit{};
    std::strncpy(limit.key.data(), "pmix.timeout", limit.key.size() - 1);
    limit.value.type = pmix_int;
    limit.value.data.integer =
        static_cast<int>(std::clamp<std::int64_t>(timeout.count(), 1, 1 << 20));
    PmixValue* value = nullptr;
    // If the request reaches the server before rank 0 has published, the server may answer "not
    // found" at once despite the timeout, so the request is repeated (Open MPI 4.1 with PMIx 4.2:
    // one start in 60, and on other hosts than that of rank 0 always from the second World on).
    const auto deadline = Clock::now() + timeout;
    constexpr std::chrono::milliseconds slowest{200};
    int status = get_(&whose, key, &limit, 1, &value);
    for (std::chrono::milliseconds pause{10};
         status == pmix_not_found && Clock::now() + pause < deadline;
         pause = std::min(2 * pause, slowest)) {
      std::this_thread::sleep_for(pause);
      status = get_(&whose, key, &limit, 1, &value);
    }
    if (status != pmix_success || value == nullptr) {
      throw make_error(ErrorCode::timeout,
                       "rank {}: rank 0 did not publish its store within {} s (PMIx_Get: {})",
                       self_.rank, timeout.count(), error_string_(status));
    }
    std::string result;
    if (value->type == pmix_uint32) result = std::to_string(value->data.number);
    if (value->type == pmix_string && value->data.text != nullptr) result = value->data.text;
    // PMIx_Get passes ownership of the value and its text to the caller, but the library exports no
    // function to free them.
    if (value->type == pmix_string) std::free(value->data.text);
    std::free(value);
    return result;
  }

  void put(const std::string& key, std::string text) {
    PmixValue value{};
    value.type = pmix_string;
    value.data.text = text.data();
    check("PMIx_Put", put_(pmix_global, key.c_str(), &value));
    check("PMIx_Commit", commit_());
  }

 private:
  static struct stat status_of(int descriptor) {
    struct stat status {};
    ::fstat(descriptor, &status);
    return status;
  }

  template <class F>
  static void load(void* library, const char* name, F& function) {
    function = reinterpret_cast<F>(::dlsym(library, name));
    require(function != nullptr, ErrorCode::unsupported, "libpmix.so.2 has no {}", name);
  }

  // Returns whether the witness is open: another file may have its number, but not its inode.
  bool has_descriptors() const {
    struct stat now {};
    return !witness_ || (::fstat(witness_.get(), &now) == 0 && now.st_dev == witnessed_.st_dev &&
                         now.st_ino == witnessed_.st_ino);
  }

  void check(const char* call, int status) const {
    if (status == pmix_success) return;
    throw make_error(ErrorCode::backend, "{}: {}", call, error_string_(status));
  }

  PmixProcess self_{};
  pid_t owner_ = ::getpid();
  // A descriptor with no other use: if it is closed, the program has closed all descriptors.
  net::Fd witness_{::memfd_create("atoll", MFD_CLOEXEC)};
  struct stat witnessed_ = status_of(witness_.get());
  int (*init_)(PmixProcess*, PmixInfo*, std::size_t) = nullptr;
  int (*finalize_)(const PmixInfo*, std::size_t) = nullptr;
  int (*put_)(std::uint8_t, const char*, PmixValue*) = nullptr;
  int (*commit_)() = nullptr;
  int (*get_)(const PmixProcess*, const char*, const PmixInfo*, std::size_t, PmixValue**) = nullptr;
  const char* (*error_string_)(int) = nullptr;
};

Rendezvous pmix_rendezvous() {
  PmixSession& session = PmixSession::of_process();
  const std::string key = next_key();
  const auto publish = [&session, key](const std::string& text, Clock::time_point) {
    session.put(key, text);
  };
  const auto look_up = [&session, key](Clock::time_point deadline) {
    const auto left = std::chrono::ceil<std::chrono::seconds>(deadline - Clock::now());
    return session.get(0, key.c_str(), left);
  };
  return {publish, look_up};
}

}  // namespace

std::optional<Job> find_pmix(const Config& config) {
  const std::optional<int> rank = number("OMPI_COMM_WORLD_RANK", 0);
  const std::optional<int> size = number("OMPI_COMM_WORLD_SIZE", 1);
  if (rank && size) {
    Job job{"openmpi", *rank, *size, configured_endpoint(config)};
    if (job.size > 1 && !job.agreed) job.rendezvous = pmix_rendezvous();
    return job;
  }
  if (!variable("PMIX_NAMESPACE") || !variable("PMIX_RANK")) return std::nullopt;
  PmixSession& session = PmixSession::of_process();
  Job job{"pmix", session.rank(), session.size(), configured_endpoint(config)};
  if (job.size > 1 && !job.agreed) job.rendezvous = pmix_rendezvous();
  return job;
}

}  // namespace atoll_v1::atoll::launch
