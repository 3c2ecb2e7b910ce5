// The ring buffer: the reader gets all bytes in the order in which they were written, and then the
// end.
#include "litmus.hpp"
// Must follow litmus.hpp, which includes relacy.
#include "collectives/shared_memory/lock_free.hpp"

namespace {

using litmus::Atomic;

struct RingTest : litmus::Test<RingTest, 2> {
  static constexpr std::size_t size = 2;
  static constexpr int total = 5;

  atoll_collectives::RingOf<Atomic> ring;
  Atomic<std::uint32_t> closed;
  std::array<litmus::Plain<int>, size> data;

  void thread(unsigned index) {
    if (index == 0) {
      send();
    } else {
      receive();
    }
  }

  void send() {
    for (int sent = 0; sent < total;) {
      const auto most = static_cast<std::size_t>(total - sent);
      const std::size_t n = ring.write(size, most, [&](auto at, auto offset, auto bytes) {
        for (std::size_t i = 0; i < bytes; ++i)
          data[at + i].set(sent + static_cast<int>(offset + i));
      });
      sent += static_cast<int>(n);
      if (n == 0) litmus::yield();
    }
    closed.store(1, std::memory_order_seq_cst);
  }

  void receive() {
    int received = 0;
    while (true) {
      const auto n = ring.read_until_closed(closed, size, size, [&](auto at, auto offset, auto m) {
        for (std::size_t i = 0; i < m; ++i)
          LITMUS_CHECK(data[at + i].get() == received + static_cast<int>(offset + i));
      });
      if (!n) break;
      received += static_cast<int>(*n);
      if (*n == 0) litmus::yield();
    }
    LITMUS_CHECK(received == total);
  }
};

}  // namespace

int main() {
  using enum std::memory_order;
  litmus::Runner run;
  run.holds<RingTest>("ring", 50000);
  run.breaks<RingTest>("`written` stored relaxed",
                       [](RingTest& t) { t.ring.written.lower_stores(relaxed); });
  run.breaks<RingTest>("`written` loaded relaxed",
                       [](RingTest& t) { t.ring.written.lower_loads(relaxed); });
  run.breaks<RingTest>("`consumed` stored relaxed",
                       [](RingTest& t) { t.ring.consumed.lower_stores(relaxed); });
  run.breaks<RingTest>("`consumed` loaded relaxed",
                       [](RingTest& t) { t.ring.consumed.lower_loads(relaxed); });
  run.breaks<RingTest>("`closed` stored relaxed",
                       [](RingTest& t) { t.closed.lower_stores(relaxed); });
  run.breaks<RingTest>("`closed` loaded relaxed",
                       [](RingTest& t) { t.closed.lower_loads(relaxed); });
  return run.status();
}
