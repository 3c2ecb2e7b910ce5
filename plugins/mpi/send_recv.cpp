// send and recv: all messages of a group are in flight at the same time.
#include <deque>

#include "collectives.hpp"
#include "sdk/backend.hpp"
#include "types.hpp"

namespace atoll_mpi {
namespace {

// MPI tags. Messages between two ranks match in the order of the calls, so one tag is enough for
// them. Messages that implement a collective have another tag, because one rank may call the
// collective before a send or recv, and another rank after it.
constexpr int tag_of_messages = 0;
constexpr int tag_of_pieces = 1;

void check_length(const atoll_operation& operation, std::uint64_t arrived) {
  const std::uint64_t expected = operation.count * dtype_size(operation.dtype);
  if (arrived == expected) return;
  throw Error(ATOLL_MISMATCH, "rank " + std::to_string(operation.peer) + " sent " +
                                  std::to_string(arrived) + " bytes, but the receive expects " +
                                  std::to_string(expected));
}

}  // namespace

void send_recv(MpiCommunicator& comm, const std::vector<const atoll_operation*>& operations,
               Messages whose) {
  const int tag = whose == Messages::own ? tag_of_messages : tag_of_pieces;
  Requests requests(comm.session());
  std::deque<Block> blocks;
  for (const atoll_operation* operation : operations) {
    const Block& block =
        blocks.emplace_back(comm.session(), operation->count * dtype_size(operation->dtype));
    if (operation->kind == ATOLL_SEND) {
      requests.post("MPI_Isend", [&](MPI_Request* request) {
        return MPI_Isend(operation->src, block.count(), block.type(), operation->peer, tag,
                         comm.mpi(), request);
      });
    } else {
      requests.post("MPI_Irecv", [&](MPI_Request* request) {
        return MPI_Irecv(operation->dst, block.count(), block.type(), operation->peer, tag,
                         comm.mpi(), request);
      });
    }
  }
  requests.wait(comm.backoff());
  for (std::size_t i = 0; i < operations.size(); ++i) {
    if (operations[i]->kind != ATOLL_RECV) continue;
    check_length(*operations[i], requests.received_bytes(i, blocks[i].type()));
  }
}

}  // namespace atoll_mpi
