#include "collectives/communicator/host_communicator.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "collectives/communicator/processors.hpp"
#include "collectives/layout.hpp"
#include "collectives/shared_memory/caller_memory.hpp"

namespace atoll_collectives {
namespace {

using atoll_sdk::Error;

// Checks `group` and fills in `team`, except for its routes and transports.
void describe_team(const atoll_group& group, Team& team) {
  if (group.memory != ATOLL_MEMORY_CPU) {
    throw Error(ATOLL_UNSUPPORTED, "this backend supports CPU memory only");
  }
  if (group.nranks < 1 || group.rank < 0 || group.rank >= group.nranks || group.id == nullptr ||
      group.placements == nullptr) {
    throw Error(ATOLL_INVALID_ARGUMENT, "the group lacks an id, ranks, or their placements");
  }
  team.name = group.name == nullptr ? "" : group.name;
  team.rank = group.rank;
  for (int rank = 0; rank < group.nranks; ++rank) {
    team.world_ranks.push_back(group.placements[rank]->world_rank);
  }
  const auto size = static_cast<std::size_t>(group.nranks);
  team.routes.assign(size, nullptr);
  team.channels.resize(size);
}

void perform(Group& group, const atoll_operation& operation) {
  switch (operation.kind) {
    case ATOLL_BARRIER:
      return barrier(group, operation);
    case ATOLL_BROADCAST:
      return broadcast(group, operation);
    case ATOLL_ALL_GATHER:
    case ATOLL_ALL_GATHER_V:
      return all_gather(group, operation);
    case ATOLL_REDUCE_SCATTER:
    case ATOLL_REDUCE_SCATTER_V:
      return reduce_scatter(group, operation);
    case ATOLL_ALL_REDUCE:
      return all_reduce(group, operation);
    case ATOLL_ALL_TO_ALL:
      return all_to_all(group, operation);
    case ATOLL_REDUCE:
      return reduce(group, operation);
    case ATOLL_ALL_TO_ALL_V:
      return all_to_all_v(group, operation);
    case ATOLL_GATHER:
    case ATOLL_GATHER_V:
      return gather(group, operation);
    case ATOLL_SCATTER:
      return scatter(group, operation);
    default:
      throw Error(ATOLL_INTERNAL, "the operation is not a collective");
  }
}

}  // namespace

HostCommunicator::HostCommunicator(const atoll_core& core, const atoll_group& group,
                                   OpenNetwork open_network)
    : open_timeout_ns_(group.timeout_ns) {
  describe_team(group, team_);
  const GroupStore store(core, group, team_);
  Sharing sharing = share_memory(core, group, team_, store);
  shm_ = std::move(sharing.shm);
  const auto online = static_cast<int>(::sysconf(_SC_NPROCESSORS_ONLN));
  const int processors = count_processors(sharing.masks);
  team_.processors = processors > 0 ? processors : online;
  team_.waiting = waiting_of(sharing.masks, group.host_ranks, online);
  const SplitGroup split(group, sharing.split);
  const atoll_group& connected = split.get();
  const Layout layout = layout_of(connected);
  if (layout.hosts() > 1) network_ = open_network(core, connected, team_, store);
  if (shm_) team_.transports.push_back(shm_.get());
  if (network_) team_.transports.push_back(network_.get());
  for (int rank = 0; rank < team_.size(); ++rank) {
    if (rank == team_.rank) continue;
    const bool is_here = layout.host_of(rank) == layout.host_of(team_.rank);
    team_.routes[static_cast<std::size_t>(rank)] =
        is_here ? static_cast<Transport*>(shm_.get()) : network_.get();
  }
  group_ = std::make_unique<Group>(connected, team_, shm_.get());
  if (group.tags != 0) mailbox_ = std::make_unique<Mailbox>(team_);
}

HostCommunicator::~HostCommunicator() {
  // A forked child shares the connections of the rank but must not close them, and it has no thread
  // that the transport could join.
  if (process_ != ::getpid()) {
    static_cast<void>(network_.release());
    return;
  }
  const bool has_failed = !failure_.empty() || (mailbox_ && mailbox_->has_failed());
  if (!has_failed && !team_.aborted.load(std::memory_order_acquire)) {
    for (auto* transport : team_.transports) transport->finish();
  }
}

template <class Body>
void HostCommunicator::run(const Body& body) {
  if (!failure_.empty()) {
    throw Error(ATOLL_ABORTED,
                fmt::format("communicator {} failed before: {}", team_.name, failure_));
  }
  try {
    body();
  } catch (const std::exception&) {
    atoll_sdk::record_current_exception();
    failure_ = atoll_sdk::last_error();
    for (auto* transport : team_.transports) transport->stop();
    throw;
  }
}

void HostCommunicator::submit(std::span<atoll_operation* const> operations) {
  if (mailbox_) return mailbox_->perform(operations);
  run([&] {
    while (!operations.empty()) {
      const auto collective =
          std::ranges::find_if(operations, [](const auto* o) { return !is_message(o->kind); });
      const auto messages = static_cast<std::size_t>(collective - operations.begin());
      if (messages > 0) {
        send_recv(*group_, operations.first(messages));
      } else {
        perform(*group_, *operations.front());
        ++team_.collectives;
      }
      operations = operations.subspan(std::max<std::size_t>(messages, 1));
    }
  });
}

void HostCommunicator::register_memory(void* memory, std::size_t bytes) {
  run([&] {
    group_->windows.add(memory, bytes, shared_memory::find(memory, bytes), open_timeout_ns_);
    if (network_) network_->add_memory({static_cast<std::byte*>(memory), bytes});
  });
}

const char* HostCommunicator::register_caller_memory(void* memory, std::size_t bytes) {
  if (memory == nullptr || bytes == 0) {
    throw Error(ATOLL_INVALID_ARGUMENT, "register at least one byte of memory");
  }
  if (group_->windows.overlaps(memory, bytes)) {
    throw Error(ATOLL_INVALID_ARGUMENT,
                "this memory overlaps memory that is registered already: end that "
                "registration first");
  }
  const auto file = shared_memory::find_file(memory, bytes);
  run([&] {
    group_->windows.add(memory, bytes, file, open_timeout_ns_);
    if (network_) network_->add_memory({static_cast<std::byte*>(memory), bytes});
  });
  if (file || !shm_) return nullptr;
  return "other processes cannot map this memory, so its data goes through staging buffers; memory "
         "from allocate() or a shared mapping of a file is faster";
}

void HostCommunicator::register_own_memory(void* memory, std::size_t bytes) {
  if (group_->windows.overlaps(memory, bytes)) {
    throw Error(ATOLL_INVALID_ARGUMENT, "this memory overlaps memory that is registered already");
  }
  if (network_) network_->add_memory({static_cast<std::byte*>(memory), bytes});
  own_memory_.insert(memory);
}

void HostCommunicator::deregister_memory(void* memory) {
  if (network_) network_->remove_memory(static_cast<const std::byte*>(memory));
  if (own_memory_.erase(memory) == 0) group_->windows.remove(memory);
}

void HostCommunicator::abort() noexcept {
  team_.aborted.store(true, std::memory_order_release);
  for (auto* transport : team_.transports) transport->wake();
}

}  // namespace atoll_collectives
