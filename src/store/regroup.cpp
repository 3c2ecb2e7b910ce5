#include "store/regroup.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <map>
#include <numeric>
#include <tuple>

#include "core/errors.hpp"
#include "store/protocol.hpp"

namespace atoll_v1::atoll::store {
namespace {

// The code of a missing rank (-1) in messages.
constexpr std::uint32_t no_rank = std::numeric_limits<std::uint32_t>::max();
std::uint32_t packed(int rank) { return rank < 0 ? no_rank : static_cast<std::uint32_t>(rank); }
int unpacked(std::uint32_t number) {
  constexpr auto most = static_cast<std::uint32_t>(std::numeric_limits<int>::max());
  require(number == no_rank || number <= most, ErrorCode::bad_data, "store message: rank {}",
          number);
  return number == no_rank ? -1 : static_cast<int>(number);
}

}  // namespace

std::string encode(const Candidacy& candidacy) {
  return Packer()
      .number(candidacy.epoch)
      .number(packed(candidacy.rank))
      .number(packed(candidacy.former))
      .text(candidacy.host)
      .number(static_cast<std::uint32_t>(candidacy.pid))
      .text(candidacy.settings)
      .text(candidacy.place)
      .text(candidacy.tag)
      .number(candidacy.needed)
      .number(candidacy.min_ranks)
      .number(static_cast<std::uint32_t>(candidacy.grace.count()))
      .take();
}

Candidacy decode_candidacy(std::string_view body) {
  Unpacker in(body);
  Candidacy result;
  result.epoch = in.number();
  result.rank = unpacked(in.number());
  result.former = unpacked(in.number());
  result.host = in.text(max_host_bytes);
  result.pid = static_cast<int>(in.number());
  result.settings = in.text(max_key_bytes);
  result.place = in.text(max_key_bytes);
  result.tag = in.text(max_key_bytes);
  result.needed = in.number();
  result.min_ranks = in.number();
  result.grace = std::chrono::milliseconds(in.number());
  in.finish();
  return result;
}

std::string encode(const Seat& seat) {
  Packer packer;
  packer.number(seat.epoch)
      .number(packed(seat.rank))
      .text(seat.secret)
      .text(seat.nonce)
      .number(static_cast<std::uint32_t>(seat.former_ranks.size()));
  for (const int rank : seat.former_ranks) packer.number(packed(rank));
  return packer.take();
}

Seat decode_seat(std::string_view body) {
  Unpacker in(body);
  Seat seat;
  seat.epoch = in.number();
  seat.rank = unpacked(in.number());
  seat.secret = in.text(max_secret_bytes);
  seat.nonce = in.text(max_secret_bytes);
  const std::size_t size = in.number();
  require(size == in.left() / 4 && seat.rank >= 0 && static_cast<std::size_t>(seat.rank) < size,
          ErrorCode::bad_data, "store message: rank {} of an epoch of {} ranks", seat.rank, size);
  for (std::size_t i = 0; i < size; ++i) seat.former_ranks.push_back(unpacked(in.number()));
  in.finish();
  return seat;
}

std::string named(const Candidacy& wish) {
  const std::string process = fmt::format("host {}, pid {}", wish.host, wish.pid);
  return wish.is_new() ? fmt::format("a new process ({})", process)
                       : fmt::format("rank {} of epoch {} ({})", wish.rank, wish.epoch, process);
}

std::vector<std::size_t> choose(std::span<const Candidacy> candidates) {
  std::vector<std::size_t> order(candidates.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(order, {}, [&](std::size_t i) {
    return std::tuple(candidates[i].is_new(), candidates[i].rank);
  });
  struct Replica {
    std::size_t needed = 0, present = 0, chosen = 0;
  };
  std::map<std::string_view, Replica> replicas;
  for (const Candidacy& candidate : candidates) {
    Replica& replica = replicas[candidate.tag];
    replica.needed = std::max<std::size_t>(replica.needed, candidate.needed);
    ++replica.present;
  }
  std::erase_if(order, [&](std::size_t i) {
    Replica& replica = replicas[candidates[i].tag];
    if (candidates[i].tag.empty()) return false;
    return replica.present < replica.needed || replica.chosen++ >= replica.needed;
  });
  return order;
}

}  // namespace atoll_v1::atoll::store
