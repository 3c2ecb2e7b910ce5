#include "host/comm.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "host/collectives.hpp"
#include "host/opening.hpp"
#include "sdk/describe.hpp"
#include "sdk/guard.hpp"

namespace atoll_sdk::host {
Comm::Comm(const atoll_host& host, const atoll_group& group) : open_timeout_ns_(group.timeout_ns) {
  describe_team(group, team_);
  Links links = open_links(host, group, team_);
  shm_ = std::move(links.shm);
  tcp_ = std::move(links.tcp);
  if (shm_) team_.transports.push_back(shm_.get());
  if (tcp_) team_.transports.push_back(tcp_.get());
  const int here = group.placements[group.rank]->host;
  for (int rank = 0; rank < size(); ++rank) {
    if (rank == team_.rank) continue;
    auto& route = team_.routes[static_cast<std::size_t>(rank)];
    if (group.placements[rank]->host == here) {
      route = shm_.get();
    } else {
      route = tcp_.get();
    }
  }
  group_ = std::make_unique<atoll_sdk::Group>(host, group, team_, shm_.get());
  tuning_ = Tuning(group, group_->layout);
}

Comm::~Comm() {
  if (!failure_.empty() || team_.aborted.load(std::memory_order_acquire)) return;
  for (auto* transport : team_.transports) transport->finish();
}

// What fails is the last thing that the communicator does.
template <class Body>
void Comm::guarded(const Body& body) {
  if (!failure_.empty()) {
    throw atoll_sdk::Error(ATOLL_ABORTED,
                           fmt::format("communicator {} failed before: {}", team_.name, failure_));
  }
  try {
    body();
  } catch (const std::exception& error) {
    failure_ = error.what();
    throw;
  }
}

void Comm::submit(std::span<atoll_operation* const> operations) {
  for (const auto* operation : operations) {
    if (operation == nullptr) throw atoll_sdk::Error(ATOLL_INVALID_ARGUMENT, "operation is NULL");
    atoll_sdk::check_operation(*operation, rank(), size());
  }
  guarded([&] { submit_all(operations); });
}

void Comm::register_memory(void* memory, std::size_t bytes) {
  guarded([&] { group_->windows.add(memory, bytes, open_timeout_ns_); });
}

std::vector<atoll_sdk::Block> blocks_of(const Comm& comm, const atoll_operation& operation) {
  const std::size_t element = atoll_sdk::dtype_size(operation.dtype);
  std::vector<atoll_sdk::Block> blocks;
  std::size_t offset = 0;
  for (int rank = 0; rank < comm.size(); ++rank) {
    const bool uneven = atoll_sdk::is_uneven(operation.kind);
    const std::size_t size = (uneven ? operation.counts[rank] : operation.count) * element;
    blocks.push_back({offset, size});
    offset += size;
  }
  return blocks;
}

// Messages that stand together are one exchange; collectives run in order, each by itself.
void Comm::submit_all(std::span<atoll_operation* const> operations) {
  while (!operations.empty()) {
    const auto messages = static_cast<std::size_t>(
        std::find_if(operations.begin(), operations.end(),
                     [](const auto* o) { return !atoll_sdk::is_message(o->kind); }) -
        operations.begin());
    if (messages > 0) {
      send_recv(*this, operations.first(messages));
      operations = operations.subspan(messages);
    } else {
      perform(*operations.front());
      operations = operations.subspan(1);
    }
  }
}

void Comm::perform(const atoll_operation& operation) {
  switch (operation.kind) {
    case ATOLL_BARRIER:
      barrier(*this, operation);
      break;
    case ATOLL_BROADCAST:
      broadcast(*this, operation);
      break;
    case ATOLL_ALL_GATHER:
    case ATOLL_ALL_GATHER_V:
      all_gather(*this, operation);
      break;
    case ATOLL_REDUCE_SCATTER:
    case ATOLL_REDUCE_SCATTER_V:
      reduce_scatter(*this, operation);
      break;
    case ATOLL_ALL_REDUCE:
      all_reduce(*this, operation);
      break;
    case ATOLL_ALL_TO_ALL:
      all_to_all(*this, operation);
      break;
    case ATOLL_REDUCE:
      host::reduce(*this, operation);
      break;
    case ATOLL_GATHER:
      gather(*this, operation);
      break;
    case ATOLL_SCATTER:
      scatter(*this, operation);
      break;
    default:
      throw atoll_sdk::Error(ATOLL_INTERNAL, "not a collective");
  }
  ++team_.collectives;
}

void Comm::abort() noexcept {
  team_.aborted.store(true, std::memory_order_release);
  for (auto* transport : team_.transports) transport->wake();
}

void Comm::reduce(std::byte* dst, std::span<const void* const> parts, const double* factors,
                  std::uint64_t count, const atoll_operation& operation) const {
  void* to = dst;
  group_->reduce({sizeof(atoll_reduction), &to, parts.data(), factors, 1,
                  static_cast<std::int32_t>(parts.size()), count, operation.dtype, operation.op, 0,
                  0});
}

}  // namespace atoll_sdk::host
