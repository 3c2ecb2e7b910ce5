// atoll-store: serves the store of a job outside its ranks.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <optional>
#include <stdexcept>
#include <string>

#include "atoll/config.hpp"
#include "atoll/tooling/store.hpp"
#include "cli/cli.hpp"

namespace {

constexpr int exit_usage = 2;

constexpr cli::ForeignName foreign_flags[] = {
    {"--ranks", "np n size world-size nproc"},
    {"--address HOST:PORT", "addr host port listen bind"}};

// Returns nothing after --help and the like.
std::optional<atoll::StoreServer::Options> parse(int argc, char** argv) {
  atoll::StoreServer::Options options;
  int seconds = static_cast<int>(options.rendezvous_timeout.count());
  CLI::App app(
      "Serves the store of a job outside its ranks, so that the job survives the loss of any rank. "
      "Ends when no rank is left.",
      "atoll-store");
  app.add_option("--address", options.address,
                 "HOST:PORT of this machine at which ranks reach the store; port 0: any free port")
      ->type_name("HOST:PORT")
      ->required();
  app.add_option("--ranks", options.ranks, "ranks with which the job begins")
      ->required()
      ->check(CLI::PositiveNumber);
  app.add_option("--rendezvous-timeout", seconds, "seconds for all ranks to join at the beginning")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.footer(
      "ATOLL_TOKEN is the secret of the job. The ranks need it as well, and ATOLL_STORE=external, "
      "ATOLL_ADDR=HOST:PORT and ATOLL_FAILURE_SCOPE=communicator. The store reads ATOLL_HEARTBEAT "
      "and "
      "ATOLL_CUT_TIMEOUT as well.\n\n"
      "Examples:\n"
      "  ATOLL_TOKEN=secret atoll-store --address node0:29400 --ranks 16\n\n"
      "Exit status: 0 when no rank is left, 1 if the store cannot be served, 2 for wrong flags.");
  cli::add_common_options(app);
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& request) {
    app.exit(request);
    return std::nullopt;
  } catch (const CLI::ParseError& error) {
    throw std::runtime_error(cli::complaint(app, error, foreign_flags));
  }
  options.rendezvous_timeout = std::chrono::seconds(seconds);
  const atoll::Config config = atoll::Config::from_env();
  if (config.token.empty())
    throw std::runtime_error("set ATOLL_TOKEN to the secret of the job, as on its ranks");
  options.token = config.token;
  options.cut_timeout = config.cut_timeout;
  options.heartbeat = config.heartbeat;
  return options;
}

}  // namespace

int main(int argc, char** argv) {
  std::optional<atoll::StoreServer::Options> options;
  try {
    options = parse(argc, argv);
    if (!options) return EXIT_SUCCESS;
  } catch (const std::exception& error) {
    fmt::print(stderr, "atoll-store: {}\n", error.what());
    return exit_usage;
  }
  try {
    atoll::StoreServer server(*options);
    fmt::print("{}\n", server.address());
    std::fflush(stdout);
    server.wait();
    return EXIT_SUCCESS;
  } catch (const std::exception& error) {
    fmt::print(stderr, "atoll-store: {}\n", error.what());
    return EXIT_FAILURE;
  }
}
