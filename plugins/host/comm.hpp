// An open communicator of the host backend: the channels to its ranks, the board of its host, and
// whether it still works.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "atoll/plugin.h"
#include "host/tcp_transport.hpp"
#include "host/tuning.hpp"
#include "collectives/exchange.hpp"
#include "collectives/group.hpp"
#include "collectives/shm_transport.hpp"

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
  // Collective.
  void register_memory(void* memory, std::size_t bytes);
  void deregister_memory(void* memory) { group_->windows.remove(memory); }

  // For the algorithms.
  atoll_sdk::Team& team() noexcept { return team_; }
  atoll_sdk::Group& group() noexcept { return *group_; }
  const Tuning& tuning() const noexcept { return tuning_; }
  int rank() const noexcept { return team_.rank; }
  int size() const noexcept { return team_.size(); }
  // dst = op over parts, which stand in rank order, `count` elements each. dst may be one of them.
  // `factors`: by part; NULL: all 1.
  void reduce(std::byte* dst, std::span<const void* const> parts, const double* factors,
              std::uint64_t count, const atoll_operation& operation) const;

 private:
  void submit_all(std::span<atoll_operation* const> operations);
  void perform(const atoll_operation& operation);
  template <class Body>
  void guarded(const Body& body);

  std::int64_t open_timeout_ns_;
  atoll_sdk::Team team_;
  std::unique_ptr<atoll_sdk::ShmTransport> shm_;
  std::unique_ptr<TcpTransport> tcp_;
  std::unique_ptr<atoll_sdk::Group> group_;
  Tuning tuning_;
  std::string failure_;  // why it works no more
};

}  // namespace atoll_sdk::host
