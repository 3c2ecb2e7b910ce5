// Network says which TCP connections join two ranks of different hosts. Both ranks compute the same
// connections, so they need not agree on them.
//
// A rail is one of a host's networks. A rank listens once per rail. The connections of a pair of
// ranks, called streams, are assigned in turn to the rails that both ranks have.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "atoll/plugin.h"
#include "collectives/layout.hpp"

namespace atoll_host_backend {

class Network {
 public:
  // Throws Error(ATOLL_INVALID_ARGUMENT) if a rank has too many rails.
  explicit Network(const atoll_group& group);

  int rank() const { return rank_; }
  int size() const { return static_cast<int>(rails_.size()); }
  bool is_remote(int rank) const { return layout_.host_of(rank) != layout_.host_of(rank_); }
  // Returns the addresses of a rank, one per rail.
  const std::vector<std::string>& rails(int rank) const {
    return rails_[static_cast<std::size_t>(rank)];
  }
  // Number of rails that this rank and `rank` both have.
  std::size_t common_rails(int rank) const;
  // Number of streams that join this rank and `rank`.
  int streams(int rank) const;
  // Rail of a stream. Ranks of a host begin with different rails to spread the load.
  std::size_t rail(int rank, int stream) const;

 private:
  int rank_;
  atoll_collectives::Layout layout_;
  int per_rail_;  // number of streams per rail and pair of ranks
  std::vector<std::vector<std::string>> rails_;
};

}  // namespace atoll_host_backend
