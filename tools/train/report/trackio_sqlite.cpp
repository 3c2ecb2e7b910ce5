#include <fmt/chrono.h>
#include <fmt/format.h>
#include <sqlite3.h>

#include <algorithm>
#include <cmath>
#include <ctime>
#include <nlohmann/json.hpp>
#include <random>
#include <string_view>
#include <utility>
#include <vector>

#include "environment.hpp"
#include "fail.hpp"
#include "report/clock.hpp"
#include "report/trackio.hpp"

namespace train {
namespace {

namespace fs = std::filesystem;

// The tables that a run needs. Trackio adds the others, and the columns of its synchronization,
// when it opens the file.
constexpr const char* tables = R"(
  PRAGMA journal_mode = WAL;
  PRAGMA synchronous = NORMAL;
  CREATE TABLE IF NOT EXISTS metrics (
    id INTEGER PRIMARY KEY AUTOINCREMENT, run_id TEXT NOT NULL, timestamp TEXT NOT NULL,
    run_name TEXT NOT NULL, step INTEGER NOT NULL, metrics TEXT NOT NULL);
  CREATE TABLE IF NOT EXISTS configs (
    id INTEGER PRIMARY KEY AUTOINCREMENT, run_id TEXT NOT NULL, run_name TEXT NOT NULL,
    config TEXT NOT NULL, created_at TEXT NOT NULL, UNIQUE(run_id));
  CREATE INDEX IF NOT EXISTS idx_metrics_run_step ON metrics(run_id, step);
)";
constexpr int busy_ms = 2000;  // how long to wait for another program that writes

fs::path folder() {
  if (const fs::path own = variable("TRACKIO_DIR"); !own.empty()) return own;
  if (const fs::path hub = variable("HF_HOME"); !hub.empty()) return hub / "trackio";
  return user_cache() / "huggingface" / "trackio";
}

// ISO 8601 in UTC, as Python's isoformat() writes it.
std::string time_text(double wall_time) {
  const auto seconds = static_cast<std::time_t>(wall_time);
  const auto micros = static_cast<std::int64_t>((wall_time - std::floor(wall_time)) * 1e6);
  return fmt::format("{:%Y-%m-%dT%H:%M:%S}.{:06}+00:00", fmt::gmtime(seconds), micros);
}

std::string random_id() {
  std::random_device random;
  std::string id;
  for (int i = 0; i < 4; ++i) id += fmt::format("{:08x}", random() & 0xffffffffU);
  return id;
}

struct Close {
  void operator()(sqlite3* database) const { sqlite3_close(database); }
  void operator()(sqlite3_stmt* statement) const { sqlite3_finalize(statement); }
};
using Statement = std::unique_ptr<sqlite3_stmt, Close>;

// A column and its value.
struct Field {
  std::string_view column;
  std::string value;
};

}  // namespace

struct TrackioRun::Database {
  [[noreturn]] void fail_here() const {
    fail(ErrorCode::io, "--trackio: {}: {}", file.string(),
         handle ? sqlite3_errmsg(handle.get()) : "out of memory");
  }
  Statement prepare(const std::string& sql) const {
    sqlite3_stmt* statement = nullptr;
    if (sqlite3_prepare_v2(handle.get(), sql.c_str(), -1, &statement, nullptr) != SQLITE_OK)
      fail_here();
    return Statement(statement);
  }
  bool has_column(const char* table, std::string_view column) const {
    const Statement rows = prepare(fmt::format("PRAGMA table_info({})", table));
    while (sqlite3_step(rows.get()) == SQLITE_ROW) {
      if (reinterpret_cast<const char*>(sqlite3_column_text(rows.get(), 1)) == column) return true;
    }
    return false;
  }
  // Adds a row. Fields named run_id are left out of tables of older versions, which lack it.
  bool insert(const char* table, std::vector<Field> fields, bool has_run_id) const {
    if (!has_run_id) std::erase_if(fields, [](const Field& f) { return f.column == "run_id"; });
    std::string columns, marks;
    for (const Field& field : fields) {
      columns += fmt::format("{}{}", columns.empty() ? "" : ", ", field.column);
      marks += marks.empty() ? "?" : ", ?";
    }
    const Statement row =
        prepare(fmt::format("INSERT OR REPLACE INTO {} ({}) VALUES ({})", table, columns, marks));
    for (std::size_t i = 0; i < fields.size(); ++i) {
      const std::string& value = fields[i].value;
      if (sqlite3_bind_text(row.get(), static_cast<int>(i) + 1, value.c_str(),
                            static_cast<int>(value.size()), SQLITE_STATIC) != SQLITE_OK)
        return false;
    }
    return sqlite3_step(row.get()) == SQLITE_DONE;
  }
  std::string newest_id() const {
    const Statement found =
        prepare("SELECT run_id FROM configs WHERE run_name = ? ORDER BY created_at DESC LIMIT 1");
    sqlite3_bind_text(found.get(), 1, run_name.c_str(), -1, SQLITE_STATIC);
    if (sqlite3_step(found.get()) != SQLITE_ROW) return "";
    return reinterpret_cast<const char*>(sqlite3_column_text(found.get(), 0));
  }

  fs::path file;
  std::string run_name, run_id;
  std::unique_ptr<sqlite3, Close> handle;
  bool metrics_have_id = true;
};

TrackioRun::TrackioRun(const TrackioOptions& options) : database_(std::make_unique<Database>()) {
  Database& database = *database_;
  const auto is_kept = [](unsigned char c) { return std::isalnum(c) != 0 || c == '-' || c == '_'; };
  require(!options.project.empty() && std::ranges::all_of(options.project, is_kept),
          "--trackio {}: a project may contain only a to z, A to Z, digits, '-' and '_'",
          options.project);
  database.file = folder() / (options.project + ".db");
  database.run_name = options.run_name;
  std::error_code problem;
  fs::create_directories(database.file.parent_path(), problem);
  sqlite3* handle = nullptr;
  const int opened = sqlite3_open(database.file.c_str(), &handle);
  database.handle.reset(handle);
  if (opened != SQLITE_OK) database.fail_here();
  sqlite3_busy_timeout(handle, busy_ms);
  if (sqlite3_exec(handle, tables, nullptr, nullptr, nullptr) != SQLITE_OK) database.fail_here();
  database.metrics_have_id = database.has_column("metrics", "run_id");
  const bool configs_have_id = database.has_column("configs", "run_id");
  if (options.resumes && configs_have_id) database.run_id = database.newest_id();
  if (database.run_id.empty()) database.run_id = random_id();
  const bool added = database.insert("configs",
                                     {{"run_id", database.run_id},
                                      {"run_name", database.run_name},
                                      {"config", options.settings},
                                      {"created_at", time_text(now_s())}},
                                     configs_have_id);
  if (!added) database.fail_here();
}

TrackioRun::TrackioRun(TrackioRun&&) noexcept = default;
TrackioRun::~TrackioRun() = default;
const fs::path& TrackioRun::file() const { return database_->file; }

bool TrackioRun::add(double wall_time, std::int64_t step, const nlohmann::json& metrics) {
  try {
    return database_->insert("metrics",
                             {{"run_id", database_->run_id},
                              {"timestamp", time_text(wall_time)},
                              {"run_name", database_->run_name},
                              {"step", std::to_string(step)},
                              {"metrics", metrics.dump()}},
                             database_->metrics_have_id);
  } catch (const Error&) {
    return false;
  }
}

}  // namespace train
