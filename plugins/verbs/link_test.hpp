// A test of raw RDMA writes between two ports, as ib_write_bw and ib_write_lat of perftest perform
// it.
#pragma once

#include <span>
#include <string>

#include "atoll/plugin.h"

namespace atoll_verbs_backend {

// Does what atoll_backend::test_link says. Returns the description of this side's port.
std::string test_link(const atoll_host& host, const atoll_link_test& test,
                      std::span<atoll_link_rate> rates);

}  // namespace atoll_verbs_backend
