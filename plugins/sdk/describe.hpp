// What an atoll_operation says: the names and sizes of atoll/plugin_names.hpp, and its arguments
// checked.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "atoll/plugin.h"
#include "atoll/plugin_names.hpp"

namespace atoll_sdk {

using atoll_abi::dtype_name;
using atoll_abi::dtype_size;
using atoll_abi::has_root;
using atoll_abi::is_message;
using atoll_abi::is_uneven;
using atoll_abi::kind_name;
using atoll_abi::kind_of;
using atoll_abi::op_name;
using atoll_abi::reduces;

// This rank's factor; 1 for an operation of an older core.
double factor_of(const atoll_operation& operation) noexcept;

// Throws Error(ATOLL_INVALID_ARGUMENT), or ATOLL_UNSUPPORTED for other memory than `memory`,
// unless `operation` can be performed by rank `rank` of a group of `nranks`: known kind, dtype and
// op, a peer of the group, counts that add up, buffers where they are needed, a factor where there
// can be one, sizes below 2^63 bytes.
void check_operation(const atoll_operation& operation, int rank, int nranks,
                     std::int32_t memory = ATOLL_MEMORY_HOST);

}  // namespace atoll_sdk
