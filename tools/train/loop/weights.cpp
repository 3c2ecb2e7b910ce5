#include "loop/weights.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "atoll/checkpoint.hpp"
#include "loop/setup.hpp"

namespace train {
namespace {

namespace fs = std::filesystem;
namespace fsdp = atoll::fsdp;

// Steps completed by the run that saved the checkpoint, skipped updates included.
std::int64_t steps_done(const std::map<std::string, std::string>& extra,
                        const std::string& folder) {
  const auto found = extra.find("step");
  std::int64_t steps = -1;
  if (found != extra.end()) {
    const char* end = found->second.data() + found->second.size();
    const auto parsed = std::from_chars(found->second.data(), end, steps);
    if (parsed.ec != std::errc() || parsed.ptr != end) steps = -1;
  }
  if (steps < 0) {
    throw atoll::Error(atoll::ErrorCode::bad_data,
                       folder +
                           ": the checkpoint lacks the number of its last step; save it again "
                           "with atoll-train");
  }
  return steps;
}

}  // namespace

std::int64_t start_weights(const RunOptions& options, const ModelConfig& model,
                           fsdp::Engine& engine, fsdp::Optimizer& optimizer) {
  if (!options.resume.empty()) {
    return steps_done(fsdp::load(options.resume, engine, optimizer), options.resume);
  }
  if (options.init.empty()) {
    engine.initialize(options.seed);
    return 0;
  }
  std::vector<fs::path> files;
  if (fs::is_directory(options.init)) {
    for (const auto& entry : fs::directory_iterator(options.init)) {
      if (entry.path().extension() == ".safetensors") files.push_back(entry.path());
    }
    std::sort(files.begin(), files.end());
    if (files.empty()) {
      throw atoll::Error(atoll::ErrorCode::not_found,
                         fmt::format("{}: no .safetensors file in it", options.init));
    }
  } else {
    files.emplace_back(options.init);
  }
  fsdp::import_weights(files, engine, [&](const fsdp::Unit& unit, const fsdp::ParamSpec& param) {
    return hf_name(model, unit.name(), param.name);
  });
  return 0;
}

}  // namespace train
