// atoll-topo shows a machine or the hosts of a job, reports faults and how to fix them, plans a
// mesh, and watches a running job.
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <memory>
#include <string>

#include "atoll/config.hpp"
#include "atoll/inspect/inspection.hpp"
#include "atoll/inspect/load.hpp"
#include "machine.hpp"
#include "options.hpp"
#include "top.hpp"

namespace {

constexpr int exit_ok = 0;
constexpr int exit_warnings = 1;  // exit status: --doctor found warnings, or --diff differences
constexpr int exit_errors = 2;    // exit status: --doctor found errors
constexpr int exit_failure = 2;
constexpr int exit_doctor_failure = 3;

// Returns whether to use colours: by default only on a terminal, and not if NO_COLOR
// (no-color.org) is set or if a launcher started the process. A launcher gives its ranks a terminal
// even if the output of the launcher is a pipe.
atoll::Colour colour_of(const topo::Options& options, bool by_launcher) {
  if (options.colour == "always") return atoll::Colour::on;
  const char* no_color = std::getenv("NO_COLOR");
  const bool unwanted = no_color != nullptr && *no_color != '\0';
  const bool terminal = options.output.empty() && !by_launcher && isatty(STDOUT_FILENO) == 1;
  return options.colour == "auto" && terminal && !unwanted ? atoll::Colour::on : atoll::Colour::off;
}

void write(const std::string& text, const std::string& path) {
  std::unique_ptr<std::FILE, int (*)(std::FILE*)> opened(nullptr, std::fclose);
  if (!path.empty()) {
    opened.reset(std::fopen(path.c_str(), "wbe"));
    if (!opened)
      throw atoll::Error(atoll::ErrorCode::io, fmt::format("{}: {}", path, std::strerror(errno)));
  }
  std::FILE* out = opened ? opened.get() : stdout;
  if (std::fwrite(text.data(), 1, text.size(), out) != text.size() || std::fflush(out) != 0)
    throw atoll::Error(
        atoll::ErrorCode::io,
        fmt::format("writing to {} failed", path.empty() ? std::string("standard output") : path));
}

std::string render(const topo::Examination& examination, const topo::Options& options) {
  const atoll::Inspection& inspection = examination.inspection;
  const atoll::Colour colour = colour_of(options, examination.by_launcher);
  const std::string& format = options.format;
  if (format == "json") return atoll::to_json(inspection);
  if (options.doctor) return atoll::to_report(inspection.diagnosis, colour);
  if (format == "matrix") return atoll::to_matrix(inspection, colour);
  if (format == "svg") return atoll::to_svg(inspection);
  if (format == "nccl-xml") return atoll::to_nccl_xml(inspection.topology);
  if (format == "env") return atoll::to_nccl_env(inspection);
  return atoll::to_tree(inspection, colour);
}

int severity_status(const atoll::Diagnosis& diagnosis) {
  int status = exit_ok;
  for (const atoll::Finding& finding : diagnosis.findings) {
    if (finding.severity == atoll::Severity::error) return exit_errors;
    if (finding.severity == atoll::Severity::warning) status = exit_warnings;
  }
  return status;
}

int compare(const topo::Options& options) {
  const auto lines =
      atoll::diff(atoll::load_topology(options.diff[0]), atoll::load_topology(options.diff[1]));
  std::string text;
  for (const std::string& line : lines) text += line + '\n';
  write(text, options.output);
  return lines.empty() ? exit_ok : exit_warnings;
}

std::string catalog_text() {
  std::string text;
  for (const atoll::CatalogEntry& entry : atoll::catalog())
    text += fmt::format("{:20}  {}\n", entry.name, entry.title);
  return text;
}

int run(const topo::Options& options) {
  atoll::Config config = atoll::Config::from_env();
  if (options.islands > 0) config.islands = options.islands;
  if (options.env) {
    write(atoll::describe(config), options.output);
    return exit_ok;
  }
  if (options.catalog) {
    write(catalog_text(), options.output);
    return exit_ok;
  }
  if (options.top.address) return topo::watch(options.top, config);
  if (!options.diff.empty()) return compare(options);
  const auto examination = topo::examine(options, config);
  if (!examination) return exit_ok;
  write(render(*examination, options), options.output);
  return options.doctor ? severity_status(examination->inspection.diagnosis) : exit_ok;
}

}  // namespace

int main(int argc, char** argv) {
  int failure = exit_failure;
  try {
    const auto options = topo::parse_options(argc, argv);
    if (!options) return exit_ok;
    if (options->doctor) failure = exit_doctor_failure;
    return run(*options);
  } catch (const std::exception& error) {
    fmt::print(stderr, "atoll-topo: {}\n", error.what());
    return failure;
  }
}
