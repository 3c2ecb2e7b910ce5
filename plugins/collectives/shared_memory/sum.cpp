// Implements sum(): the ranks of a host reduce slices of their data.
//
// 1. Every rank advertises the locations of its buffers. Contributions that are small or outside
//    registered windows go through the staging buffers in rounds: each rank copies the next chunk
//    of every slice into its staging buffer, all ranks synchronize, and each reducer reduces the
//    chunks of its slices.
// 2. Contributions in registered windows are read in place: one pass reads every rank's part of a
//    slice and writes the result, if possible, directly to every rank that needs it. Then all ranks
//    synchronize again, so that no rank overwrites data that others still read.
// 3. If all ranks need the results but some dst is in memory that other ranks cannot access, the
//    reducers write each chunk of the results to their staging buffers. After a synchronization
//    every rank copies the chunk to its dst, while it is in the caches. A reducer writes its own
//    results to its dst in the same pass that writes them to staging, unless stores to dst should
//    bypass the caches.
// Memory traffic per rank for S bytes on n ranks without staging: a reduce_scatter reads S bytes
// and writes S / n; an all_reduce reads S bytes and writes S.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "collectives/block.hpp"
#include "collectives/group.hpp"
#include "sdk/backend.hpp"

namespace atoll_collectives {
namespace {

class LocalSum {
 public:
  LocalSum(Group& group, const atoll_operation& operation, Extents extents, const Sum& how,
           Exchange* exchange)
      : group_(group),
        sync_(group.sync),
        operation_(operation),
        extents_(extents),
        how_(how),
        exchange_(exchange),
        self_(sync_.self()),
        element_(dtype_size(operation.dtype)) {
    for (const auto& slice : group.slices) {
      largest_ = std::max(largest_, slice.bytes);
      total_ += slice.bytes;
    }
    const auto ranks = static_cast<std::size_t>(sync_.size());
    const bool in_place = operation.src != nullptr && operation.dst >= operation.src &&
                          operation.dst < src() + std::max<std::size_t>(extents.src, 1);
    const std::size_t written = how.push == Sum::Push::all ? ranks * total_ : total_;
    // An in-place sum uses cached stores, because it has just read the lines that it writes.
    if (!in_place) stores_ = group.stores_for(ranks * total_ + written);
    const std::size_t slices = std::max<std::size_t>(group.slices.size(), 1);
    chunk_ = staging_bytes / slices / cache_line * cache_line;
    if (chunk_ == 0) {
      throw Error(ATOLL_UNSUPPORTED,
                  fmt::format("a reduction over more than {} ranks of one host is not supported",
                              staging_bytes / cache_line));
    }
    group.factors.resize(static_cast<std::size_t>(sync_.size()));
  }

  void run() {
    sync_.begin(operation_, exchange_);
    advertise();
    if (staged(self_)) fill_staging(0);
    sync_.arrive(1);
    sync_.await(1);
    sync_.check_adverts();
    if (can_push()) {
      results_ = Results::every_dst;
      if (writes_where_it_reads()) stores_ = Stores::cached;
    } else if (how_.push == Sum::Push::root) {
      leave_to_root();
    } else if (how_.push == Sum::Push::all) {
      results_ = Results::staging;
    }
    read_factors();
    if (results_ == Results::staging) return reduce_through_staging();
    if (share_work()) return;
    bool any_staged = false;
    bool any_direct = results_ == Results::every_dst;
    for (int local = 0; local < sync_.size() && sync_.size() > 1; ++local) {
      (staged(local) ? any_staged : any_direct) = true;
    }
    const std::size_t piece = any_staged ? chunk_ : largest_;
    const std::size_t rounds =
        any_staged ? std::max<std::size_t>(pieces_of(largest_, chunk_), 1) : 1;
    for (std::size_t round = 0; round < rounds; ++round) {
      if (round > 0) {
        if (staged(self_)) fill_staging(round);
        sync_.arrive(round + 1);
        sync_.await(round + 1);
      }
      reduce_slices(round, piece);
      if (any_staged) sync_.next_round();
    }
    if (any_direct) {
      sync_.arrive(rounds + 1);
      sync_.await(rounds + 1);
    }
  }

