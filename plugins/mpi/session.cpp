#include "session.hpp"

#include <dlfcn.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <string_view>
#include <utility>

#include "sdk/backend.hpp"

namespace atoll_mpi {
namespace {

using Clock = std::chrono::steady_clock;

// Preference of the mpi backend if an MPI launcher started the process.
constexpr int preference_launched = 50;
// Preference of the mpi backend for a World of one rank without a launcher. It is low, because one
// rank gains nothing from MPI.
constexpr int preference_alone = 10;
constexpr std::size_t answer_bytes = 512;
// How much longer the other ranks wait than rank 0, so that rank 0, which can name an absent rank,
// times out first.
constexpr std::int64_t answer_margin_ns = 2'000'000'000;

std::string library_version() {
  std::array<char, MPI_MAX_LIBRARY_VERSION_STRING> text{};
  int length = 0;
  MPI_Get_library_version(text.data(), &length);
  const std::string_view all(text.data(), static_cast<std::size_t>(length));
  return std::string(all.substr(0, all.find_first_of(",\n")));
}

// Environment variables in which a launcher passes rank and size to a process. known_launchers()
// returns the variables of the launchers that can start the linked MPI library.
struct Launcher {
  const char* rank;
  const char* size;
};
std::vector<Launcher> known_launchers(std::string_view library) {
  if (library.starts_with("Open MPI")) {
    return {{"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"}, {"PMIX_RANK", nullptr}};
  }
  return {{"PMI_RANK", "PMI_SIZE"}, {"PMIX_RANK", nullptr}};
}

bool differs(const char* text, int expected) {
  return text != nullptr && std::string_view(text) != std::to_string(expected);
}

bool mpi_initialized() {
  int flag = 0;
  MPI_Initialized(&flag);
  return flag != 0;
}

bool mpi_finalized() {
  int flag = 0;
  MPI_Finalized(&flag);
  return flag != 0;
}

// Moves libmpi into the global symbol scope. It was loaded with RTLD_LOCAL as a dependency of the
// plugin, but the components that libmpi loads look for its symbols in the global scope.
void raise_library_scope() {
  Dl_info info{};
  if (dladdr(reinterpret_cast<const void*>(&MPI_Init_thread), &info) == 0) return;
  // The handle is not closed, because libmpi stays loaded until the process ends.
  dlopen(info.dli_fname, RTLD_NOW | RTLD_GLOBAL | RTLD_NOLOAD);
}

template <class T, class Combine>
void combine_as(const void* in, void* in_out, int n, Combine combine) {
  const auto* from = static_cast<const T*>(in);
  auto* to = static_cast<T*>(in_out);
  for (int i = 0; i < n; ++i) to[i] = static_cast<T>(combine(to[i], from[i]));
}

template <class Combine>
void combine_integers(const void* in, void* in_out, int n, MPI_Datatype type, Combine combine) {
  if (type == MPI_INT8_T) return combine_as<std::int8_t>(in, in_out, n, combine);
  if (type == MPI_INT16_T) return combine_as<std::int16_t>(in, in_out, n, combine);
  if (type == MPI_UINT16_T) return combine_as<std::uint16_t>(in, in_out, n, combine);
  if (type == MPI_UINT32_T) return combine_as<std::uint32_t>(in, in_out, n, combine);
  if (type == MPI_UINT64_T) return combine_as<std::uint64_t>(in, in_out, n, combine);
  combine_as<std::uint8_t>(in, in_out, n, combine);
}

// Sums and products are computed as unsigned 64-bit integers, which wrap around.
std::uint64_t wide(auto value) { return static_cast<std::uint64_t>(value); }

extern "C" void sum_integers(void* in, void* in_out, int* n, MPI_Datatype* type) {
  combine_integers(in, in_out, *n, *type, [](auto a, auto b) { return wide(a) + wide(b); });
}
extern "C" void min_integers(void* in, void* in_out, int* n, MPI_Datatype* type) {
  combine_integers(in, in_out, *n, *type, [](auto a, auto b) { return std::min(a, b); });
}
extern "C" void max_integers(void* in, void* in_out, int* n, MPI_Datatype* type) {
  combine_integers(in, in_out, *n, *type, [](auto a, auto b) { return std::max(a, b); });
}
extern "C" void product_of_integers(void* in, void* in_out, int* n, MPI_Datatype* type) {
  combine_integers(in, in_out, *n, *type, [](auto a, auto b) { return wide(a) * wide(b); });
}

// Throws an Error with this status unless the process has the same rank and size in MPI as in the
// World.
void verify(const atoll_group& group, atoll_status status) {
  int rank = 0;
  int size = 0;
  check(MPI_Comm_rank(MPI_COMM_WORLD, &rank), "MPI_Comm_rank");
  check(MPI_Comm_size(MPI_COMM_WORLD, &size), "MPI_Comm_size");
  if (rank == group.world_rank && size == group.world_size) return;
  throw Error(status, fmt::format("this process is rank {} of {} in MPI, but rank {} of {} in the "
                                  "World",
                                  rank, size, group.world_rank, group.world_size));
}

// Throws an Error unless MPI's level of thread support allows calls on the threads of streams.
void check_threads(int level) {
  if (level >= MPI_THREAD_SERIALIZED) return;
  throw Error(
      ATOLL_UNSUPPORTED,
      fmt::format("MPI was initialized with {}, but the mpi backend calls MPI on the threads "
                  "of streams: call MPI_Init_thread with MPI_THREAD_SERIALIZED or "
                  "MPI_THREAD_MULTIPLE, or use another backend",
                  level == MPI_THREAD_SINGLE ? "MPI_THREAD_SINGLE" : "MPI_THREAD_FUNNELED"));
}

int thread_level() {
  int level = MPI_THREAD_SINGLE;
  check(MPI_Query_thread(&level), "MPI_Query_thread");
  return level;
}

void require(atoll_status status, const char* failure) {
  if (status != ATOLL_OK) throw Error(status, failure);
}

std::string ready_key(int rank) { return "atoll/mpi/ready/" + std::to_string(rank); }

}  // namespace

void check(int code, const char* call) {
  if (code == MPI_SUCCESS) return;
  int error_class = MPI_ERR_OTHER;
  MPI_Error_class(code, &error_class);
  std::array<char, MPI_MAX_ERROR_STRING> text{};
  int length = 0;
  MPI_Error_string(code, text.data(), &length);
  throw Error(error_class == MPI_ERR_TRUNCATE ? ATOLL_MISMATCH : ATOLL_BACKEND,
              std::string(call) + ": " + text.data());
}

Session& Session::get() {
  static Session session;
  return session;
}

std::int32_t Session::probe(const atoll_group& world) {
  const auto refuse = [](const std::string& why) { throw Error(ATOLL_UNSUPPORTED, why); };
  if (world.memory != ATOLL_MEMORY_CPU) refuse("the mpi backend supports CPU memory only");
  if (mpi_finalized()) refuse("MPI has already been finalized in this process");
  if (mpi_initialized()) {
    verify(world, ATOLL_UNSUPPORTED);
    check_threads(thread_level());
    return preference_launched;
  }
  const std::string library = library_version();
  std::string looked_for;
  for (const Launcher& launcher : known_launchers(library)) {
    const char* rank = std::getenv(launcher.rank);
    const char* size = launcher.size ? std::getenv(launcher.size) : nullptr;
    if (rank == nullptr) {
      looked_for += (looked_for.empty() ? "" : " and ") + std::string(launcher.rank);
      continue;
    }
    if (differs(rank, world.world_rank) || differs(size, world.world_size)) {
      refuse(
          fmt::format("{} gives rank {}{}{}, but this process is rank {} of {} in the World, and "
                      "MPI keeps the ranks with which it started: after a loss use the backend "
                      "host or verbs",
                      launcher.rank, rank, size ? " of " : "", size ? size : "", world.world_rank,
                      world.world_size));
    }
    return preference_launched;
  }
  if (world.world_size > 1) {
    refuse(fmt::format("this process was not started by a launcher of {} ({} are not set)", library,
                       looked_for));
  }
  return preference_alone;
}

void Session::start(const atoll_core& core, const atoll_group& group) {
  const std::lock_guard guard(state_mutex_);
  if (state_ == State::finished) {
    throw Error(ATOLL_UNSUPPORTED, "MPI has been finalized in this process and cannot start again");
  }
  if (state_ == State::idle) {
    wait_for_ranks(core, group);
    initialise();
    verify(group, ATOLL_MISMATCH);
    check(MPI_Comm_dup(MPI_COMM_WORLD, &world_), "MPI_Comm_dup");
    check(MPI_Comm_set_errhandler(world_, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
    check(MPI_Op_create(sum_integers, 1, &integers_.sum), "MPI_Op_create");
    check(MPI_Op_create(min_integers, 1, &integers_.min), "MPI_Op_create");
    check(MPI_Op_create(max_integers, 1, &integers_.max), "MPI_Op_create");
    check(MPI_Op_create(product_of_integers, 1, &integers_.product), "MPI_Op_create");
    state_ = State::running;
  }
  verify(group, ATOLL_MISMATCH);
}

// Waits until all ranks are ready for MPI_Init. Rank 0 waits in the store for each other rank and
// then signals all ranks to start. If a rank is absent at the timeout, rank 0 sends the other ranks
// an error text that names it.
void Session::wait_for_ranks(const atoll_core& core, const atoll_group& group) const {
  constexpr const char* go_key = "atoll/mpi/go";
  std::array<char, answer_bytes> text{};
  std::size_t n = text.size();
  if (group.world_size == 1) return;
  if (group.world_rank != 0) {
    const std::string key = ready_key(group.world_rank);
    require(core.put(core.ctx, key.c_str(), "", 0),
            "cannot announce this rank to rank 0 before MPI_Init");
    require(core.get(core.ctx, go_key, text.data(), &n, group.timeout_ns + answer_margin_ns),
            "rank 0 did not signal that all ranks are ready for MPI_Init");
    if (n > 0) throw Error(ATOLL_TIMEOUT, std::string(text.data(), n));
    return;
  }
  const auto deadline = Clock::now() + std::chrono::nanoseconds(group.timeout_ns);
  for (int rank = 1; rank < group.world_size; ++rank) {
    n = text.size();
    const std::chrono::nanoseconds left = std::max(deadline - Clock::now(), Clock::duration(0));
    const auto status = core.get(core.ctx, ready_key(rank).c_str(), text.data(), &n, left.count());
    if (status == ATOLL_OK) continue;
    const std::string reason = fmt::format(
        "rank {} did not open a communicator on the mpi backend; opening the first one needs all "
        "ranks",
        rank);
    core.put(core.ctx, go_key, reason.data(), reason.size());
    throw Error(status, reason);
  }
  require(core.put(core.ctx, go_key, "", 0),
          "cannot signal the other ranks through the store to start MPI");
}

void Session::initialise() {
  raise_library_scope();
  if (mpi_finalized()) {
    throw Error(ATOLL_UNSUPPORTED, "MPI has been finalized by the program and cannot start again");
  }
  if (mpi_initialized()) {
    thread_level_ = thread_level();
  } else {
    check(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &thread_level_),
          "MPI_Init_thread");
    initialised_here_ = true;
    // Open MPI reports failures inside nonblocking collectives through the error handler of
    // MPI_COMM_WORLD, and its default handler would end the process.
    check(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
  }
  check_threads(thread_level_);
}

void Session::finish(Ending ending) {
  const std::lock_guard guard(state_mutex_);
  const State before = std::exchange(state_, State::finished);
  if (before == State::finished || ending == Ending::failed || abandoned_ || !alive()) return;
  if (before == State::running) {
    for (MPI_Op* op : {&integers_.sum, &integers_.min, &integers_.max, &integers_.product}) {
      check(MPI_Op_free(op), "MPI_Op_free");
    }
    check(MPI_Comm_free(&world_), "MPI_Comm_free");
  }
  if (initialised_here_) {
    check(MPI_Finalize(), "MPI_Finalize");
  } else {
    state_ = State::idle;  // the program keeps MPI initialized, so another World can start
  }
}

std::unique_lock<std::mutex> Session::lock() {
  std::unique_lock lock(serial_, std::defer_lock);
  if (thread_level_ < MPI_THREAD_MULTIPLE) lock.lock();
  return lock;
}

bool Session::alive() const { return mpi_initialized() && !mpi_finalized(); }

void Session::retain(std::any memory) {
  const std::lock_guard guard(retained_mutex_);
  retained_.push_back(std::move(memory));
}

}  // namespace atoll_mpi
