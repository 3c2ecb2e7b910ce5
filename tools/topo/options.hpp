// The command line of atoll-topo.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "atoll/mesh_plan.hpp"

namespace topo {

// Options of --top.
struct TopOptions {
  std::optional<std::string> address;  // host:port of the job; "": the value of ATOLL_ADDR
  std::string token_file;
  double interval = 1;  // seconds between two tables
  int count = 0;        // number of tables; 0: until the job ends
  bool once = false;
  bool json = false;
};

struct Options {
  // Options that select the machine.
  std::vector<std::string> from;
  std::vector<std::string> bare;  // values of `from` given as positional arguments
  std::vector<std::string> cluster;
  std::string fabric;
  std::string host;
  // Options that select the output.
  std::string format = "tree";
  std::string colour = "auto";
  std::string output;
  std::vector<std::string> diff;
  bool doctor = false;
  bool verbose = false;
  bool env = false;
  bool catalog = false;
  // Options of the mesh.
  std::optional<std::string> mesh;  // shape of a mesh to check ("2x8"), or "" to plan a mesh
  int ranks = 0;
  int islands = 0;
  atoll::MeshPlanOptions plan;
  TopOptions top;
};

// Parses the command line. Prints the text of --help or --version and returns an empty result for
// these options. Throws an exception with a one-line message for an invalid command line.
std::optional<Options> parse_options(int argc, char** argv);

}  // namespace topo
