// An open communicator of the host backend: the channels to its ranks, a scratch buffer, and
// whether it still works.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "atoll/plugin.h"
#include "host/shm_transport.hpp"
#include "host/tcp_transport.hpp"
#include "sdk/exchange.hpp"

namespace atoll_sdk::host {

class Comm {
 public:
  // Collective over the group. Throws atoll_sdk::Error.
  Comm(const atoll_host& host, const atoll_group& group);
  Comm(const Comm&) = delete;
  Comm& operator=(const Comm&) = delete;
  // Idle: sees what was sent on its way. Failed or aborted: leaves at once.
  ~Comm();

  void submit(std::span<atoll_operation* const> operations);
  void abort() noexcept;  // any thread

  // For the algorithms.
  atoll_sdk::Team& team() noexcept { return team_; }
  int rank() const noexcept { return team_.rank; }
  int size() const noexcept { return team_.size(); }
  // dst = op over parts, which stand in rank order, `count` elements each. dst may be one of them.
  void reduce(std::byte* dst, std::span<const void* const> parts, std::uint64_t count,
              const atoll_operation& operation) const;
  // At least `bytes`, aligned to a cache line; what it held is lost at the next call.
  std::span<std::byte> scratch(std::size_t bytes);

 private:
  struct Free {
    void operator()(std::byte* memory) const noexcept;
  };

  void submit_all(std::span<atoll_operation* const> operations);
  void perform(const atoll_operation& operation);

  const atoll_host& host_;
  atoll_sdk::Team team_;
  std::unique_ptr<ShmTransport> shm_;
  std::unique_ptr<TcpTransport> tcp_;
  std::unique_ptr<std::byte, Free> scratch_;
  std::size_t scratch_bytes_ = 0;
  std::string failure_;  // why it works no more
};

}  // namespace atoll_sdk::host
