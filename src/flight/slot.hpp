// One slot of the flight recorder: the record of an operation, which one thread writes while others
// may read it, without locks.
//
// The slot's `word` is (number + 1) << 3 | state, or 0 while the slot is empty. A writer claims the
// slot by exchanging the word for one in state `writing`, fills the fields and publishes the word.
// advance() exchanges the word only if it still has the number of the operation, so it never
// changes the state of a later operation. Two writers meet in a slot only if one of them was
// delayed while the recorder filled all other slots. Then the record of the newer operation stays,
// unless the delayed writer has claimed the slot already: then the record of the older one stays.
// A reader copies a slot and then checks that its word has not changed.
//
// The structure is a template over the atomic type, so that tests/litmus can run exactly this code
// on a model of weak memory.
#pragma once

#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <type_traits>

#include "atoll/flight.hpp"

namespace atoll_v1::atoll {

// The part of an operation's record that is known when the program calls the operation. A slot
// copies this struct as 64-bit words, so it must not have padding.
struct FlightCallRecord {
  std::uint64_t sequence = 0;
  std::int64_t collective = -1;
  std::uint64_t count = 0;
  std::int64_t enqueued = 0;  // time of the call in ticks of FlightClock
  std::uint32_t track = 0;
  std::int32_t peer = -1;
  std::int16_t kind = 0;
  std::int16_t part_of = -1;
  std::int16_t dtype = 0;
  std::int16_t op = 0;
  bool operator==(const FlightCallRecord&) const = default;
};
static_assert(std::has_unique_object_representations_v<FlightCallRecord>);

// The record of an operation. Times are in ticks; 0 means that the event has not happened yet.
struct FlightRecord {
  std::uint64_t number = 0;
  FlightState state = FlightState::enqueued;
  FlightCallRecord call{};
  std::int64_t started = 0;
  std::int64_t finished = 0;
};

template <template <class> class Atomic>
class FlightSlotOf {
 public:
  // Writes the record of a new operation, unless a later operation has taken the slot or another
  // writer is filling it.
  void enqueue(std::uint64_t number, const FlightCallRecord& record) noexcept {
    if (!claim(number)) return;
    // Fields are stored with release order and loaded with acquire order. A reader that sees a
    // field of this operation therefore also sees that this operation has claimed the slot.
    const Words words = words_of(record);
    for (std::size_t i = 0; i < words.size(); ++i)
      call[i].store(words[i], std::memory_order_release);
    started.store(0, std::memory_order_release);
    finished.store(0, std::memory_order_release);
    word.store(word_of(number, FlightState::enqueued), std::memory_order_release);
  }

  // Stores the time of an event of operation `number` and its new state. If another operation takes
  // the slot between the check of the number and the store of the time, the slot may have a wrong
  // time, but never a wrong state.
  void start(std::uint64_t number, std::int64_t time) noexcept {
    advance(number, started, time, FlightState::started);
  }
  void finish(std::uint64_t number, std::int64_t time, FlightState state) noexcept {
    advance(number, finished, time, state);
  }

  // Returns the record, or nothing if the slot is empty or keeps changing.
  std::optional<FlightRecord> read() const noexcept {
    using std::memory_order_acquire;
    constexpr int attempts = 4;
    for (int attempt = 0; attempt < attempts; ++attempt) {
      const std::uint64_t before = word.load(memory_order_acquire);
      if (before == 0 || (before & state_mask) == writing) return std::nullopt;
      FlightRecord record;
      record.number = (before >> state_bits) - 1;
      record.state = static_cast<FlightState>(before & state_mask);
      Words words{};
      for (std::size_t i = 0; i < words.size(); ++i) words[i] = call[i].load(memory_order_acquire);
      record.call = std::bit_cast<FlightCallRecord>(words);
      if (record.state != FlightState::enqueued)
        record.started = started.load(memory_order_acquire);
      if (record.state == FlightState::completed || record.state == FlightState::failed) {
        record.finished = finished.load(memory_order_acquire);
      }
      if (word.load(memory_order_acquire) == before) return record;
    }
    return std::nullopt;
  }

  Atomic<std::uint64_t> word{0};
  std::array<Atomic<std::uint64_t>, sizeof(FlightCallRecord) / 8> call{};
  Atomic<std::int64_t> started{0};
  Atomic<std::int64_t> finished{0};

 private:
  using Words = std::array<std::uint64_t, sizeof(FlightCallRecord) / 8>;
  static constexpr std::uint64_t state_bits = 3;
  static constexpr std::uint64_t state_mask = (1u << state_bits) - 1;
  static constexpr std::uint64_t writing = state_mask;

  static constexpr std::uint64_t word_of(std::uint64_t number, std::uint64_t state) {
    return (number + 1) << state_bits | state;
  }
  static constexpr std::uint64_t word_of(std::uint64_t number, FlightState state) {
    return word_of(number, static_cast<std::uint64_t>(state));
  }

  // Returns what std::bit_cast returns. Shifts put the narrow fields together in a register. Reading
  // a word of memory right after its parts were written would stall the processor.
  static Words words_of(const FlightCallRecord& record) noexcept {
    static_assert(std::endian::native == std::endian::little);
    const auto at = []<class Field>(Field field, int shift) {
      return std::uint64_t{static_cast<std::make_unsigned_t<Field>>(field)} << shift;
    };
    return {record.sequence,
            at(record.collective, 0),
            record.count,
            at(record.enqueued, 0),
            at(record.track, 0) | at(record.peer, 32),
            at(record.kind, 0) | at(record.part_of, 16) | at(record.dtype, 32) | at(record.op, 48)};
  }

  bool claim(std::uint64_t number) noexcept {
    std::uint64_t seen = word.load(std::memory_order_relaxed);
    while (seen >> state_bits <= number && (seen & state_mask) != writing) {
      if (word.compare_exchange_weak(seen, word_of(number, writing), std::memory_order_acquire,
                                     std::memory_order_acquire)) {
        return true;
      }
    }
    return false;
  }

  void advance(std::uint64_t number, Atomic<std::int64_t>& event, std::int64_t time,
               FlightState state) noexcept {
    std::uint64_t seen = word.load(std::memory_order_relaxed);
    if (seen >> state_bits != number + 1 || (seen & state_mask) == writing) return;
    event.store(time, std::memory_order_release);
    word.compare_exchange_strong(seen, word_of(number, state), std::memory_order_release,
                                 std::memory_order_relaxed);
  }
};

}  // namespace atoll_v1::atoll
