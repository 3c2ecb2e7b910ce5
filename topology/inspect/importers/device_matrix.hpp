// Reads the texts in which drivers print matrices of devices: lines, words, headers and cells. The
// importers of `nvidia-smi topo -m` and `rocm-smi --showtopo` use it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "atoll/topology.hpp"

namespace atoll_v1::atoll::importers {

inline constexpr std::size_t longest_line = std::size_t{64} << 10;
inline constexpr std::size_t header_bytes = std::size_t{1} << 20;
inline constexpr std::size_t most_devices = 1024;  // limit for devices in a matrix

// Replaces terminal escapes (ECMA-48), control characters and the marks of Markdown tables by
// spaces, so that offsets do not change. Also recognises the remains of "ESC[4m" in pasted text:
// "[4m" and "^[[4m".
std::string without_marks(std::string_view text);

// Removes the first line from `rest` and returns this line; empty at the end of the text.
std::optional<std::string_view> next_line(std::string_view& rest);

using Tokens = std::vector<std::string_view>;
Tokens split(std::string_view line);

// Returns a number from 0 to `highest`; empty for any other text.
std::optional<int> number_of(std::string_view text, int highest);
// Returns the number of a GPU from the name of a column: 7 for "GPU7".
std::optional<int> gpu_number(std::string_view label);

enum class CellKind : std::uint8_t {
  self,
  links,
  path,
  silent  // "N/A": the driver does not know the connection
};

// A cell of `nvidia-smi topo -m`.
struct Cell {
  CellKind kind = CellKind::silent;
  PathLevel level = PathLevel::sys;  // distance, if the kind is CellKind::path
  std::uint16_t count = 0;           // number of NVLinks, if the kind is CellKind::links
  std::uint32_t offset = 0;          // byte offset in the file, which has at most 64 MiB
  bool same(const Cell& other) const {
    return kind == other.kind && level == other.level && count == other.count;
  }
};

std::optional<Cell> cell_of(std::string_view token);

// The header of `nvidia-smi topo -m`.
struct Header {
  Tokens devices;
  std::size_t tails = 0;  // number of columns after the matrix
  // Positions of "CPU Affinity" and "NUMA Affinity" among the columns after the matrix.
  std::optional<std::size_t> cpus, numa;
};

// Parses the header of a matrix: device names that begin with a GPU, without cells. Empty for any
// other text.
std::optional<Header> header_of(std::string_view text);

// Finds the header of a matrix in the first lines of `rest`, and removes everything up to the end
// of the header from `rest`.
std::optional<Header> find_header(std::string_view& rest);

}  // namespace atoll_v1::atoll::importers
