#include "host/tcp_cut.hpp"

#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>

namespace atoll_host_backend {
namespace {

using namespace std::chrono_literals;

constexpr unsigned fewest_unanswered = 3;
// Longest pause between two calls of look() that does not reset the time without progress.
constexpr auto longest_break = 3s;

}  // namespace

bool read_health(int socket, Health& health) noexcept {
  tcp_info info{};
  socklen_t size = sizeof(info);
  if (::getsockopt(socket, IPPROTO_TCP, TCP_INFO, &info, &size) != 0) return false;
  health.acknowledged = info.tcpi_bytes_acked;
  health.received = info.tcpi_bytes_received;
  health.outstanding = info.tcpi_unacked > 0 || info.tcpi_notsent_bytes > 0;
  health.unanswered = std::max<unsigned>(info.tcpi_retransmits, info.tcpi_probes);
  health.silent = std::chrono::milliseconds(info.tcpi_last_ack_recv);
  return true;
}

bool CutWatch::look(const Health& health, Clock::time_point now,
                    std::chrono::nanoseconds limit) noexcept {
  const bool progress = health.acknowledged != last_.acknowledged ||
                        health.received != last_.received || !health.outstanding;
  if (progress || now - looked_ > longest_break) still_since_ = now;
  looked_ = now;
  last_ = health;
  return now - still_since_ >= limit && health.silent >= limit &&
         health.unanswered >= fewest_unanswered;
}

}  // namespace atoll_host_backend
