// The line that a program prints for a wrong command line.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace CLI {
class App;
class Error;
}  // namespace CLI

namespace cli {

// A flag of other programs, without hyphens and in lower case, with "-" between words, and ours.
struct ForeignName {
  std::string_view theirs;
  std::string_view ours;
};

// Returns what is wrong. For an unknown flag it suggests the flag that `foreign` gives for its
// name, or the one with the most similar name.
std::string complaint(const CLI::App& app, const CLI::Error& error,
                      std::span<const ForeignName> foreign = {});

}  // namespace cli
