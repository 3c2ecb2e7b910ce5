// send and recv: messages between two ranks, any number of them as one group.
//
// All messages of a group progress together, and the messages of each pair of ranks arrive in the
// order of the calls. So no order of calls within a group can deadlock. A rank's message to itself
// needs both halves in one group; they match in order.
//
// Steps: check and copy the messages to oneself; queue signature and data of all others; run the
// exchange. A send is complete when the transport has accepted its data.
// Bytes: the data and a signature of 56 bytes per message.
#include <fmt/format.h>

#include <vector>

#include "collectives/collectives.hpp"
#include "sdk/guard.hpp"

namespace atoll_collectives {
namespace {

void copy_own(Group& group, std::span<atoll_operation* const> messages) {
  std::vector<const atoll_operation*> sends;
  std::vector<const atoll_operation*> recvs;
  for (const auto* message : messages) {
    if (message->peer != group.rank()) continue;
    (message->kind == ATOLL_SEND ? sends : recvs).push_back(message);
  }
  if (sends.size() != recvs.size()) {
    throw Error(ATOLL_INVALID_ARGUMENT,
                fmt::format("rank {} sends {} messages to itself and receives {} in one group",
                            group.rank(), sends.size(), recvs.size()));
  }
  for (std::size_t i = 0; i < sends.size(); ++i) {
    if (sends[i]->count != recvs[i]->count || sends[i]->dtype != recvs[i]->dtype) {
      throw Error(ATOLL_MISMATCH,
                  fmt::format("rank {} sends {} x {} to itself and receives {} x {}", group.rank(),
                              sends[i]->count, dtype_name(sends[i]->dtype), recvs[i]->count,
                              dtype_name(recvs[i]->dtype)));
    }
    copy(destination(*recvs[i]), source(*sends[i]), bytes(*sends[i]));
  }
}

}  // namespace

void send_recv(Group& group, std::span<atoll_operation* const> messages) {
  copy_own(group, messages);
  Exchange exchange(group.team, *messages.front());
  for (const auto* message : messages) {
    const int peer = message->peer;
    if (peer == group.rank()) continue;
    auto& channel = group.team.channels[static_cast<std::size_t>(peer)];
    if (message->kind == ATOLL_SEND) {
      exchange.send_signature(peer,
                              make_signature(*message, group.size(), channel.messages_sent++));
      exchange.send(peer, {source(*message), bytes(*message)});
    } else {
      exchange.expect_signature(
          peer, make_signature(*message, group.size(), channel.messages_received++));
      exchange.recv(peer, {destination(*message), bytes(*message)});
    }
  }
  exchange.run();
}

}  // namespace atoll_collectives
