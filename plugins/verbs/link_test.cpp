#include "verbs/link_test.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "collectives/communicator/group_store.hpp"
#include "verbs/hca.hpp"
#include "verbs/memory.hpp"
#include "verbs/queue_pair.hpp"

namespace atoll_verbs_backend {
namespace {

using namespace std::chrono_literals;
using atoll_sdk::Error;
using Clock = std::chrono::steady_clock;

constexpr std::uint32_t depth = 128;          // writes in flight
constexpr std::uint32_t report_period = 32;   // writes of which one reports its completion
constexpr std::uint32_t inline_wanted = 128;  // bytes
constexpr int warmups = 10;
constexpr int least_iterations = 10;
constexpr std::uint64_t most_latency_bytes = 64 << 20;  // of all round trips of a row
constexpr auto most_time = 1s;                          // for the bandwidth of a row
constexpr auto look_period = 200ms;
constexpr std::uint64_t unused_ring = 1024;  // a contact has a ring, which the test does not use
constexpr unsigned markers = 255;
constexpr const char* gpu = "gpu";  // a side whose memory is that of a GPU publishes this

std::string key(int side, std::string_view what) { return fmt::format("link/{}/{}", side, what); }

void publish(const atoll_host& host, const atoll_link_test& test, std::string_view what,
             const std::string& value) {
  const auto path = fmt::format("{}/{}", test.id, key(test.side, what));
  const auto status = host.put(host.ctx, path.c_str(), value.data(), value.size());
  if (status != ATOLL_OK) throw Error(status, "link test: cannot publish " + path);
}

double seconds(Clock::duration time) { return std::chrono::duration<double>(time).count(); }

// The memory of one side: that of the caller's GPU, or pages of the host.
struct Memory {
  Memory(const Hcas& hcas, const atoll_link_test& test, std::uint64_t bytes)
      : host(test.memory == nullptr ? std::make_unique<Pages>(bytes) : nullptr),
        registered(host ? Registered(hcas, host->bytes, Ordering::strict)
                        : Registered(hcas, GpuRange{{static_cast<std::byte*>(test.memory), bytes},
                                                    test.dma_buf,
                                                    test.dma_buf_offset})) {}

  bool is_gpu() const noexcept { return host == nullptr; }

  std::unique_ptr<Pages> host;
  Registered registered;
};

// One side of the test. The memory has two halves: this side sends from the first; the other side
// writes into the second.
class Side {
 public:
  Side(const atoll_host& host, const atoll_link_test& test, std::uint64_t most_bytes)
      : host_(host),
        test_(test),
        deadline_(Clock::now() + std::chrono::nanoseconds(test.timeout_ns)),
        settings_(settings_for(test)),
        hcas_(open_hcas(settings_)),
        completions_(checked(ibv_create_cq(hca().context(), depth + 1, nullptr, nullptr, 0),
                             hca().name() + ": cannot create a completion queue")),
        half_(most_bytes),
        memory_(hcas_, test, 2 * most_bytes),
        pair_(create_queue_pair(hca(), completions_.get(), nullptr, depth, inline_wanted)),
        inline_bytes_(memory_.is_gpu() ? 0 : inline_bytes_of(pair_.get())) {}

  std::string description() const {
    if (!memory_.is_gpu()) return hca().description();
    return fmt::format("{}, GPU memory {}", hca().description(),
                       memory_.registered.is_dma_buf() ? "as a dma-buf" : "through nvidia-peermem");
  }

  void connect() {
    const std::uint32_t first_packet = random_packet();
    expect_write();
    Contact own{first_packet, address(0), unused_ring, most_credits, {}};
    own.rails.push_back({hca().port_name(),
                         hca().address(),
                         hca().lid(),
                         hca().partition(),
                         hca().mtu(),
                         region().remote[0],
                         {pair_->qp_num}});
    publish(host_, test_, "memory", memory_.is_gpu() ? gpu : "host");
    is_notified_ = read_peer("memory") == gpu || memory_.is_gpu();
    publish(host_, test_, "contact", encode(own));
    const Contact peer = decode(read_peer("contact"));
    connect_queue_pair(pair_.get(), hca(), settings_,
                       {peer.rails[0], peer.rails[0].queue_pairs[0], peer.first_packet},
                       first_packet);
    peer_address_ = peer.mailbox + half_;
    peer_key_ = peer.rails[0].key;
    meet("connected");
  }

  // Waits until the other side has come to the same point.
  void meet(std::string_view point) {
    publish(host_, test_, point, "here");
    read_peer(point);
  }

