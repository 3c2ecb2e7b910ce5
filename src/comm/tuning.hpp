// What a user asks of the algorithms: Config::algorithm and the file that Config::tuning names.
#pragma once

#include <string>
#include <string_view>

#include "atoll/config.hpp"

namespace atoll_v1::atoll {

// The lines of atoll_group.tuning, "COLLECTIVE MIN_BYTES ALGORITHM\n", of which the last that fits
// wins, and "connections N\n": those of the file, then Config::algorithm
// ("COLLECTIVE:ALGORITHM,...") from 0 bytes on.
// Bytes are those of the whole tensor, S of nccl-tests. The file has the same lines; sizes may end
// in K, M or G (powers of 1,024), a # begins a comment. Throws Error(invalid_argument) that names
// the variable, or file and line, and Error(io) for a file that cannot be read. Names of algorithms
// are the backend's.
std::string tuning_lines(const Config& config);

}  // namespace atoll_v1::atoll
