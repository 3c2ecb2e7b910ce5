// Implements move(): the ranks of a host copy data from each other.
//
// 1. Every rank advertises the locations of its buffers. Data outside registered windows goes
//    through the staging buffers in rounds: each rank copies data into its own staging buffer, all
//    ranks synchronize, and each rank copies the data that it needs from the other ranks' staging
//    buffers. Small data is always staged, because the extra copy costs less than a second
//    synchronization.
// 2. Data in registered windows is copied directly to its destination. Then all ranks synchronize
//    again, so that no rank overwrites data that others still read.
// Each byte is copied once from a window, or twice through the staging buffers, which stay in the
// caches.
#include <algorithm>

#include "collectives/block.hpp"
#include "collectives/group.hpp"
#include "sdk/backend.hpp"

namespace atoll_collectives {
namespace {

class Move {
 public:
  Move(Group& group, const atoll_operation& operation, Extents extents, Exchange* exchange)
      : group_(group),
        sync_(group.sync),
        operation_(operation),
        extents_(extents),
        exchange_(exchange),
        self_(sync_.self()) {
    // Computes the working set in bytes. Data that is already in place is not read and not counted.
    std::size_t received = 0;
    std::size_t read = 0;
    for (const auto& offers : group.offers) {
      for (const auto& offer : offers) {
        if (receives(offer, self_)) received += offer.bytes;
        if (offer.from == Offer::From::src && !in_place(offer)) read += offer.bytes;
      }
    }
    stores_ = group.stores_for(received * static_cast<std::size_t>(sync_.size()) + read);
  }

  void run() {
    sync_.begin(operation_, exchange_);
    advertise();
    if (staged(self_)) fill_staging(0);
    sync_.arrive(1);
    copy_own();
    copy_own_piece(0);
    sync_.await(1);
    sync_.check_adverts();
    std::size_t rounds = 0;
    bool direct = false;
    for (int local = 0; local < sync_.size(); ++local) {
      const std::size_t bytes = offered(local);
      if (bytes == 0) continue;
      if (staged(local)) {
        rounds = std::max(rounds, pieces_of(bytes, staging_bytes));
      } else {
        direct = true;
      }
    }
    if (rounds == 0 && share_work()) return;
    if (direct) copy_direct();
    copy_staged(rounds);
    if (direct) {
      sync_.arrive(rounds + 2);
      sync_.await(rounds + 2);
    }
  }

 private:
  bool receives(const Offer& offer, int local) const {
    return offer.receiver == everybody || offer.receiver == local;
  }
  // An offer is a range that a rank lets other ranks copy. Returns true if this rank's first offer
  // comes from the same buffer (src or dst) as `offer` and is already at its destination. The data
  // of other ranks is assumed to be in place as well.
  bool in_place(const Offer& offer) const {
    const auto& mine = offers(self_);
    const std::byte* const from = own(offer.from);
    return !mine.empty() && mine.front().from == offer.from && from != nullptr &&
           dst() != nullptr && from + mine.front().offset == dst() + mine.front().to;
  }
  // Returns where the buffer (src or dst) that contains the offered range is, for the rank that
  // published `advert`.
  static const WindowOffset& place(const Advert& advert, const Offer& offer) {
    return offer.from == Offer::From::src ? advert.src : advert.dst;
  }
  const std::vector<Offer>& offers(int local) const {
    return group_.offers[static_cast<std::size_t>(local)];
  }
  const std::byte* own(Offer::From from) const {
    return static_cast<const std::byte*>(from == Offer::From::src ? operation_.src
                                                                  : operation_.dst);
  }
  std::byte* dst() const { return static_cast<std::byte*>(operation_.dst); }

  // Returns the number of bytes that a local rank offers to other ranks.
  std::size_t offered(int local) const {
    std::size_t bytes = 0;
    if (sync_.size() == 1) return 0;
    for (const auto& offer : offers(local)) bytes += offer.receiver == local ? 0 : offer.bytes;
    return bytes;
  }

  bool any_large() const {
    for (int local = 0; local < sync_.size(); ++local) {
      if (offered(local) > small_bytes) return true;
    }
    return false;
  }

  // Returns true if the data of a local rank goes through its staging buffer. The answer depends
  // only on the adverts and the offers, so all ranks agree.
  bool staged(int local) const {
    const std::size_t bytes = offered(local);
    if (bytes == 0) return false;
    if (bytes <= small_bytes) return true;
    const Advert& advert = sync_.advert_of(local);
    return std::ranges::any_of(offers(local), [&](const Offer& offer) {
      return offer.receiver != local && !place(advert, offer).is_mapped();
    });
  }

  void advertise() {
    Advert& advert = sync_.advertise();
    if (offered(self_) > small_bytes) {
      advert.src = group_.windows.find(operation_.src, extents_.src);
    }
    // A rank that only receives data also advertises its dst, so that other ranks can copy data for
    // it.
    if (any_large()) advert.dst = group_.windows.find(operation_.dst, extents_.dst);
  }

  // Copies the ranges that this rank offers to itself, except those that it also stages.
  void copy_own() const {
    const bool stages = staged(self_);
    for (const auto& offer : offers(self_)) {
      if (!receives(offer, self_) || (stages && offer.receiver != self_)) continue;
      copy(dst() + offer.to, own(offer.from) + offer.offset, offer.bytes, stores_);
    }
  }

