// Stands in for trackio_sqlite.cpp in a build without SQLite.
#include "fail.hpp"
#include "report/trackio.hpp"

namespace train {

struct TrackioRun::Database {
  std::filesystem::path file;
};

TrackioRun::TrackioRun(const TrackioOptions&) {
  fail(ErrorCode::unsupported,
       "--trackio: this build has no SQLite; install libsqlite3-dev and build again, or read "
       "steps.jsonl");
}

TrackioRun::TrackioRun(TrackioRun&&) noexcept = default;
TrackioRun::~TrackioRun() = default;
bool TrackioRun::add(double, std::int64_t, const nlohmann::json&) { return false; }
const std::filesystem::path& TrackioRun::file() const { return database_->file; }

}  // namespace train
