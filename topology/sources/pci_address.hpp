// Bus ids as the kernel, NVML and atoll spell them.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

namespace atoll_v1::atoll::topology_sources {

// "0000:1B:00.0", "00000000:1b:00.0" -> "00000000:1b:00.0"; "" when it is no bus id.
std::string normal_busid(std::string_view text);

// The folder that the kernel keeps for a device; empty when `busid` is none.
std::filesystem::path pci_folder(const std::filesystem::path& sysfs, std::string_view busid);

}  // namespace atoll_v1::atoll::topology_sources
