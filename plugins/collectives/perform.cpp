#include "collectives/collectives.hpp"

namespace atoll_collectives {
namespace {

void perform_one(Group& group, const atoll_operation& operation) {
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

void check(const Group& group, std::span<atoll_operation* const> operations) {
  for (const auto* operation : operations) {
    if (operation == nullptr) throw Error(ATOLL_INVALID_ARGUMENT, "operation is NULL");
    check_operation(*operation, group.rank(), group.size());
  }
}

void perform(Group& group, std::span<atoll_operation* const> operations) {
  while (!operations.empty()) {
    const auto messages = static_cast<std::size_t>(
        std::ranges::find_if(operations, [](const auto* o) { return !is_message(o->kind); }) -
        operations.begin());
    if (messages > 0) {
      send_recv(group, operations.first(messages));
      operations = operations.subspan(messages);
    } else {
      perform_one(group, *operations.front());
      ++group.team.collectives;
      operations = operations.subspan(1);
    }
  }
}

}  // namespace atoll_collectives
