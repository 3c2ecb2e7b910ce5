#include "loop/results.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <vector>

#include "fail.hpp"
#include "loop/checkpoints.hpp"
#include "loop/exporting.hpp"
#include "report/files.hpp"
#include "report/log.hpp"

namespace train {
namespace {

// Whether all ranks of a collective throw the same Error with this code, so that they can go on. An
// Error with another code may come from one rank, for which the other ranks then wait.
bool is_shared(ErrorCode code) {
  switch (code) {
    case ErrorCode::invalid_argument:
    case ErrorCode::not_found:
    case ErrorCode::unsupported:
    case ErrorCode::mismatch:
    case ErrorCode::io:
    case ErrorCode::bad_data:
      return true;
    case ErrorCode::timeout:
    case ErrorCode::peer_lost:
    case ErrorCode::aborted:
    case ErrorCode::out_of_memory:
    case ErrorCode::backend:
    case ErrorCode::internal:
      break;
  }
  return false;
}

}  // namespace

bool Results::attempt(const std::string& what, const std::function<void()>& write) {
  try {
    write();
  } catch (const Error& error) {
    if (!is_shared(error.code()) || world_.failure()) throw;
    failures_[what] = error.what();
    if (world_.rank() == 0) log::warn("{}: {}", what, error.what());
    return false;
  }
  failures_.erase(what);
  return true;
}

void Results::finish(const std::string& ended) {
  // Texts of the operating system may not be UTF-8, so invalid bytes are replaced.
  const auto mine =
      nlohmann::json(failures_).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  std::vector<std::string> texts;
  for (const auto& text_of_rank : world_.exchange("train/results", mine)) {
    const auto failures = nlohmann::json::parse(text_of_rank);
    for (const auto& [what, failure] : failures.items()) {
      const auto text = fmt::format("{}: {}", what, failure.get<std::string>());
      if (std::ranges::find(texts, text) == texts.end()) texts.push_back(text);
    }
  }
  if (!texts.empty()) {
    fail(ErrorCode::io, "{} could not be written: {}",
         ended.empty() ? "the run is complete except for what" : ended + "; results that",
         fmt::join(texts, "; "));
  }
}

void check_results(const atoll::World& world, const RunOptions& options,
                   const std::filesystem::path& out) {
  // Every rank writes a part of a checkpoint.
  if (options.save_checkpoint) {
    check_flag("--out", [&] { check_folder(checkpoints_folder(out)); });
  }
  if (world.rank() != 0) return;
  check_flag("--out", [&] {
    check_folder(out);
    if (!std::filesystem::exists(out)) return;
    for (const char* name : {"run_args.json", "steps.jsonl", "metrics.json"}) {
      check_writable(out / name);
    }
  });
  if (!options.export_weights.empty()) check_flag("--export", [&] { check_export(options); });
  if (!options.trace.empty()) {
    check_flag("--trace", [&] {
      check_writable(options.trace);
      require(may_replace(options.trace, "{\"displayTimeUnit\":"),
              "{}: this file exists and is no trace: choose another name", options.trace);
    });
  }
}

}  // namespace train
