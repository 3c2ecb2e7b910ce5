#include "host/comm.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <new>

#include "host/collectives.hpp"
#include "host/opening.hpp"
#include "sdk/describe.hpp"
#include "sdk/guard.hpp"

namespace atoll_sdk::host {
namespace {

constexpr std::align_val_t scratch_alignment{cache_line};

}  // namespace

Comm::Comm(const atoll_host& host, const atoll_group& group) : host_(host) {
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
}

Comm::~Comm() {
  if (!failure_.empty() || team_.aborted.load(std::memory_order_acquire)) return;
  for (auto* transport : team_.transports) transport->finish();
}

void Comm::submit(std::span<atoll_operation* const> operations) {
  if (!failure_.empty()) {
    throw atoll_sdk::Error(ATOLL_ABORTED,
                           fmt::format("communicator {} failed before: {}", team_.name, failure_));
  }
  for (const auto* operation : operations) {
    if (operation == nullptr) throw atoll_sdk::Error(ATOLL_INVALID_ARGUMENT, "operation is NULL");
    atoll_sdk::check_operation(*operation, size());
  }
  try {
    submit_all(operations);
  } catch (const std::exception& error) {
    failure_ = error.what();
    throw;
  }
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
      return barrier(*this, operation);
    case ATOLL_BROADCAST:
      return broadcast(*this, operation);
    case ATOLL_ALL_GATHER:
      return all_gather(*this, operation);
    case ATOLL_REDUCE_SCATTER:
      return reduce_scatter(*this, operation);
    case ATOLL_ALL_REDUCE:
      return all_reduce(*this, operation);
    case ATOLL_ALL_TO_ALL:
      return all_to_all(*this, operation);
  }
  throw atoll_sdk::Error(ATOLL_INTERNAL, "not a collective");
}

void Comm::abort() noexcept {
  team_.aborted.store(true, std::memory_order_release);
  for (auto* transport : team_.transports) transport->wake();
}

void Comm::reduce(std::byte* dst, std::span<const void* const> parts, std::uint64_t count,
                  const atoll_operation& operation) const {
  if (count == 0) return;
  const auto status =
      host_.reduce(host_.ctx, dst, parts.data(), static_cast<std::int32_t>(parts.size()), count,
                   operation.dtype, operation.op);
  if (status != ATOLL_OK) {
    throw atoll_sdk::Error(
        status, fmt::format("{} {}: core's reduction of {} {} elements failed",
                            atoll_sdk::kind_name(operation.kind), operation.sequence, count,
                            atoll_sdk::dtype_name(operation.dtype)));
  }
}

std::span<std::byte> Comm::scratch(std::size_t bytes) {
  if (bytes > scratch_bytes_) {
    scratch_.reset();
    scratch_bytes_ = 0;
    scratch_.reset(static_cast<std::byte*>(::operator new(bytes, scratch_alignment)));
    scratch_bytes_ = bytes;
  }
  return {scratch_.get(), bytes};
}

void Comm::Free::operator()(std::byte* memory) const noexcept {
  ::operator delete(memory, scratch_alignment);
}

}  // namespace atoll_sdk::host
