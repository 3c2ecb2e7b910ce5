#include "verbs/stream.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstring>

#include "sdk/backend.hpp"

namespace atoll_verbs_backend {
namespace {

using atoll_sdk::Error;

// Larger data waits for a grant: one more copy on each side costs more than the grant.
constexpr std::size_t eager_bytes = 16 * 1024;
// Maximum bytes of one write: few enough that several queue pairs share a message, and so many that
// the cost of a request does not matter.
constexpr std::size_t chunk_bytes = 256 * 1024;
// This rank tells the peer when a quarter of the ring, of the credits or of the grant slots is free
// again.
constexpr std::size_t news_share = 4;

constexpr std::uint32_t bytes_mask = (1u << 20) - 1;
constexpr std::uint32_t number_shift = 20;
constexpr std::uint32_t kind_shift = 30;
static_assert(chunk_bytes <= bytes_mask);

constexpr std::uint32_t word(Wire::Kind kind) {
  return static_cast<std::uint32_t>(kind) << kind_shift;
}

// The adapter changes the counters of the mailbox, so each read must load them from memory.
std::uint64_t read(std::uint64_t& counter) {
  return std::atomic_ref(counter).load(std::memory_order_acquire);
}

// Sets a counter of what the peer has read to `next`, which may not decrease or exceed `sent`.
void advance(std::uint64_t& counter, std::uint64_t next, std::uint64_t sent) {
  if (next < counter || next > sent) {
    throw Error(ATOLL_BAD_DATA,
                fmt::format("it says that it has read {} of {} after {}", next, sent, counter));
  }
  counter = next;
}

}  // namespace

void Stream::attach(Wire& wire, const Region& own, const Region& image, const Target& peer,
                    std::size_t credits) {
  wire_ = &wire;
  head_ = reinterpret_cast<MailboxHead*>(own.memory.data());
  ring_ = own.memory.subspan(sizeof(MailboxHead));
  image_ = reinterpret_cast<MailboxHead*>(image.memory.data());
  image_ring_ = image.memory.subspan(sizeof(MailboxHead));
  image_region_ = &image;
  peer_ = peer;
  credits_ = credits;
  pump();
}

// --- sending -------------------------------------------------------------------------------------

std::size_t Stream::send(std::span<const std::byte> data) {
  if (wire_ == nullptr) return 0;
  while (unreturned_ < data.size() && !has_closed()) {
    const std::size_t n = post(data.subspan(unreturned_));
    if (n == 0) break;
    unreturned_ += n;
  }
  std::size_t done = 0;
  while (!segments_.empty() && is_done(segments_.front())) {
    done += segments_.front().bytes;
    segments_.pop_front();
  }
  unreturned_ -= done;
  return done;
}

// A closed peer may acknowledge nothing, so its count of received bytes decides as well.
bool Stream::is_done(const Segment& segment) const {
  return segment.is_copied || wire_->is_done(segment.ticket) ||
         (has_closed() && segment.end <= read(head_->counters.received));
}

std::size_t Stream::post(std::span<const std::byte> data) {
  if (!wire_->has_room(false) || writes_ - sorted_ >= peer_.credits) return 0;
  drop_used_grants();
  if (!grants_.empty()) {
    const Grant& grant = grants_.front();
    if (grant.begin > posted_) {
      return post_ring(data.first(std::min<std::size_t>(data.size(), grant.begin - posted_)));
    }
    data = data.first(std::min<std::size_t>(data.size(), grant.end - posted_));
    const Region* region = grant.address == 0 ? nullptr : find_(data);
    return region == nullptr ? post_ring(data) : post_placed(data, *region);
  }
  if (data.size() <= eager_bytes || find_(data) == nullptr) return post_ring(data);
  if (request_ < posted_ + data.size()) {
    request_ = posted_ + data.size();
    has_news_ = true;
    pump();
  }
  return 0;
}

void Stream::drop_used_grants() {
  while (!grants_.empty() && grants_.front().end <= posted_) grants_.pop_front();
}

std::uint32_t Stream::number_next(Wire::Kind kind, std::size_t bytes) {
  const auto number = static_cast<std::uint32_t>(writes_++ % most_credits);
  return word(kind) | number << number_shift | static_cast<std::uint32_t>(bytes);
}

std::size_t Stream::post_ring(std::span<const std::byte> data) {
  const std::size_t offset = ring_posted_ % peer_.ring_bytes;
  const std::size_t room = peer_.ring_bytes - (ring_posted_ - ring_consumed_);
  const std::size_t n = std::min({data.size(), room, peer_.ring_bytes - offset, chunk_bytes});
  if (n == 0) return 0;
  std::memcpy(image_ring_.data() + offset, data.data(), n);
  wire_->write({.data = image_ring_.subspan(offset, n),
                .local = &image_region_->local,
                .address = peer_.address + sizeof(MailboxHead) + offset,
                .remote = &peer_.keys,
                .immediate = number_next(Wire::Kind::ring, n),
                .is_ordered = false,
                .is_awaited = false});
  ring_posted_ += n;
  posted_ += n;
  segments_.push_back({n, posted_, true, {}});
  return n;
}

std::size_t Stream::post_placed(std::span<const std::byte> data, const Region& region) {
  const Grant& grant = grants_.front();
  const std::size_t n = std::min(data.size(), chunk_bytes);
  const Ticket ticket = wire_->write({.data = data.first(n),
                                      .local = &region.local,
                                      .address = grant.address + (posted_ - grant.begin),
                                      .remote = &grant.keys,
                                      .immediate = number_next(Wire::Kind::placed, n),
                                      .is_ordered = false,
                                      .is_awaited = true});
  posted_ += n;
  segments_.push_back({n, posted_, false, ticket});
  return n;
}

bool Stream::close() {
  if (wire_ == nullptr) return true;
  is_closing_ = has_news_ = true;
  pump();
  return !has_news_;
}

// --- receiving -----------------------------------------------------------------------------------

void Stream::expect(std::span<std::byte> memory) {
  expected_.push_back({expected_end_, memory});
  expected_end_ += memory.size();
  if (wire_ != nullptr) pump_grants();
}

std::size_t Stream::recv(std::span<std::byte> data) {
  std::size_t total = 0;
  while (!chunks_.empty() && total < data.size()) {
    Chunk& chunk = chunks_.front();
    const std::size_t n = std::min<std::size_t>(chunk.bytes, data.size() - total);
    const auto to = data.subspan(total, n);
    if (chunk.is_in_ring) {
      std::memcpy(to.data(), ring_.data() + ring_read_ % ring_.size(), n);
      ring_read_ += n;
    } else {
      check_placed(to);
    }
    received_ += n;
    total += n;
    chunk.bytes -= static_cast<std::uint32_t>(n);
    if (chunk.bytes == 0) chunks_.pop_front();
    while (!given_.empty() && given_.front().end <= received_) given_.pop_front();
  }
  if (total == 0) return 0;
  while (!expected_.empty() && expected_.front().end() <= received_) expected_.pop_front();
  if (ring_read_ - ring_told_ >= ring_.size() / news_share) has_news_ = true;
  pump();
  return total;
}

// Throws unless `data`, the place for the next bytes, is the memory that was granted for them.
void Stream::check_placed(std::span<const std::byte> data) const {
  const auto address = reinterpret_cast<std::uintptr_t>(data.data());
  const bool is_there = !given_.empty() && given_.front().address != 0 &&
                        given_.front().begin <= received_ &&
                        given_.front().address + (received_ - given_.front().begin) == address &&
                        received_ + data.size() <= given_.front().end;
  if (!is_there) throw Error(ATOLL_BAD_DATA, "it wrote data to memory that was not granted for it");
}

// Ring data must lie in the ring, and other data in granted ranges.
void Stream::check_fits(const Chunk& chunk) {
  const std::size_t offset = sorted_ring_bytes_ % ring_.size();
  const std::size_t room = ring_.size() - (sorted_ring_bytes_ - ring_read_);
  const bool fits = chunk.is_in_ring ? chunk.bytes <= std::min(room, ring_.size() - offset)
                                     : sorted_bytes_ + chunk.bytes <= granted_end_;
  if (!fits) {
    throw Error(ATOLL_BAD_DATA,
                fmt::format("it sent {} bytes that this rank did not allow", chunk.bytes));
  }
  sorted_bytes_ += chunk.bytes;
  if (chunk.is_in_ring) sorted_ring_bytes_ += chunk.bytes;
}

// Makes room for a write that has overtaken `ahead` others.
void Stream::widen_window(std::size_t ahead) {
  std::vector<Chunk> wider(std::bit_ceil(ahead + 1));
  for (std::size_t i = 0; i < window_.size(); ++i) {
    wider[(next_number_ + i) % wider.size()] = window_[(next_number_ + i) % window_.size()];
  }
  window_ = std::move(wider);
}

void Stream::arrived(std::uint32_t immediate) {
  const auto kind = static_cast<Wire::Kind>(immediate >> kind_shift);
  if (kind == Wire::Kind::grant) return take_grant();
  if (kind == Wire::Kind::control) return read_counters();
  const std::uint32_t bytes = immediate & bytes_mask;
  const std::size_t ahead = ((immediate >> number_shift) - next_number_) % most_credits;
  if (ahead >= window_.size()) widen_window(ahead);
  Chunk& place = window_[(next_number_ + ahead) % window_.size()];
  if (bytes == 0 || bytes > chunk_bytes || place.bytes != 0) {
    throw Error(ATOLL_BAD_DATA, fmt::format("it sent an impossible write ({:#010x})", immediate));
  }
  place = {bytes, kind == Wire::Kind::ring};
  for (;; ++next_number_) {
    Chunk& next = window_[next_number_ % window_.size()];
    if (next.bytes == 0) break;
    check_fits(next);
    chunks_.push_back(next);
    next = {};
  }
  if (next_number_ - number_told_ >= credits_ / news_share) has_news_ = true;
}

// --- counters and grants -------------------------------------------------------------------------

void Stream::read_counters() {
  Counters& counters = head_->counters;
  advance(ring_consumed_, read(counters.consumed), ring_posted_);
  advance(sorted_, read(counters.sorted), writes_);
  advance(grants_read_, read(counters.granted), grants_given_);
  requested_ = std::max(requested_, read(counters.requested));
  closed_at_ = read(counters.closed);
  pump_grants();
}

void Stream::take_grant() {
  const Grant grant = head_->grants[grants_taken_++ % grant_slots];
  const std::uint64_t before = grants_.empty() ? 0 : grants_.back().end;
  drop_used_grants();
  if (grant.begin >= grant.end || grant.begin < before || grants_.size() >= grant_slots) {
    throw Error(ATOLL_BAD_DATA,
                fmt::format("it granted an impossible range ({} to {})", grant.begin, grant.end));
  }
  grants_.push_back(grant);
  if (grants_taken_ - grants_told_ >= grant_slots / news_share) has_news_ = true;
}

void Stream::pump() {
  if (wire_ == nullptr) return;
  if (has_news_ && wire_->has_room(true)) {
    Counters& counters = image_->counters;
    counters.consumed = ring_told_ = ring_read_;
    counters.sorted = number_told_ = next_number_;
    counters.granted = grants_told_ = grants_taken_;
    counters.requested = request_;
    counters.received = received_;
    counters.closed = is_closing_ ? 1 + writes_ : 0;
    wire_->write({.data = std::as_bytes(std::span(&counters, 1)),
                  .local = &image_region_->local,
                  .address = peer_.address + offsetof(MailboxHead, counters),
                  .remote = &peer_.keys,
                  .immediate = word(Wire::Kind::control),
                  .is_ordered = true,
                  .is_awaited = is_closing_});
    has_news_ = false;
  }
  pump_grants();
}

// Grants are given in the order of the byte stream. Ranges before a grant go through the ring, so
// small and unregistered ranges need a grant only if the peer waits for one and no later range has
// a grant.
void Stream::pump_grants() {
  const auto is_next = [this](const Expected& item) { return item.begin >= granted_end_; };
  while (true) {
    const auto first = std::ranges::find_if(expected_, is_next);
    if (first == expected_.end()) return;
    const Region* region = nullptr;
    const auto placed = std::find_if(first, expected_.end(), [&](const Expected& item) {
      if (item.memory.data() == nullptr || item.memory.size() <= eager_bytes) return false;
      region = find_(item.memory);
      return region != nullptr;
    });
    if (placed != expected_.end()) {
      const auto address = reinterpret_cast<std::uintptr_t>(placed->memory.data());
      if (!give({placed->begin, placed->end(), address, 0, region->remote})) return;
    } else if (requested_ > first->begin) {
      const auto is_asked = [this](const Expected& item) { return item.begin < requested_; };
      const auto last = std::prev(std::find_if_not(first, expected_.end(), is_asked));
      if (!give({first->begin, last->end(), 0, 0, {}})) return;
    } else {
      return;
    }
  }
}

bool Stream::give(const Grant& grant) {
  const bool is_full = given_.size() >= grant_slots || grants_given_ - grants_read_ >= grant_slots;
  if (is_full || !wire_->has_room(true)) return false;
  const std::size_t slot = grants_given_ % grant_slots;
  image_->grants[slot] = grant;
  wire_->write({.data = std::as_bytes(std::span(&image_->grants[slot], 1)),
                .local = &image_region_->local,
                .address = peer_.address + offsetof(MailboxHead, grants) + slot * sizeof(Grant),
                .remote = &peer_.keys,
                .immediate = word(Wire::Kind::grant),
                .is_ordered = true,
                .is_awaited = false});
  ++grants_given_;
  granted_end_ = grant.end;
  given_.push_back(grant);
  return true;
}

}  // namespace atoll_verbs_backend
