// HostPairs is the exchange pattern of doubling.cpp and halving.cpp: hosts whose positions differ
// by 1, then 2, 4, ... exchange data, through one rank per host.
//
// The number of participating hosts is a power of two. If there are more hosts, the first hosts
// form pairs, so that one host of each pair participates for both: the odd host hands its data to
// the even host, which later returns the result. The position of a participant is its index among
// the participants.
#pragma once

#include <bit>
#include <cstddef>
#include <span>

#include "collectives/group.hpp"

namespace atoll_collectives {

class HostPairs {
 public:
  // Uses `scratch_bytes` of group.scratch() for the buffer `incoming`, which receives data from
  // other hosts.
  HostPairs(Group& group, const atoll_operation& operation, Exchange& exchange,
            std::size_t scratch_bytes)
      : incoming(group.scratch(scratch_bytes)),
        group_(group),
        operation_(operation),
        exchange_(exchange),
        participants_(std::bit_floor(static_cast<unsigned>(group.layout.hosts()))),
        pairs_(static_cast<unsigned>(group.layout.hosts()) - participants_),
        host_(static_cast<unsigned>(group.layout.host_of(group.rank()))) {}

  unsigned participants() const { return participants_; }
  unsigned position() const { return is_paired() ? host_ / 2 : host_ - pairs_; }
  int rank_at(unsigned position) const {
    return rank_of(position < pairs_ ? 2 * position : position + pairs_);
  }

  // Returns the op for the exchange between hosts at `distance`. For an average only the last
  // exchange divides; the exchanges before it only add.
  std::int32_t op_at(unsigned distance) const {
    return 2 * distance == participants_ ? operation_.op : partial_op(operation_);
  }

  // Completes a sum over all hosts in `data`, which holds the sum of this rank's host. On hosts
  // that take part in the exchange, calls reduce(), which must complete the sum over the
  // participants.
  template <class Reduce>
  void run(std::span<std::byte> data, const Reduce& reduce) {
    if (is_paired() && host_ % 2 == 1) {
      exchange_.send(partner(), data);
      return receive(partner(), data);
    }
    if (is_paired()) {
      receive(partner(), incoming);
      add(data, Side::right, partial_op(operation_));
    }
    reduce();
    if (is_paired()) exchange_.send(partner(), data);
  }

  void receive(int rank, std::span<std::byte> to) {
    exchange_.run_until_received(rank, exchange_.recv(rank, to));
  }

  enum class Side {
    left,
    right
  };
  // Reduces the data in `incoming` into `own`. Side::left makes `incoming` the left operand,
  // Side::right the right operand, so that both ranks of an exchange reduce in the same order.
  void add(std::span<std::byte> own, Side side, std::int32_t op) {
    const bool left = side == Side::left;
    void* dst = own.data();
    const void* parts[] = {left ? incoming.data() : own.data(),
                           left ? own.data() : incoming.data()};
    reduce_arrays(operation_, op,
                  {.dsts = {&dst, 1},
                   .parts = parts,
                   .count = own.size() / dtype_size(operation_.dtype),
                   .divisor = group_.size()});
  }

  std::span<std::byte> incoming;

 private:
  bool is_paired() const { return host_ < 2 * pairs_; }
  // Returns the rank on the other host of this host's pair with which this rank exchanges data.
  int partner() const { return rank_of(host_ ^ 1U); }
  int rank_of(unsigned host) const {
    return group_.layout.counterpart(group_.rank(), static_cast<int>(host));
  }

  Group& group_;
  const atoll_operation& operation_;
  Exchange& exchange_;
  unsigned participants_;
  unsigned pairs_;
  unsigned host_;
};

}  // namespace atoll_collectives
