#include "commands.hpp"

#include <CLI/CLI.hpp>
#include <cstdio>
#include <string>
#include <string_view>
#include <vector>

#include "cli/cli.hpp"
#include "fail.hpp"
#include "html/document.hpp"
#include "page/page.hpp"
#include "report/files.hpp"

namespace train {
namespace {

constexpr int wrong_usage = 2;

// Returns an exit code if the arguments are wrong or ask for help.
std::optional<int> parse(CLI::App& app, int argc, char** argv) {
  app.failure_message([](const CLI::App* failed, const CLI::Error& error) {
    return failed->get_name() + ": " + cli::complaint(*failed, error) +
           " (--help lists the arguments)\n";
  });
  try {
    app.parse(argc - 1, argv + 1);
    return std::nullopt;
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : wrong_usage;
  }
}

int report(int argc, char** argv) {
  CLI::App app("Writes report.html, a page for a browser, into the results folder of a run.",
               "atoll-train report");
  std::string folder;
  app.add_option("folder", folder, "results folder of a run, as --out named it")->required();
  if (const auto code = parse(app, argc, argv)) return *code;
  std::printf("%s\n", page::write_report(folder).c_str());
  return 0;
}

int compare(int argc, char** argv) {
  CLI::App app(
      "Shows the figures of runs and the settings that differ, side by side. Runs that have not "
      "ended have only curves.",
      "atoll-train compare");
  std::vector<std::string> folders;
  std::string file;
  app.add_option("runs", folders, "results folders of runs")->required();
  app.add_option("--html", file, "write a page with the curves of all runs as well");
  if (const auto code = parse(app, argc, argv)) return *code;
  std::vector<page::RunFiles> runs;
  for (const std::string& folder : folders) runs.push_back(page::read_run(folder));
  std::fputs(page::compare_text(runs).c_str(), stdout);
  if (!file.empty()) {
    require(may_replace(file, "<!DOCTYPE html>"),
            "--html {}: the file exists and is no page: name another file", file);
    write_file_atomic(file, html::document(page::comparison_of(runs)));
  }
  return 0;
}

}  // namespace

std::optional<int> run_command(int argc, char** argv) {
  const std::string_view command = argc > 1 ? argv[1] : "";
  if (command == "report") return report(argc, argv);
  if (command == "compare") return compare(argc, argv);
  return std::nullopt;
}

}  // namespace train
