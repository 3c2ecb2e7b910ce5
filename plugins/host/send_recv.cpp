// send and recv: messages between two ranks, any number of them as one group.
//
// Idea. All messages of a group progress together, each pair's in the order of the calls, so that
// no order of calls inside a group can block another. A message of a rank to itself needs both
// halves in one group, the sends and receives matched in order.
// Steps.
// 1. Check that messages to oneself match, and copy them.
// 2. Queue signature and data of every other message.
// 3. Run. A send is complete when ring or socket have taken its data.
// Bytes on the wire. The data and 56 per message.
#include <fmt/format.h>

#include <vector>

#include "host/collectives.hpp"
#include "sdk/guard.hpp"

namespace atoll_sdk::host {
namespace {

void copy_own(const Comm& comm, std::span<atoll_operation* const> messages) {
  std::vector<const atoll_operation*> sends;
  std::vector<const atoll_operation*> recvs;
  for (const auto* message : messages) {
    if (message->peer != comm.rank()) continue;
    (message->kind == ATOLL_SEND ? sends : recvs).push_back(message);
  }
  if (sends.size() != recvs.size()) {
    throw atoll_sdk::Error(
        ATOLL_INVALID_ARGUMENT,
        fmt::format("rank {} sends {} messages to itself and receives {} in one group", comm.rank(),
                    sends.size(), recvs.size()));
  }
  for (std::size_t i = 0; i < sends.size(); ++i) {
    if (sends[i]->count != recvs[i]->count || sends[i]->dtype != recvs[i]->dtype) {
      throw atoll_sdk::Error(
          ATOLL_MISMATCH,
          fmt::format("rank {} sends {} x {} to itself and receives {} x {}", comm.rank(),
                      sends[i]->count, atoll_sdk::dtype_name(sends[i]->dtype), recvs[i]->count,
                      atoll_sdk::dtype_name(recvs[i]->dtype)));
    }
    copy(destination(*recvs[i]), source(*sends[i]), bytes(*sends[i]));
  }
}

}  // namespace

void send_recv(Comm& comm, std::span<atoll_operation* const> messages) {
  copy_own(comm, messages);
  atoll_sdk::Exchange exchange(comm.team(), *messages.front());
  for (const auto* message : messages) {
    const int peer = message->peer;
    if (peer == comm.rank()) continue;
    auto& lane = comm.team().lanes[static_cast<std::size_t>(peer)];
    if (message->kind == ATOLL_SEND) {
      exchange.announce(peer,
                        atoll_sdk::make_signature(*message, comm.size(), lane.messages_sent++));
      exchange.send(peer, {source(*message), bytes(*message)});
    } else {
      exchange.expect(peer,
                      atoll_sdk::make_signature(*message, comm.size(), lane.messages_received++));
      exchange.recv(peer, {destination(*message), bytes(*message)});
    }
  }
  exchange.run();
}

}  // namespace atoll_sdk::host
