// Connection: the queue pairs between this rank and another, one or more per rail.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "verbs/contact.hpp"
#include "verbs/handles.hpp"
#include "verbs/memory.hpp"
#include "verbs/rail.hpp"
#include "verbs/settings.hpp"
#include "verbs/stream.hpp"

namespace atoll_verbs_backend {

class Connection final : public Wire {
 public:
  // Creates the queue pairs, which can receive nothing yet. `ring_bytes` is the size of this rank's
  // ring. The other rank may have `credits` data writes in flight.
  Connection(const Hcas& hcas, const std::vector<Rail>& rails, const Settings& settings,
             std::size_t ring_bytes, std::size_t credits);

  // Returns the address that the other rank needs to connect with this one.
  Contact contact() const;
  // Connects with the other rank, through the rails of pair_rails(). Afterwards this rank
  // can receive. It can send after allow_sends(), which must be called when the other rank can
  // receive. Throws Error if an adapter refuses the address.
  void connect(const Contact& peer);
  void allow_sends() noexcept { may_send_ = true; }
  bool may_send() const noexcept { return may_send_; }
  const Region& mailbox() const noexcept { return own_->region(); }
  const Region& image() const noexcept { return image_->region(); }
  const Target& target() const noexcept { return target_; }

  bool has_room(bool is_ordered) const override;
  Ticket write(const Write& write) override;
  bool is_done(Ticket ticket) const override { return queues_[ticket.queue].done >= ticket.index; }

  std::size_t queues() const noexcept { return queues_.size(); }
  std::size_t rail_of(std::size_t queue) const noexcept { return queues_[queue].rail; }
  std::uint32_t number_of(std::size_t queue) const noexcept { return queues_[queue].number; }
  // Returns true if the port of a rail has a partner.
  bool uses(std::size_t rail) const noexcept;
  // Called when a write has completed: all earlier writes of the queue are complete too.
  void completed(std::size_t queue, std::uint64_t index);
  // Makes every queue report the completion of its last write.
  void flush();
  bool is_idle() const noexcept;
  // Ends all accesses of the adapters to the memory of this process.
  void destroy() noexcept;

 private:
  // The index of a queue never changes: tickets, completions and the peer's contact refer to it.
  struct Queue {
    QueuePair pair;  // null if the port has no partner, and after destroy()
    std::uint32_t number;
    std::size_t rail;
    std::size_t peer_rail;  // index of the peer's port; known after connect()
    std::size_t depth;
    std::uint32_t inline_bytes;
    std::uint64_t posted = 0;    // number of posted writes
    std::uint64_t reported = 0;  // index of the last write whose completion will be reported
    std::uint64_t done = 0;      // index of the last write that is complete

    std::size_t free() const {
      return pair == nullptr ? 0 : depth - static_cast<std::size_t>(posted - done);
    }
  };
  std::size_t choose(bool is_ordered) const;

  const Hcas& hcas_;
  const Settings& settings_;
  std::uint32_t first_packet_;
  std::size_t ring_bytes_, credits_;
  // The memory that the peer writes, and this rank's image of the peer's mailbox.
  std::unique_ptr<Pages> own_pages_, image_pages_;
  std::shared_ptr<const Registered> own_, image_;
  Target target_;
  std::vector<Queue> queues_;
  bool may_send_ = false;
};

}  // namespace atoll_verbs_backend
