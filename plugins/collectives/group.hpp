// A communicator as the algorithms see it: its ranks, where they are, and what they share.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "atoll/plugin.h"
#include "collectives/board.hpp"
#include "collectives/exchange.hpp"
#include "collectives/windows.hpp"

namespace atoll_sdk {

// Data of up to this size goes through the stage whatever memory it is in: a copy of it costs less
// than a second meeting of the ranks.
constexpr std::size_t small_bytes = 2 * 1024;

// Which ranks share a host. Hosts are numbered by their lowest rank.
class Layout {
 public:
  explicit Layout(const atoll_group& group);

  int hosts() const noexcept { return static_cast<int>(ranks_.size()); }
  int host_of(int rank) const noexcept { return host_[static_cast<std::size_t>(rank)]; }
  int local_of(int rank) const noexcept { return local_[static_cast<std::size_t>(rank)]; }
  const std::vector<int>& ranks_of(int host) const noexcept {
    return ranks_[static_cast<std::size_t>(host)];
  }
  // The rank of `host` that deals with `rank` of another host: the one of the same place, counted
  // round where that host has fewer ranks.
  int twin(int rank, int host) const noexcept;
  // Of the host that has fewest.
  int fewest_ranks() const noexcept;
  // Whether a tree over the ranks of each host and then over the hosts is the adjacent-pair tree
  // over all ranks: hosts of one size, a power of two, each with ranks in a row.
  bool tree_of_hosts() const noexcept { return tree_of_hosts_; }

 private:
  std::vector<int> host_;   // by rank
  std::vector<int> local_;  // by rank
  std::vector<std::vector<int>> ranks_;
  bool tree_of_hosts_ = true;
};

// Bytes that a rank has for others of its host, or has got for them from elsewhere.
struct Offer {
  enum class From {
    src,
    dst
  } from;
  std::size_t offset;  // in that buffer of the rank that offers
  std::size_t to;      // in the dst of a rank that takes
  std::size_t bytes;
  int taker;  // local; everybody
};
constexpr int everybody = -1;

// A range of src that is reduced over the ranks of a host.
struct Slice {
  std::size_t offset;  // in src
  std::size_t bytes;
  int reducer;  // local; everybody: each for itself
  std::byte* dst;
};

struct Group {
  Group(const atoll_host& host_, const atoll_group& group, Team& team_, ShmTransport* shm)
      : host(host_), team(team_), layout(group), board(team_, shm), windows(team_, shm) {
    offers.resize(static_cast<std::size_t>(board.size()));
    parts.resize(static_cast<std::size_t>(team_.size()));
  }
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  int rank() const noexcept { return team.rank; }
  int size() const noexcept { return team.size(); }
  bool one_host() const noexcept { return layout.hosts() == 1; }

  void copy(std::byte* dst, const std::byte* src, std::size_t bytes, int streaming) const {
    if (bytes > 0 && dst != src) host.copy(host.ctx, dst, src, bytes, streaming);
  }
  void reduce(const atoll_reduction& reduction) const;
  // At least `bytes`, aligned to a cache line; what it held is lost at the next call.
  std::span<std::byte> scratch(std::size_t bytes);

  const atoll_host& host;
  Team& team;
  Layout layout;
  Board board;
  Windows windows;

  // What an algorithm asks of move() and sum(); kept, so that small operations allocate nothing.
  std::vector<std::vector<Offer>> offers;  // by local; cleared by move()
  std::vector<Slice> slices;               // cleared by sum()
  std::vector<const void*> parts;
  std::vector<double> factors;
  std::vector<void*> dsts;

 private:
  struct Free {
    void operator()(std::byte* memory) const noexcept;
  };
  std::unique_ptr<std::byte, Free> scratch_;
  std::size_t scratch_bytes_ = 0;
};

// Whether the stores of an operation should pass by the caches, where so many ranks of this host
// read and write `bytes` in all, and do not write where they read: not while they fit the caches,
// where a store costs no more than the line that it fills; beyond, a cached store first reads from
// memory what it overwrites.
int streaming(std::size_t bytes, int ranks);

// Bytes of src and dst of this rank.
struct Extents {
  std::size_t src;
  std::size_t dst;
};

// One step on the board: everybody takes what group.offers has for it into its dst; when it
// returns, the data is there and nobody reads this rank's buffers any more. Data in windows is
// copied once, other data through the stage.
void move(Group& group, const atoll_operation& operation, Extents extents,
          Exchange* exchange = nullptr);

// What a sum over the ranks of a host is part of.
struct Sum {
  std::int32_t op;
  std::int32_t divisor = 0;
  enum class Push {
    no,
    all,
    root,
  } push = Push::no;
  int root = 0;  // local
  // Whether a slice's result belongs at the start of its reducer's dst, or elsewhere.
  enum class Owners {
    elsewhere,
    in_dst,
  } owners_write = Owners::elsewhere;
};
// Bytes of a job where ranks take what there is to do in turn.
std::size_t piece_of_work(std::size_t bytes) noexcept;
// One step on the board: every reducer combines its slices of all src, in rank order. With `push`
// the result goes into dst of everybody, or of the root, at the slice's offset, if those are in
// windows: then true; otherwise (false) into the slice's own dst.
bool sum(Group& group, const atoll_operation& operation, Extents extents, const Sum& how,
         Exchange* exchange = nullptr);

}  // namespace atoll_sdk
