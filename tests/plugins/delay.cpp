// The test backend `delay`: the host backend with delays in chosen operations. atoll_test_plant()
// chooses the operations; see planted_delay.hpp. Groups whose name begins with "waits" never open.
#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <thread>

#include "host_backend.hpp"

namespace {

using atoll_test::host_backend;

struct Delay {
  std::atomic<std::uint64_t> every{1}, which{0};
  std::atomic<std::int64_t> ms{0};
};
constexpr std::int32_t kinds = ATOLL_REDUCE_SCATTER_V + 1;
std::array<Delay, kinds> delays;  // the planted delay of each kind of operation

std::atomic<int> waiting{0};  // calls of open() that wait now

// Waits for a key that no rank puts, as a backend waits for a rank that does not connect.
atoll_status open(const atoll_core* core, const atoll_group* group, atoll_comm** out) {
  if (!std::string_view(group->name).starts_with("waits"))
    return host_backend()->open(core, group, out);
  const std::string key = std::string(group->id) + "/unset";
  std::size_t n = 0;
  ++waiting;
  const atoll_status status = core->get(core->ctx, key.c_str(), nullptr, &n, group->timeout_ns);
  --waiting;
  return status;
}

atoll_status submit(atoll_comm* comm, atoll_operation* const* operations, std::int32_t n) {
  for (std::int32_t i = 0; i < n; ++i) {
    const atoll_operation& operation = *operations[i];
    const Delay& delay = delays.at(static_cast<std::size_t>(operation.kind));
    if (delay.ms > 0 && operation.sequence % delay.every == delay.which) {
      std::this_thread::sleep_for(std::chrono::milliseconds(delay.ms));
    }
  }
  return host_backend()->submit(comm, operations, n);
}

}  // namespace

// Delays all further operations of `kind` with a sequence number for which number % every == which.
// These operations sleep for `ms` milliseconds before they start, on the thread of their stream.
// The delays of other kinds stay unchanged. Kind -1 removes all delays.
extern "C" __attribute__((visibility("default"))) void atoll_test_plant(std::int32_t kind,
                                                                        std::uint64_t every,
                                                                        std::uint64_t which,
                                                                        std::int64_t ms) {
  for (std::int32_t k = 0; k < kinds; ++k) {
    if (kind >= 0 && k != kind) continue;
    Delay& delay = delays.at(static_cast<std::size_t>(k));
    delay.every = every;
    delay.which = which;
    delay.ms = kind < 0 ? 0 : ms;
  }
}

extern "C" __attribute__((visibility("default"))) int atoll_test_waiting() { return waiting; }

extern "C" __attribute__((visibility("default"))) const atoll_backend* atoll_backend_entry_v1(
    void) {
  return atoll_test::wrap_host("delay", [](atoll_backend& backend) {
    backend.open = open;
    backend.submit = submit;
  });
}