  // If the host is oversubscribed and all buffers are in registered windows, lets the running ranks
  // perform all reductions of the step, including those of waiting ranks. Otherwise reduces nothing
  // and returns false.
  bool share_work() {
    const bool pushed = results_ == Results::every_dst;
    const bool in_dst = how_.owners_write == Sum::Owners::in_dst;
    if (!sync_.oversubscribed() || sync_.size() == 1 || !(pushed || in_dst)) return false;
    for (int local = 0; local < sync_.size(); ++local) {
      const Advert& advert = sync_.advert_of(local);
      const bool written = !pushed || receives(local);
      if (staged(local) || !advert.src.is_mapped()) return false;
      if (written && !advert.dst.is_mapped()) return false;
    }
    const std::size_t piece = piece_of_work(total_);
    const std::size_t pieces = std::max<std::size_t>(pieces_of(largest_, piece), 1);
    const std::uint64_t jobs = pieces * group_.slices.size();
    for (auto job = sync_.claim(jobs); job >= 0; job = sync_.claim(jobs)) {
      const auto number = static_cast<std::size_t>(job);
      auto slice = group_.slices[number / pieces];
      if (!pushed) {
        slice.dst = group_.windows.at(slice.reducer, sync_.advert_of(slice.reducer).dst);
      }
      reduce_part_of(slice, piece_of({0, slice.bytes}, number % pieces, piece), 0);
      sync_.finish_job();
    }
    sync_.await_jobs(jobs);
    return true;
  }

 private:
  const std::byte* src() const { return static_cast<const std::byte*>(operation_.src); }

  bool staged(int local) const {
    if (sync_.size() == 1 || total_ == 0) return false;
    return total_ <= small_bytes || !sync_.advert_of(local).src.is_mapped();
  }

  void advertise() {
    Advert& advert = sync_.advertise();
    if (total_ <= small_bytes || sync_.size() == 1) return;
    advert.src = group_.windows.find(operation_.src, extents_.src);
    advert.dst = group_.windows.find(operation_.dst, extents_.dst);
  }

  bool can_push() const {
    if (sync_.size() == 1) return false;
    switch (how_.push) {
      case Sum::Push::no:
        return false;
      case Sum::Push::root:
        return sync_.advert_of(how_.root).dst.is_mapped();
      case Sum::Push::all:
        for (int local = 0; local < sync_.size(); ++local) {
          if (!sync_.advert_of(local).dst.is_mapped()) return false;
        }
        return true;
    }
    return false;
  }

  // Returns true if sum() writes the results to the dst of this rank, provided that it pushes them.
  bool receives(int local) const { return how_.push != Sum::Push::root || local == how_.root; }

  // Returns true if any rank that receives results has the same buffer as src and dst.
  bool writes_where_it_reads() const {
    for (int local = 0; local < sync_.size(); ++local) {
      const Advert& advert = sync_.advert_of(local);
      if (receives(local) && advert.src.is_mapped() && advert.src == advert.dst) return true;
    }
    return false;
  }

  // Makes the root the reducer of every slice, because other ranks cannot write to its dst. The
  // layout of the staging buffers does not depend on the reducer, so staged data stays valid.
  void leave_to_root() {
    for (auto& slice : group_.slices) slice.reducer = how_.root;
  }

  void read_factors() {
    scaled_ = false;
    for (int local = 0; local < sync_.size(); ++local) {
      const double factor = sync_.advert_of(local).factor;
      group_.factors[static_cast<std::size_t>(local)] = factor;
      scaled_ |= factor != 1.0;
    }
  }

  // A slice that this rank reduces itself is read from src. Such a slice is staged only if the root
  // may have to reduce it instead.
  void fill_staging(std::size_t round) const {
    std::byte* staging = sync_.staging(self_);
    for (const auto& slice : group_.slices) {
      const std::size_t first = std::min(round * chunk_, slice.bytes);
      const std::size_t bytes = std::min(chunk_, slice.bytes - first);
      const bool for_root = how_.push == Sum::Push::root && how_.root != self_;
      if (slice.reducer != self_ || for_root) copy(staging, src() + slice.offset + first, bytes);
      staging += chunk_;
    }
  }

  // The data of the first round is staged. In each round the ranks reduce their chunks into their
  // staging buffers, stage the data of the next round in the other halves, synchronize, and copy
  // the results of the round. A rank's results use the part of its staging buffer that belongs to
  // its own slice, because it stages no data there.
  void reduce_through_staging() {
    const std::size_t rounds = std::max<std::size_t>(pieces_of(largest_, chunk_), 1);
    for (std::size_t round = 0; round < rounds; ++round) {
      reduce_slices(round, chunk_);
      sync_.next_round();
      if (round + 1 < rounds && staged(self_)) fill_staging(round + 1);
      sync_.arrive(round + 2);
      sync_.await(round + 2);
      copy_results(round);
    }
  }

