// Formatting of names, numbers and lists in messages.
#pragma once

#include <map>
#include <span>
#include <string>
#include <string_view>

#include "atoll/topology.hpp"

namespace atoll_v1::atoll {

// Throws Error(bad_data) with the text "SOURCE: byte OFFSET: WHAT".
[[noreturn]] void fail_at(std::string_view source, std::size_t offset, std::string_view what);

// Formats a count with its noun: "1 GPU", "8 GPUs", "2 islands or hosts".
std::string plural(std::size_t count, std::string_view noun);

// Formats bytes: "1043 GiB", "7.5 GiB".
std::string gib_text(double bytes);

// Formats ascending numbers as ranges: {0, 1, 2, 5} -> "0-2, 5".
std::string number_ranges(std::span<const int> numbers);

// Compares names with embedded numbers by value: mlx5_2 precedes mlx5_10.
bool natural_less(std::string_view a, std::string_view b) noexcept;

// Joins words: "a", "a and b", "a, b and c". Lists at most `most` words and counts the rest.
std::string enumerate(std::span<const std::string> words, std::size_t most = 8);

// Replaces control characters by '?', so that names from files and devices cannot steer a terminal.
std::string printable(std::string_view text);
// Replaces characters that are not printable ASCII by '?' and cuts the text after `limit` bytes.
std::string printable(std::string_view text, std::size_t limit);

struct PortName {
  std::string_view device, port;
};

// "mlx5_0:2" is port "2" of device "mlx5_0". Without a number after a colon, the whole name is the
// device and the port is empty.
PortName split_port(std::string_view name) noexcept;

// True if the word consists of letters, digits and "_.:-". Names with other characters, which may
// come from files, are not inserted into commands, because people paste commands into a shell.
bool is_plain(std::string_view word) noexcept;
// Replaces `word` in a command by a name, if the name is plain.
std::string with_name(std::string command, std::string_view word, std::string_view name);

std::string_view trimmed(std::string_view text) noexcept;
std::string lower_case(std::string_view text);
// Removes "0x" from a hexadecimal number: "030200" for "0x030200"; "" for any other text.
std::string hex_digits(std::string_view text);

// Spells the name of a fabric: "nvlink" -> "NVLink".
std::string_view fabric_name(std::string_view fabric) noexcept;

// Names of hosts and devices for people. Shows a host's name instead of its long id, unless several
// hosts share the name.
class DisplayNames {
 public:
  explicit DisplayNames(const Topology& topology);
  std::string host(const std::string& id) const;
  // Names GPUs: "node0/gpu0-7", "node0/gpu0-3 and node1/gpu0-3"; lists at most `most` hosts and
  // counts the rest.
  std::string gpus(std::span<const std::string> ids, std::size_t most = 4) const;
  std::string device(const std::string& id) const;

 private:
  std::map<std::string, std::string, std::less<>> hosts_;
};

}  // namespace atoll_v1::atoll
