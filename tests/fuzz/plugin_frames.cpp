// Fuzzes the bytes that arrive from a rank of another host: stripes over several connections, and
// frames with checksums. In the first byte, bit 0 selects checksums, bit 1 three connections, and
// bit 2 repairs the checksums, so that the checks behind them run as well. The rest is what arrives
// on the first connection.
#include <sys/socket.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "host/tcp_checksum.hpp"
#include "host/tcp_link.hpp"
#include "sdk/backend.hpp"

namespace {

using namespace atoll_host_backend;

constexpr std::size_t header_bytes = 16;

// Writes the right checksums into each frame of `data`.
void repair(std::vector<std::byte>& data) {
  std::size_t at = 0;
  while (data.size() - at >= header_bytes) {
    std::uint32_t bytes = 0;
    std::memcpy(&bytes, &data[at], sizeof(bytes));
    const std::size_t n = std::min<std::size_t>(bytes, data.size() - at - header_bytes);
    const std::uint32_t payload = crc32c(std::span(data).subspan(at + header_bytes, n));
    std::memcpy(&data[at + 8], &payload, sizeof(payload));
    const std::uint32_t header = crc32c(std::span(data).subspan(at, 12));
    std::memcpy(&data[at + 12], &header, sizeof(header));
    at += header_bytes + n;
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const unsigned char* input, std::size_t size) {
  if (size == 0 || size > 100'000) return 0;
  const bool checked = (input[0] & 1) != 0;
  std::vector<std::byte> data(size - 1);
  if (!data.empty()) std::memcpy(data.data(), input + 1, data.size());
  if (checked && (input[0] & 4) != 0) repair(data);

  Streams streams;
  std::vector<Fd> others;
  for (int i = 0; i < ((input[0] & 2) != 0 ? 3 : 1); ++i) {
    int ends[2];
    if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends) != 0) return 0;
    streams.push_back({Fd(ends[0]), "here and there"});
    others.emplace_back(ends[1]);
  }
  const auto link = make_link(std::move(streams), checked ? Checksum::crc32c : Checksum::none);
  const ssize_t sent = ::send(others[0].get(), data.data(), data.size(), MSG_NOSIGNAL);
  others.clear();  // the peer closes
  const auto arrived = static_cast<std::size_t>(std::max<ssize_t>(sent, 0));
  std::vector<std::byte> got(70'000);
  std::size_t total = 0;
  try {
    for (int turn = 0; turn < 100; ++turn) {
      const std::size_t piece = turn % 3 == 0 ? 56 : got.size();
      total += link->recv(std::span(got).first(piece));
    }
  } catch (const atoll_sdk::Error&) {
  }
  if (total > arrived) std::abort();
  return 0;
}