  // Calls body(offer, first, bytes, at) for each part of the ranges that the rank `local` offers to
  // other ranks and stages in this round. `first` is the offset of the part in the offered range,
  // and `at` its offset in the current half of the staging buffer.
  template <class Body>
  void each_piece(int local, std::size_t round, const Body& body) const {
    const std::size_t low = round * staging_bytes;
    const std::size_t high = low + staging_bytes;
    std::size_t begin = 0;
    for (const auto& offer : offers(local)) {
      if (offer.receiver == local) continue;
      const std::size_t end = begin + offer.bytes;
      const std::size_t from = std::max(begin, low);
      const std::size_t to = std::min(end, high);
      if (from < to) body(offer, from - begin, to - from, from - low);
      begin = end;
    }
  }

  void fill_staging(std::size_t round) const {
    std::byte* staging = sync_.staging(self_);
    each_piece(self_, round,
               [&](const Offer& offer, std::size_t first, std::size_t bytes, std::size_t at) {
                 copy(staging + at, own(offer.from) + offer.offset + first, bytes);
               });
  }

  // Copies the part that this rank stages in this round to its own dst, while it is in the caches.
  void copy_own_piece(std::size_t round) const {
    if (!staged(self_)) return;
    each_piece(
        self_, round, [&](const Offer& offer, std::size_t first, std::size_t bytes, std::size_t) {
          if (!receives(offer, self_)) return;
          copy(dst() + offer.to + first, own(offer.from) + offer.offset + first, bytes, stores_);
        });
  }

  void copy_staged(std::size_t rounds) const {
    for (std::size_t round = 0; round < rounds; ++round) {
      if (round > 0) {
        if (staged(self_)) fill_staging(round);
        sync_.arrive(round + 1);
        copy_own_piece(round);
        sync_.await(round + 1);
      }
      for (int step = 1; step < sync_.size(); ++step) {
        const int local = (self_ + step) % sync_.size();
        if (!staged(local)) continue;
        const std::byte* staging = sync_.staging(local);
        each_piece(local, round,
                   [&](const Offer& offer, std::size_t first, std::size_t bytes, std::size_t at) {
                     if (!receives(offer, self_)) return;
                     copy(dst() + offer.to + first, staging + at, bytes, stores_);
                   });
      }
      sync_.next_round();
    }
  }

  // Calls body(local, offer, first, bytes) for every piece of every range that a local rank offers
  // to other ranks. `first` is the offset of the piece in the offered range.
  template <class Body>
  void each_job(const Body& body) const {
    for (int local = 0; local < sync_.size(); ++local) {
      for (const auto& offer : offers(local)) {
        const std::size_t piece = piece_of_work(offer.bytes);
        for (std::size_t first = 0; first < offer.bytes; first += piece) {
          body(local, offer, first, std::min(piece, offer.bytes - first));
        }
      }
    }
  }

  // If the host is oversubscribed and all buffers are in registered windows, lets the running ranks
  // perform all copies of the step, including those for waiting ranks. Otherwise copies nothing and
  // returns false.
  bool share_work() {
    if (!sync_.oversubscribed() || sync_.size() == 1) return false;
    for (int local = 0; local < sync_.size(); ++local) {
      if (!sync_.advert_of(local).dst.is_mapped()) return false;
    }
    std::uint64_t jobs = 0;
    each_job([&](int, const Offer&, std::size_t, std::size_t) { ++jobs; });
    std::uint64_t number = 0;
    std::int64_t mine = sync_.claim(jobs);
    each_job([&](int local, const Offer& offer, std::size_t first, std::size_t bytes) {
      if (static_cast<std::int64_t>(number++) != mine) return;
      copy_piece(local, offer, first, bytes);
      sync_.finish_job();
      mine = sync_.claim(jobs);
    });
    sync_.await_jobs(jobs);
    return true;
  }

  void copy_piece(int local, const Offer& offer, std::size_t first, std::size_t bytes) const {
    const std::byte* source =
        group_.windows.at(local, place(sync_.advert_of(local), offer)) + offer.offset + first;
    for (int receiver = 0; receiver < sync_.size(); ++receiver) {
      if (receiver == local || !receives(offer, receiver))
        continue;  // copy_own() copies data from a rank to itself
      std::byte* to = group_.windows.at(receiver, sync_.advert_of(receiver).dst) + offer.to + first;
      copy(to, source, bytes, stores_);
    }
  }

  void copy_direct() const {
    for (int step = 1; step < sync_.size(); ++step) {
      const int local = (self_ + step) % sync_.size();
      if (staged(local)) continue;
      const Advert& advert = sync_.advert_of(local);
      for (const auto& offer : offers(local)) {
        if (!receives(offer, self_) || offer.bytes == 0) continue;
        const std::byte* from = group_.windows.at(local, place(advert, offer)) + offer.offset;
        copy(dst() + offer.to, from, offer.bytes, stores_);
      }
    }
  }

  Group& group_;
  LocalSync& sync_;
  const atoll_operation& operation_;
  Extents extents_;
  Exchange* exchange_;
  int self_;
  Stores stores_;
};

}  // namespace

void move(Group& group, const atoll_operation& operation, Extents extents, Exchange* exchange) {
  Move(group, operation, extents, exchange).run();
  for (auto& offers : group.offers) offers.clear();
}

}  // namespace atoll_collectives