  // One pass writes to staging and to dst with the same kind of store, and results in staging must
  // stay in the caches. So a pass writes both only if stores to dst may be cached as well.
  bool writes_own_results() const { return stores_ == Stores::cached; }

  void copy_results(std::size_t round) const {
    for (std::size_t i = 0; i < group_.slices.size(); ++i) {
      const std::size_t number = (i + static_cast<std::size_t>(self_)) % group_.slices.size();
      const Slice& slice = group_.slices[number];
      if (slice.reducer == self_ && writes_own_results()) continue;
      const Block range = piece_of({slice.offset, slice.bytes}, round, chunk_);
      copy(static_cast<std::byte*>(operation_.dst) + range.offset,
           sync_.previous_staging(slice.reducer) + number * chunk_, range.bytes, stores_);
    }
  }

  void reduce_slices(std::size_t round, std::size_t chunk) {
    std::size_t at_staging = 0;
    for (const auto& slice : group_.slices) {
      const std::size_t staging = std::exchange(at_staging, at_staging + chunk_);
      if (slice.reducer != self_ && slice.reducer != everybody) continue;
      const Block range = piece_of({0, slice.bytes}, round, chunk);
      reduce_part_of(slice, range, staging);
    }
  }

  // Reduces the range `range` of a slice. `staging` is the offset of the range in the staging
  // buffers.
  void reduce_part_of(const Slice& slice, const Block& range, std::size_t staging) {
    const std::byte* own = src() + slice.offset + range.offset;
    if (range.bytes == 0 || (sync_.size() == 1 && !scaled_ && slice.dst + range.offset == own)) {
      return;
    }
    const Block place{slice.offset + range.offset, range.bytes};
    for (int local = 0; local < sync_.size(); ++local) {
      group_.parts[static_cast<std::size_t>(local)] = part(local, place, staging);
    }
    reduce_piece(slice, range, staging);
  }

  const std::byte* part(int local, const Block& place, std::size_t staging) const {
    if (local == self_) return src() + place.offset;
    if (staged(local)) return sync_.staging(local) + staging;
    return group_.windows.at(local, sync_.advert_of(local).src) + place.offset;
  }

  void reduce_piece(const Slice& slice, const Block& range, std::size_t staging) {
    group_.dsts.clear();
    switch (results_) {
      case Results::slice_dst:
        group_.dsts.push_back(slice.dst + range.offset);
        break;
      case Results::staging:
        group_.dsts.push_back(sync_.staging(self_) + staging);
        if (writes_own_results()) group_.dsts.push_back(slice.dst + range.offset);
        break;
      case Results::every_dst:
        for (int local = 0; local < sync_.size(); ++local) {
          if (!receives(local)) continue;
          group_.dsts.push_back(group_.windows.at(local, sync_.advert_of(local).dst) +
                                slice.offset + range.offset);
        }
        break;
    }
    reduce_arrays(operation_, how_.op,
                  {.dsts = group_.dsts,
                   .parts = std::span(group_.parts).first(static_cast<std::size_t>(sync_.size())),
                   .factors = scaled_ ? group_.factors.data() : nullptr,
                   .count = range.bytes / element_,
                   .stores = results_ == Results::staging ? Stores::cached : stores_});
  }

  // Where the reducers write the results of this step.
  enum class Results {
    slice_dst,  // results go to Slice::dst
    every_dst,  // results go to the dst of every rank that receives them
    staging,    // results go to the reducers' staging buffers, from which every rank copies them
  };

  Group& group_;
  LocalSync& sync_;
  const atoll_operation& operation_;
  Extents extents_;
  const Sum& how_;
  Exchange* exchange_;
  int self_;
  std::size_t element_;
  std::size_t largest_ = 0;
  std::size_t total_ = 0;
  std::size_t chunk_ = 0;
  Results results_ = Results::slice_dst;
  Stores stores_ = Stores::cached;
  bool scaled_ = false;
};

}  // namespace

void sum(Group& group, const atoll_operation& operation, Extents extents, const Sum& how,
         Exchange* exchange) {
  LocalSum(group, operation, extents, how, exchange).run();
  group.slices.clear();
}

}  // namespace atoll_collectives
