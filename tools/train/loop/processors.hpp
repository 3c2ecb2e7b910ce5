// The processors that a rank may use, and its share of those of its host.
#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <vector>

namespace train {

// Hardware threads count as processors, as in the kernel's masks.
struct Processors {
  int online = 1;         // processors of the host
  std::vector<int> mask;  // processors that this process may run on
  int unbound = 0;        // processors that mpirun could have left to this process
  double quota = 0;       // processors whose time its control groups may use; 0: no limit
  std::string group{};    // identifies the control group with this quota on its host

  std::string encode() const;  // text with mask, quota and group, for other ranks
  static Processors decode(const std::string& text);
};

// The limits of this process: its affinity mask, and the quotas of its control groups (versions 1
// and 2). `root` is the root of the file system, which tests replace.
Processors read_processors(const std::filesystem::path& root = "/");

// The part of its host that one rank uses if the ranks share evenly: each processor among the ranks
// that may run on it, and each quota among the ranks of the control group.
struct ProcessorShare {
  double cores = 1;
  double quota = 0;  // processors whose time the rank may use; 0: no limit

  int threads() const;  // number of compute threads, at least 1
};
ProcessorShare share_of(std::span<const Processors> ranks_of_host, std::size_t rank);

// The number of compute threads of a rank.
struct ComputeThreads {
  int threads = 1;
  double cores = 1;       // processors for the threads
  std::string why{};      // a line for the log if a limit decides the number; otherwise empty
  std::string warning{};  // about too many threads or too few processors, with the remedy
};
// `wanted` is the number that the user asks for; 0 takes the rank's share.
ComputeThreads choose_threads(std::span<const Processors> ranks_of_host, std::size_t rank,
                              int wanted);

}  // namespace train
