// What atoll-topo was asked.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace topo {

struct Options {
  // The machine.
  std::vector<std::string> from;
  std::vector<std::string> cluster;
  std::string fabric;
  std::string host;
  // What to show of it.
  std::string format = "tree";
  std::string colour = "auto";
  std::string output;
  std::vector<std::string> diff;
  bool doctor = false;
  bool env = false;
  bool catalog = false;
  // The mesh.
  std::optional<std::string> mesh;  // "": plan one
  int ranks = 0;
  int islands = 0;
  int inner = 1;
  std::optional<double> params;
  std::optional<double> gpu_memory_bytes;
  double state_bytes = 16;
};

// Empty when the command line asked for nothing but help or the version, which was printed.
// Throws std::exception whose what() is one line.
std::optional<Options> parse_options(int argc, char** argv);

// "70e9", "70B", "7.2b" (1e9), "350M" (1e6); Error(invalid_argument) that quotes the text.
double parse_params(const std::string& text);
// "80GiB", "141GB", "1.5 TiB", a plain number of bytes; Error(invalid_argument).
double parse_bytes(const std::string& text);

}  // namespace topo
