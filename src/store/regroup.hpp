// The requests that ranks and new processes send to the store when a World is rebuilt, and the
// choice of those that form the next World.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace atoll_v1::atoll::store {

// The request of a process for a place in the next epoch. `World::Regroup` (atoll/world.hpp)
// explains the last four members.
struct Candidacy {
  std::uint32_t epoch = 0;
  int rank = -1;    // rank in `epoch`; -1: a new process, which belongs to no epoch
  int former = -1;  // rank in the World that the program had before; -1: none
  std::string host{};
  int pid = 0;
  std::string settings{};  // settings that must be equal on all ranks
  std::string place{};     // host and ATOLL_LOCAL_RANK, another pair on each rank; "": not set
  std::string tag{};
  std::uint32_t needed = 1;
  std::uint32_t min_ranks = 1;
  std::chrono::milliseconds grace{0};

  bool is_new() const noexcept { return rank < 0; }
};
// Returns "rank 2 of epoch 1 (host h, pid p)" or "a new process (host h, pid p)".
std::string named(const Candidacy& candidacy);
std::string encode(const Candidacy& candidacy);
Candidacy decode_candidacy(std::string_view body);

// The place of a process in a new epoch.
struct Seat {
  std::uint32_t epoch = 0;
  int rank = 0;
  std::vector<int> former_ranks{};  // for each rank, its Candidacy::former
  std::string secret{};  // secret of a store on a local socket, for ranks without a token
  std::string nonce{};   // random; with the token of the job, it makes the token of the epoch
};
std::string encode(const Seat& seat);
Seat decode_seat(std::string_view body);

// Returns the candidates that form the next epoch, as indices in the order of their new ranks: the
// ranks of the last epoch in their order, then new processes in the order of the list. Of the
// candidates with one tag, as many are chosen as the tag needs, or none if there are fewer. Without
// a tag each candidate is chosen.
std::vector<std::size_t> choose(std::span<const Candidacy> candidates);

}  // namespace atoll_v1::atoll::store
