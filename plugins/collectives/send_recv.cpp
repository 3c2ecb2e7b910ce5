// send and recv: point-to-point messages. Any number of messages can be performed as one group.
//
// All messages of a group progress together, so no order of calls within a group can deadlock. The
// messages between two ranks arrive in the order in which they were sent. If a rank sends a message
// to itself, the send and the recv must be in the same group; the n-th such send matches the n-th
// such recv.
//
// Steps: check and copy the messages of this rank to itself; queue the signature and the data of
// all other messages; run the exchange. A send is complete when the transport has accepted its
// data. Each message adds a signature of 96 bytes to its data.
#include <fmt/format.h>

#include <vector>

#include "collectives/collectives.hpp"
#include "sdk/backend.hpp"

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
    throw Error(
        ATOLL_INVALID_ARGUMENT,
        fmt::format("rank {} sends {} messages to itself in one group but receives {} from itself",
                    group.rank(), sends.size(), recvs.size()));
  }
  for (std::size_t i = 0; i < sends.size(); ++i) {
    if (sends[i]->count != recvs[i]->count || sends[i]->dtype != recvs[i]->dtype) {
      throw Error(
          ATOLL_MISMATCH,
          fmt::format("rank {} sends a message of {} x {} to itself but receives it as {} x {}",
                      group.rank(), sends[i]->count, dtype_name(sends[i]->dtype), recvs[i]->count,
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
                              make_signature(*message, group.size(), channel.sends.messages++));
      exchange.send(peer, {source(*message), bytes(*message)});
    } else {
      exchange.expect_signature(peer,
                                make_signature(*message, group.size(), channel.recvs.messages++));
      exchange.recv(peer, {destination(*message), bytes(*message)});
    }
  }
  exchange.run();
}

}  // namespace atoll_collectives
