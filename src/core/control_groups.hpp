// The control groups of this process, which limit what it can take.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string_view>
#include <vector>

namespace atoll_v1::atoll {

// The folders of the control groups around this process, the innermost first: those of version 2,
// and those of version 1 of a controller such as "pids". Folders that do not exist may be among
// them, because a container sees the paths of its groups on the host. `root` is the root of the
// file system, which tests replace.
std::vector<std::filesystem::path> control_groups(std::string_view controller,
                                                  const std::filesystem::path& root = "/");

// Reads the number with which a file begins; nothing if it cannot, as with "max".
std::optional<std::uint64_t> number_of(const std::filesystem::path& file);

}  // namespace atoll_v1::atoll
