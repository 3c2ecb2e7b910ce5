#include "report/step_log.hpp"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <string>

#include "atoll/error.hpp"
#include "report/files.hpp"
#include "report/metrics_json.hpp"

namespace train {
namespace {

std::string lines_before(const std::filesystem::path& file, std::int64_t first_step) {
  std::string kept;
  std::ifstream in(file);
  for (std::string line; std::getline(in, line);) {
    const auto record = nlohmann::json::parse(line, nullptr, false);
    if (!record.is_object()) continue;
    const auto step = record.find("step");
    if (step == record.end() || !step->is_number_integer()) continue;
    if (step->get<std::int64_t>() < first_step) kept += line + "\n";
  }
  return kept;
}

}  // namespace

StepLog::StepLog(const std::filesystem::path& file, std::int64_t first_step) : file_(file) {
  write_file_atomic(file, first_step > 1 ? lines_before(file, first_step) : "");
  out_.open(file, std::ios::app);
  if (!out_)
    throw atoll::Error(atoll::ErrorCode::io,
                       fmt::format("{}: cannot be opened for writing", file.string()));
}

void StepLog::add(const StepRecord& step, const SpeedBase& base) {
  out_ << step_json(step, base).dump() << '\n' << std::flush;
  if (!out_) {
    throw atoll::Error(atoll::ErrorCode::io,
                       fmt::format("{}: writing the line of step {} failed (disk full?)",
                                   file_.string(), step.step));
  }
}

}  // namespace train
