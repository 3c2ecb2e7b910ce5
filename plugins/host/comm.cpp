#include "host/comm.hpp"

#include <fmt/format.h>

#include "collectives/shared_memory/caller_memory.hpp"
#include "sdk/guard.hpp"

namespace atoll_host_backend {

Comm::Comm(const atoll_host& host, const atoll_group& group) : open_timeout_ns_(group.timeout_ns) {
  describe_team(group, team_);
  transports_ = open_transports(host, group, team_);
  atoll_collectives::Transport* const shm = transports_.shm.get();
  atoll_collectives::Transport* const tcp = transports_.tcp.get();
  if (shm != nullptr) team_.transports.push_back(shm);
  if (tcp != nullptr) team_.transports.push_back(tcp);
  const atoll_group& connected = transports_.group->get();
  for (int rank = 0; rank < team_.size(); ++rank) {
    if (rank == team_.rank) continue;
    const bool is_here =
        connected.placements[rank]->host == connected.placements[connected.rank]->host;
    team_.routes[static_cast<std::size_t>(rank)] = is_here ? shm : tcp;
  }
  group_ =
      std::make_unique<atoll_collectives::Group>(host, connected, team_, transports_.shm.get());
}

Comm::~Comm() {
  // A forked child shares the connections of the rank but must not close them, and it has no thread
  // that the transport could join.
  if (process_ != ::getpid()) {
    static_cast<void>(transports_.tcp.release());
    return;
  }
  if (failure_.empty() && !team_.aborted.load(std::memory_order_acquire)) {
    for (auto* transport : team_.transports) transport->finish();
  }
  if (transports_.retract) transports_.retract();
}

template <class Body>
void Comm::run(const Body& body) {
  if (!failure_.empty()) {
    throw atoll_sdk::Error(ATOLL_ABORTED,
                           fmt::format("communicator {} failed before: {}", team_.name, failure_));
  }
  try {
    body();
  } catch (const std::exception&) {
    atoll_sdk::record_current_exception();
    failure_ = atoll_sdk::last_error();
    throw;
  }
}

void Comm::submit(std::span<atoll_operation* const> operations) {
  atoll_collectives::check(*group_, operations);
  run([&] { atoll_collectives::submit(*group_, operations); });
}

void Comm::register_memory(void* memory, std::size_t bytes) {
  run([&] {
    group_->windows.add(memory, bytes, atoll_collectives::shared_memory::find(memory, bytes),
                        open_timeout_ns_);
  });
}

const char* Comm::register_caller_memory(void* memory, std::size_t bytes) {
  if (memory == nullptr || bytes == 0) {
    throw atoll_sdk::Error(ATOLL_INVALID_ARGUMENT, "register at least one byte of memory");
  }
  if (group_->windows.overlaps(memory, bytes)) {
    throw atoll_sdk::Error(ATOLL_INVALID_ARGUMENT,
                           "this memory overlaps memory that is registered already: end that "
                           "registration first");
  }
  const auto file = atoll_collectives::shared_memory::find_file(memory, bytes);
  run([&] { group_->windows.add(memory, bytes, file, open_timeout_ns_); });
  if (file || transports_.shm == nullptr) return nullptr;
  return group_->process_memory.works()
             ? "other processes cannot map this memory, so the kernel copies its data between "
               "processes; memory from allocate() or a shared mapping of a file is faster"
             : "other processes cannot map this memory, and the kernel or the settings forbid "
               "copies between processes, so its data goes through staging buffers; memory from "
               "allocate() or a shared mapping of a file is faster";
}

void Comm::abort() noexcept {
  team_.aborted.store(true, std::memory_order_release);
  for (auto* transport : team_.transports) transport->wake();
}

}  // namespace atoll_host_backend
