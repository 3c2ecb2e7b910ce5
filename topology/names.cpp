// Texts of enumerators, as they appear in files and messages.
#include "atoll/finding.hpp"
#include "atoll/topology.hpp"

namespace atoll_v1::atoll {

std::string_view name(IslandState state) noexcept {
  switch (state) {
    case IslandState::known:
      return "known";
    case IslandState::none:
      return "none";
    case IslandState::unknown:
      return "unknown";
  }
  return "unknown";
}

std::string_view name(PathLevel level) noexcept {
  switch (level) {
    case PathLevel::pix:
      return "PIX";
    case PathLevel::pxb:
      return "PXB";
    case PathLevel::phb:
      return "PHB";
    case PathLevel::node:
      return "NODE";
    case PathLevel::package:
      return "PKG";
    case PathLevel::sys:
      return "SYS";
  }
  return "SYS";
}

std::string_view name(Severity severity) noexcept {
  switch (severity) {
    case Severity::info:
      return "info";
    case Severity::warning:
      return "warning";
    case Severity::error:
      return "error";
  }
  return "error";
}

}  // namespace atoll_v1::atoll
