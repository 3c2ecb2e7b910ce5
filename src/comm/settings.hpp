// The settings of one communicator: those of CommunicatorOptions, or else of the World's Config.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "atoll/communicator.hpp"
#include "atoll/rank_set.hpp"

namespace atoll_v1::atoll {

struct Settings {
  // Values of the options. For a member without a value, the setting of the Config applies.
  std::optional<std::chrono::milliseconds> own_timeout;
  std::optional<int> own_deterministic;
  std::optional<std::string> own_algorithm;
  std::optional<ComputeUnits> own_compute_units;

  std::string backend;                // name of the backend; empty: the best common one
  std::chrono::milliseconds timeout;  // time limit of one collective
  int deterministic;
  std::string algorithm;
  std::string tuning;        // lines for atoll_group.tuning, from the tuning file and `algorithm`
  std::string tcp_checksum;  // name of the checksum of TCP data; empty: none
  ComputeUnits compute_units;
  bool levels;
  bool tags;

  // Throws Error(invalid_argument) that names an option with an invalid value, and the errors of
  // tuning_lines().
  Settings(const CommunicatorOptions& options, const Config& config);

  // Called on the settings of a parent: gives each member of `options` without a value the value of
  // the parent's option.
  void pass_on(CommunicatorOptions& options) const;
  // Returns the settings that must be equal on all ranks.
  std::vector<Declaration> declarations() const;
};

}  // namespace atoll_v1::atoll
