// How the ranks of a host take what others of them have.
//
// Steps.
// 1. Every rank posts where its buffers are. Data that others cannot reach, and small data, whose
//    copy costs less than a second meeting, goes through the stage in rounds: each fills its half,
//    all meet, each copies what it wants out of the others' halves.
// 2. Data in windows is copied straight from where it is; all meet once more, so that nobody
//    overwrites what others still read.
// Copies per byte: 1 from windows, 2 through the stage, which stays in the caches.
#include <algorithm>

#include "sdk/describe.hpp"
#include "collectives/group.hpp"

namespace atoll_sdk {
namespace {

class Move {
 public:
  Move(Group& group, const atoll_operation& operation, Extents extents, Exchange* exchange)
      : group_(group),
        board_(group.board),
        operation_(operation),
        extents_(extents),
        exchange_(exchange),
        self_(board_.self()) {
    // What is in place is not read from elsewhere.
    std::size_t taken = 0;
    std::size_t read = 0;
    for (const auto& offers : group.offers) {
      for (const auto& offer : offers) {
        if (takes(offer, self_)) taken += offer.bytes;
        if (offer.from == Offer::From::src && !in_place(offer)) read += offer.bytes;
      }
    }
    streaming_ = streaming(taken * static_cast<std::size_t>(board_.size()) + read, board_.size());
  }

  void run() {
    board_.begin(operation_, exchange_);
    write_post();
    if (staged(self_)) fill_stage(0);
    board_.mark(1);
    take_own();
    board_.await(1);
    board_.check_posts();
    std::size_t rounds = 0;
    bool direct = false;
    for (int local = 0; local < board_.size(); ++local) {
      const std::size_t bytes = offered(local);
      if (bytes == 0) continue;
      if (staged(local)) {
        rounds = std::max(rounds, (bytes + stage_bytes - 1) / stage_bytes);
      } else {
        direct = true;
      }
    }
    if (rounds == 0 && share_work()) return;
    if (direct) take_direct();
    take_staged(rounds);
    if (direct) {
      board_.mark(rounds + 2);
      board_.await(rounds + 2);
    }
  }

 private:
  bool takes(const Offer& offer, int local) const {
    return offer.taker == everybody || offer.taker == local;
  }
  // Of this rank's own offers; those of the others are taken to be alike.
  bool in_place(const Offer& offer) const {
    const auto& mine = offers(self_);
    return !mine.empty() && mine.front().from == offer.from &&
           own(offer.from) + mine.front().offset == dst() + mine.front().to;
  }
  const std::vector<Offer>& offers(int local) const {
    return group_.offers[static_cast<std::size_t>(local)];
  }
  const std::byte* own(Offer::From from) const {
    return static_cast<const std::byte*>(from == Offer::From::src ? operation_.src
                                                                  : operation_.dst);
  }
  std::byte* dst() const { return static_cast<std::byte*>(operation_.dst); }

  // Bytes that a rank has for others.
  std::size_t offered(int local) const {
    std::size_t bytes = 0;
    if (board_.size() == 1) return 0;
    for (const auto& offer : offers(local)) bytes += offer.taker == local ? 0 : offer.bytes;
    return bytes;
  }

  bool any_large() const {
    for (int local = 0; local < board_.size(); ++local) {
      if (offered(local) > small_bytes) return true;
    }
    return false;
  }

  // The same answer on every rank, from the posts.
  bool staged(int local) const {
    const std::size_t bytes = offered(local);
    if (bytes == 0) return false;
    if (bytes <= small_bytes) return true;
    const Post& post = board_.post_of(local);
    return std::ranges::any_of(offers(local), [&](const Offer& offer) {
      return offer.taker != local &&
             (offer.from == Offer::From::src ? post.src : post.dst).window < 0;
    });
  }

  void write_post() {
    Post& post =
        board_.announce(make_signature(operation_, group_.size(), group_.team.collectives));
    if (offered(self_) > small_bytes) {
      post.src = group_.windows.find(operation_.src, extents_.src);
    }
    // Also of a rank that only takes: others may do its share of the work.
    if (any_large()) post.dst = group_.windows.find(operation_.dst, extents_.dst);
  }

  void take_own() const {
    for (const auto& offer : offers(self_)) {
      if (!takes(offer, self_)) continue;
      group_.copy(dst() + offer.to, own(offer.from) + offer.offset, offer.bytes, streaming_);
    }
  }

