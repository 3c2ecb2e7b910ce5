// A communicator of the sim backend: no data moves, and each operation gets the time that it would
// take on the links of the group.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "atoll/fabric_model.hpp"
#include "atoll/plugin.h"

namespace atoll_sim {

class Comm {
 public:
  static std::int32_t probe(const atoll_group& world);
  // Returns 1 for the operations that NCCL supports on GPU memory. libatoll builds all others from
  // them, as it does on GPUs.
  static std::int32_t capability(std::int32_t kind, std::int32_t dtype, std::int32_t op,
                                 std::int32_t memory);
  static std::unique_ptr<Comm> open(const atoll_host& host, const atoll_group& group);
  void submit(std::span<atoll_operation* const> operations) const;
  void abort() noexcept {}

 private:
  Comm(const atoll_group& group);
  void price(const atoll_operation& operation) const;
  // Sets the cost of a group of sends and receives, which run together, on its first operation.
  void price_messages(std::span<atoll_operation* const> operations) const;
  void set(const atoll_operation& operation, const atoll::CollectiveTime& time, bool across) const;

  atoll::FabricModel model_;
  int rank_, ranks_;
  int hosts_ = 1;
  int sharing_ = 1;  // such groups that use the NICs of a host at the same time
  int host_ranks_ = 1;
  std::vector<std::int32_t> host_of_;  // host of each rank of the group
};

}  // namespace atoll_sim
