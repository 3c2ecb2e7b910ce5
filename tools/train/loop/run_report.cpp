#include "loop/run_report.hpp"

#include <algorithm>
#include <exception>
#include <nlohmann/json.hpp>

#include "fail.hpp"
#include "page/page.hpp"
#include "report/log.hpp"
#include "report/traps.hpp"

namespace train {

void warn_of_settings(const nlohmann::json& args) {
  for (const Trap& trap : find_traps(args, nlohmann::json::object())) {
    if (!trap.id.starts_with("mesh_")) log::warn("{}", to_line(trap));
  }
}

void report_run(const std::filesystem::path& out) noexcept {
  try {
    const page::RunFiles run = page::read_run(out);
    const auto known = find_traps(run.args, nlohmann::json::object());
    for (const Trap& trap : find_traps(run.args, run.metrics)) {
      if (std::ranges::find(known, trap.id, &Trap::id) == known.end()) {
        log::warn("{}", to_line(trap));
      }
    }
    log::info("report of the run in {}", page::write_report(out).string());
  } catch (const std::exception& error) {
    log::warn("no report.html: {}", text_of(error));
  }
}

}  // namespace train