  // Sends `bytes` to and fro. Returns the times of half a round trip.
  std::vector<double> ping_pong(std::uint64_t bytes) {
    const auto wanted = static_cast<int>(std::min<std::uint64_t>(
        most_latency_bytes / bytes, static_cast<std::uint64_t>(test_.iterations)));
    const int count = std::max(least_iterations, wanted);
    std::vector<double> times;
    for (int i = 0; i < warmups + count; ++i) {
      const auto begin = Clock::now();
      if (test_.side == 1) await(bytes, i);
      send(bytes, i);
      if (test_.side == 0) await(bytes, i);
      drain(0);
      if (i >= warmups) times.push_back(seconds(Clock::now() - begin) / 2);
    }
    return times;
  }

  // Returns bytes per second of many writes.
  double stream(std::uint64_t bytes) {
    const auto begin = Clock::now();
    std::uint64_t count = 0;
    const auto wanted = static_cast<std::uint64_t>(test_.iterations);
    while (count < least_iterations || (count < wanted && Clock::now() - begin < most_time)) {
      drain(depth - 1);
      write(bytes, ++count % report_period == 0);
    }
    write(bytes, true);
    drain(0);
    return static_cast<double>((count + 1) * bytes) / seconds(Clock::now() - begin);
  }

 private:
  static Settings settings_for(const atoll_link_test& test) {
    atoll_group group{};
    group.size = sizeof(group);
    group.rdma = test.rdma;
    Settings settings = settings_of(group);
    settings.devices = parse_ports(test.port, test.port);
    if (settings.devices.size() != 1) {
      throw Error(ATOLL_INVALID_ARGUMENT,
                  fmt::format("'{}': a link test needs one port on each side", test.port));
    }
    return settings;
  }

  const Hca& hca() const { return *hcas_.front(); }
  const Region& region() const { return memory_.registered.region(); }
  std::uint64_t address(std::uint64_t offset) const {
    return reinterpret_cast<std::uintptr_t>(region().memory.data()) + offset;
  }
  // Returns the value that the other side has published, or "" if there is none within `limit`.
  std::string find_peer(std::string_view what, Clock::duration limit) const {
    std::string value;
    const auto time = std::max<std::int64_t>(1, std::chrono::nanoseconds(limit).count());
    const auto status =
        atoll_collectives::read(host_, test_.id, key(1 - test_.side, what), time, value);
    if (status != ATOLL_OK && status != ATOLL_TIMEOUT) {
      throw Error(status, "link test: the job has failed");
    }
    return value;
  }

  // Throws if the other side or the port has failed, or at the deadline.
  void check(std::string_view missing) {
    if (const auto why = find_peer("failed", 0ns); !why.empty()) throw Error(ATOLL_ABORTED, why);
    if (const auto why = hcas_.front()->failure(); !why.empty()) throw Error(ATOLL_PEER_LOST, why);
    if (Clock::now() < deadline_) return;
    throw Error(ATOLL_TIMEOUT, fmt::format("link test through {}: {}", hca().name(), missing));
  }

  std::string read_peer(std::string_view what) {
    while (true) {
      if (auto value = find_peer(what, look_period); !value.empty()) return value;
      check(fmt::format("the other side has not come to '{}'", what));
    }
  }

  // The last byte of a message is different in each round, so the receiver sees that all bytes have
  // arrived: an adapter writes the bytes of a message in ascending order (as perftest assumes too).
  static std::uint8_t marker(int round) {
    return static_cast<std::uint8_t>(1U + static_cast<unsigned>(round) % markers);
  }
  std::uint8_t& byte_at(std::uint64_t offset) {
    return reinterpret_cast<std::uint8_t&>(region().memory[offset]);
  }

  // The processor does not read GPU memory: there, both sides write with immediate data, which the
  // receiver's adapter reports once the write is complete.
  void send(std::uint64_t bytes, int round) {
    if (!is_notified_) byte_at(bytes - 1) = marker(round);
    write(bytes, true, is_notified_ ? IBV_WR_RDMA_WRITE_WITH_IMM : IBV_WR_RDMA_WRITE);
  }

  void await(std::uint64_t bytes, int round) {
    if (is_notified_) {
      while (notices_ == 0) look();
      --notices_;
      return expect_write();
    }
    const std::atomic_ref<std::uint8_t> last(byte_at(half_ + bytes - 1));
    while (last.load(std::memory_order_acquire) != marker(round)) look();
  }

