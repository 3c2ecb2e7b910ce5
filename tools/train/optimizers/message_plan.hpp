// Which rank makes each matrix of Muon orthogonal, and which messages send the parts of a matrix to
// that rank and the updates back.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace muon {

// A matrix that Muon updates. All ranks list the same matrices in the same order.
struct Matrix {
  std::int64_t rows, columns;
  // Index of the owner, the rank that makes the matrix orthogonal, in the replicate axis and in the
  // shard axis.
  int replica = 0, owner = 0;

  std::uint64_t elements() const { return static_cast<std::uint64_t>(rows * columns); }
  // Number of rows and columns of the smaller of the products X X^T and X^T X.
  std::int64_t side() const { return std::min(rows, columns); }
};

// The position of this rank among the ranks of all replicas.
struct Position {
  int replicas, ranks;  // number of replicas, and of ranks in one replica
  int replica, rank;

  bool owns(const Matrix& matrix) const {
    return matrix.replica == replica && matrix.owner == rank;
  }
};

// Consecutive elements of a matrix, and their position in a buffer of messages.
struct Piece {
  std::uint64_t first, count, offset;
};

// Consecutive elements of a buffer that ranks exchange.
struct Message {
  std::uint64_t first, count;
};

// The layout of two buffers. `mine` has this rank's parts of all matrices, sorted by the replica
// and the rank that owns the matrix. `whole` has the matrices that this rank owns, sorted by the
// rank that sends the part. The elements that go to one rank are consecutive and form one message.
struct MessagePlan {
  std::vector<std::uint64_t> offsets;  // where this rank's part of each matrix begins in `mine`
  // For each owned matrix, its parts with their offsets in `whole`.
  std::vector<std::vector<Piece>> pieces;
  // For each rank r of this replica: this rank's parts of the matrices that r owns, in `mine`, and
  // the parts that r has of this rank's owned matrices, in `whole`.
  std::vector<Message> of_mine, of_whole;
  // For each replica, this rank's parts of the matrices that ranks of the replica own, in `mine`.
  // Equal on all replicas.
  std::vector<Message> of_replica;
};

// Assigns the matrices in descending order of work, each to the rank with the least work so far.
void choose_owners(std::vector<Matrix>& matrices, const Position& position);

// Element r * matrices.size() + k of `places` is the part of matrix k on rank r of this replica. In
// a replica of one rank, the owned matrices are whole in `mine`, which then serves as `whole` too.
MessagePlan plan_messages(const std::vector<Matrix>& matrices, const std::vector<Piece>& places,
                          const Position& position);

}  // namespace muon