  // Calls body(offer, first, bytes, at) for the pieces of what `local` has for others that are in
  // the given round: `first` counts within the offer, `at` within the half.
  template <class Body>
  void each_piece(int local, std::size_t round, const Body& body) const {
    const std::size_t low = round * stage_bytes;
    const std::size_t high = low + stage_bytes;
    std::size_t begin = 0;
    for (const auto& offer : offers(local)) {
      if (offer.taker == local) continue;
      const std::size_t end = begin + offer.bytes;
      const std::size_t from = std::max(begin, low);
      const std::size_t to = std::min(end, high);
      if (from < to) body(offer, from - begin, to - from, from - low);
      begin = end;
    }
  }

  void fill_stage(std::size_t round) const {
    std::byte* stage = board_.stage(self_);
    each_piece(self_, round,
               [&](const Offer& offer, std::size_t first, std::size_t bytes, std::size_t at) {
                 group_.copy(stage + at, own(offer.from) + offer.offset + first, bytes, 0);
               });
  }

  void take_staged(std::size_t rounds) const {
    for (std::size_t round = 0; round < rounds; ++round) {
      if (round > 0) {
        if (staged(self_)) fill_stage(round);
        board_.mark(round + 1);
        board_.await(round + 1);
      }
      for (int step = 1; step < board_.size(); ++step) {
        const int local = (self_ + step) % board_.size();
        if (!staged(local)) continue;
        const std::byte* stage = board_.stage(local);
        each_piece(local, round,
                   [&](const Offer& offer, std::size_t first, std::size_t bytes, std::size_t at) {
                     if (!takes(offer, self_)) return;
                     group_.copy(dst() + offer.to + first, stage + at, bytes, streaming_);
                   });
      }
      board_.next_round();
    }
  }

  // Calls body(local, offer, first, bytes) for every piece of what a rank has for `taker`.
  template <class Body>
  void each_job(const Body& body) const {
    for (int local = 0; local < board_.size(); ++local) {
      for (const auto& offer : offers(local)) {
        const std::size_t piece = piece_of_work(offer.bytes);
        for (std::size_t first = 0; first < offer.bytes; first += piece) {
          body(local, offer, first, std::min(piece, offer.bytes - first));
        }
      }
    }
  }

  // Pieces that whoever runs takes to all who want them, where every buffer is within everybody's
  // reach.
  bool share_work() {
    if (!board_.crowded() || board_.size() == 1) return false;
    for (int local = 0; local < board_.size(); ++local) {
      if (board_.post_of(local).dst.window < 0) return false;
    }
    std::uint64_t jobs = 0;
    each_job([&](int, const Offer&, std::size_t, std::size_t) { ++jobs; });
    std::uint64_t number = 0;
    std::int64_t mine = board_.claim(jobs);
    each_job([&](int local, const Offer& offer, std::size_t first, std::size_t bytes) {
      if (static_cast<std::int64_t>(number++) != mine) return;
      bring(local, offer, first, bytes);
      board_.finish_job();
      mine = board_.claim(jobs);
    });
    board_.await_jobs(jobs);
    return true;
  }

  void bring(int local, const Offer& offer, std::size_t first, std::size_t bytes) const {
    const Post& from = board_.post_of(local);
    const Place& place = offer.from == Offer::From::src ? from.src : from.dst;
    const std::byte* source = group_.windows.at(local, place) + offer.offset + first;
    for (int taker = 0; taker < board_.size(); ++taker) {
      if (taker == local || !takes(offer, taker)) continue;  // own data has been taken
      std::byte* to = group_.windows.at(taker, board_.post_of(taker).dst) + offer.to + first;
      group_.copy(to, source, bytes, streaming_);
    }
  }

  void take_direct() const {
    for (int step = 1; step < board_.size(); ++step) {
      const int local = (self_ + step) % board_.size();
      if (staged(local)) continue;
      const Post& post = board_.post_of(local);
      for (const auto& offer : offers(local)) {
        if (!takes(offer, self_) || offer.bytes == 0) continue;
        const Place& place = offer.from == Offer::From::src ? post.src : post.dst;
        group_.copy(dst() + offer.to, group_.windows.at(local, place) + offer.offset, offer.bytes,
                    streaming_);
      }
    }
  }

  Group& group_;
  Board& board_;
  const atoll_operation& operation_;
  Extents extents_;
  Exchange* exchange_;
  int self_;
  int streaming_;
};

}  // namespace

void move(Group& group, const atoll_operation& operation, Extents extents, Exchange* exchange) {
  Move(group, operation, extents, exchange).run();
  for (auto& offers : group.offers) offers.clear();
}

}  // namespace atoll_sdk