  // Lets one more write with immediate data arrive.
  void expect_write() {
    ibv_recv_wr request{};
    ibv_recv_wr* refused = nullptr;
    const int error = ibv_post_recv(pair_.get(), &request, &refused);
    if (error != 0) throw verbs_error(hca().name() + ": cannot post a receive", error);
  }

  void write(std::uint64_t bytes, bool is_reported, ibv_wr_opcode kind = IBV_WR_RDMA_WRITE) {
    ibv_sge piece{address(0), static_cast<std::uint32_t>(bytes), region().local[0]};
    ibv_send_wr request{};
    request.wr_id = ++posted_;
    request.sg_list = &piece;
    request.num_sge = 1;
    request.opcode = kind;
    request.wr.rdma.remote_addr = peer_address_;
    request.wr.rdma.rkey = peer_key_;
    if (bytes <= inline_bytes_) request.send_flags |= IBV_SEND_INLINE;
    if (is_reported) request.send_flags |= IBV_SEND_SIGNALED;
    ibv_send_wr* refused = nullptr;
    const int error = ibv_post_send(pair_.get(), &request, &refused);
    if (error != 0) throw verbs_error(hca().name() + ": cannot post a write", error);
  }

  // Waits until at most `most` writes are in flight.
  void drain(std::uint64_t most) {
    while (posted_ - done_ > most) look();
  }

  // Takes a completion if there is one, and sometimes looks for reasons to give up.
  void look() {
    ibv_wc completion{};
    if (ibv_poll_cq(completions_.get(), 1, &completion) > 0) {
      if (completion.status != IBV_WC_SUCCESS) {
        throw Error(ATOLL_PEER_LOST,
                    fmt::format("link test through {}: {} (vendor code {:#x})", hca().name(),
                                ibv_wc_status_str(completion.status), completion.vendor_err));
      }
      if ((completion.opcode & IBV_WC_RECV) != 0) {
        ++notices_;
      } else {
        done_ = completion.wr_id;
      }
    }
    if (++looks_ % 256 != 0) return;
    const auto now = Clock::now();
    if (now < next_look_) return;
    next_look_ = now + look_period;
    check("nothing arrives from the other side");
  }

  const atoll_host& host_;
  const atoll_link_test& test_;
  Clock::time_point deadline_;
  Settings settings_;
  Hcas hcas_;
  CompletionQueue completions_;
  std::uint64_t half_;
  Memory memory_;
  QueuePair pair_;
  std::uint32_t inline_bytes_;
  std::uint64_t peer_address_ = 0;
  std::uint32_t peer_key_ = 0;
  bool is_notified_ = false;   // true if the memory of a side is that of a GPU
  std::uint64_t notices_ = 0;  // writes with immediate data that have arrived and are not awaited
  std::uint64_t posted_ = 0, done_ = 0;
  std::uint64_t looks_ = 0;
  Clock::time_point next_look_{};
};

void check(const atoll_link_test& test, std::span<const atoll_link_rate> rates) {
  constexpr std::uint64_t most = std::uint64_t{1} << 30U;
  const auto descends = [](const atoll_link_rate& one, const atoll_link_rate& next) {
    return next.bytes <= one.bytes;
  };
  const bool is_good = !rates.empty() && rates.front().bytes >= 1 && rates.back().bytes <= most &&
                       std::ranges::adjacent_find(rates, descends) == rates.end();
  if (!is_good || test.iterations < 1 || (test.side != 0 && test.side != 1)) {
    throw Error(ATOLL_INVALID_ARGUMENT,
                "link test: sizes must ascend from 1 byte to at most 1 GiB, with at least one "
                "iteration");
  }
}

std::string measure(const atoll_host& host, const atoll_link_test& test,
                    std::span<atoll_link_rate> rates) {
  Side side(host, test, rates.back().bytes);
  side.connect();
  for (auto& rate : rates) {
    auto times = side.ping_pong(rate.bytes);
    std::ranges::sort(times);
    rate.latency = times[times.size() / 2];
    rate.latency_p99 = times[times.size() * 99 / 100];
    if (test.side == 0) rate.bandwidth = side.stream(rate.bytes);
    side.meet(fmt::format("measured {}", rate.bytes));
  }
  return side.description();
}

}  // namespace

std::string test_link(const atoll_host& host, const atoll_link_test& test,
                      std::span<atoll_link_rate> rates) {
  check(test, rates);
  try {
    return measure(host, test, rates);
  } catch (const Error& error) {
    publish(host, test, "failed", error.what());  // so that the other side ends at once
    throw;
  }
}

}  // namespace atoll_verbs_backend
