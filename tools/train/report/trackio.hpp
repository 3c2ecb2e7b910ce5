// Steps of a run for Trackio, a local dashboard (github.com/gradio-app/trackio): rows of the tables
// `metrics` and `configs` in the SQLite file of a project, as its page "Storage Schema" describes
// them. It needs SQLite; without it the constructor throws Error(unsupported).
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>

namespace train {

struct TrackioOptions {
  std::string project;
  std::string run_name;
  std::string settings;  // the flags of the run, as a JSON object
  bool resumes = false;  // true: steps join the newest run of this name, if there is one
};

class TrackioRun {
 public:
  // Opens PROJECT.db in TRACKIO_DIR, or else in HF_HOME/trackio, where HF_HOME defaults to
  // huggingface in XDG_CACHE_HOME or ~/.cache, and creates what does not exist. Throws Error(io)
  // that names --trackio and the file, and Error(invalid_argument) for a name that Trackio changes.
  explicit TrackioRun(const TrackioOptions& options);
  TrackioRun(TrackioRun&&) noexcept;
  ~TrackioRun();

  // Adds a step; `wall_time` is in seconds since 1970. Returns false if writing has failed.
  bool add(double wall_time, std::int64_t step, const nlohmann::json& metrics);
  const std::filesystem::path& file() const;

 private:
  struct Database;
  std::unique_ptr<Database> database_;
};

}  // namespace train
