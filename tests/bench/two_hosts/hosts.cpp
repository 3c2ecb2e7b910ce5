#include "two_hosts/hosts.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <vector>

namespace atoll_bench {
namespace {

// Environment variable with the path of a file that stays empty if all targets are met.
constexpr const char* verdict_variable = "BENCH_VERDICT";

// Runs in the child process and replaces it with the job on the emulated hosts. The ranks report a
// missed target through a file.
[[noreturn]] void become_hosts(const Hosts& hosts, std::span<char*> own) {
  ::prctl(PR_SET_PDEATHSIG, SIGTERM);
  std::string interfaces = "eth0";
  for (int rail = 1; rail < hosts.rails; ++rail) interfaces += fmt::format(",eth{}", rail);
  ::setenv("ATOLL_INTERFACE", interfaces.c_str(), 1);
  std::vector<std::string> launch{BENCH_TWO_HOSTS,
                                  "-n",
                                  std::to_string(hosts.hosts),
                                  "-p",
                                  std::to_string(hosts.ranks_per_host),
                                  "-l",
                                  std::to_string(hosts.rails),
                                  "-r",
                                  hosts.rate,
                                  "--",
                                  std::filesystem::read_symlink("/proc/self/exe")};
  std::vector<char*> words;
  for (std::string& word : launch) words.push_back(word.data());
  words.insert(words.end(), own.begin() + 1, own.end());
  words.push_back(nullptr);
  ::execv(words[0], words.data());
  fmt::print(stderr, "cannot start {}: {}\n", words[0], std::strerror(errno));
  std::_Exit(2);
}

}  // namespace

void add_host_options(CLI::App& app, Hosts& hosts) {
  app.add_option("--hosts", hosts.hosts, "emulated hosts")->check(CLI::Range(2, 16));
  app.add_option("--ranks-per-host", hosts.ranks_per_host)->check(CLI::Range(1, 16));
  app.add_option("--rails", hosts.rails, "links per host, each in a separate network")
      ->check(CLI::Range(1, 16));
  app.add_option(
      "--rate", hosts.rate,
      "rate of each link and direction, as for tc; or one per rail, separated by commas");
}

bool on_hosts() { return std::getenv("OMPI_COMM_WORLD_SIZE") != nullptr; }

int start_on_hosts(const Hosts& hosts, std::span<char*> arguments) {
  std::string verdict = std::filesystem::temp_directory_path() / "bench_two_hosts_XXXXXX";
  const int file = ::mkstemp(verdict.data());
  if (file < 0) throw std::runtime_error("cannot make a temporary file");
  ::setenv(verdict_variable, verdict.c_str(), 1);
  const pid_t child = ::fork();
  if (child == 0) become_hosts(hosts, arguments);
  int status = 0;
  while (child > 0 && ::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  char missed = 0;
  const bool any = ::read(file, &missed, 1) == 1;
  ::close(file);
  ::unlink(verdict.c_str());
  if (child < 0 || !WIFEXITED(status)) return 2;
  return WEXITSTATUS(status) == 0 && any ? 1 : WEXITSTATUS(status);
}

void report_missed() {
  const char* file = std::getenv(verdict_variable);
  if (file) std::ofstream(file) << "a target is missed\n";
}

RawRates raw_rates(atoll::World& world) {
  if (world.hosts().size() < 2) throw std::runtime_error("all ranks are on one host");
  const int here = world.hosts().at(0).ranks.at(0), there = world.hosts().at(1).ranks.at(0);
  RawRates rates;
  const auto& addresses = world.placements().at(static_cast<std::size_t>(there)).rail_addresses;
  if (world.rank() == there) {
    const std::vector<RawListener> listeners(addresses.size());
    std::vector<int> ports;
    for (const auto& listener : listeners) ports.push_back(listener.port());
    world.put("bench/raw", fmt::format("{}", fmt::join(ports, " ")));
    rates = measure_as_listener(listeners);
  } else if (world.rank() == here) {
    std::istringstream ports(world.get("bench/raw", std::chrono::seconds(20)));
    std::vector<RawTarget> targets;
    for (const std::string& address : addresses) ports >> targets.emplace_back(address).port;
    rates = measure_as_caller(targets);
  }
  // Only the two ranks at the ends of the links have measured a rate. All other ranks pass 0.
  return {addresses.size(), most(world, rates.one_way), most(world, rates.both_ways)};
}

double most(atoll::World& world, double mine) {
  const std::string key = fmt::format("bench/most/{}", world.ticket("bench/most"));
  double result = 0;
  for (const std::string& value : world.exchange(key, fmt::format("{}", mine))) {
    result = std::max(result, std::stod(value));
  }
  return result;
}

// Reads /proc/self/net/dev, which belongs to the network namespace of this process. /sys may show
// the interfaces of another namespace.
double transmitted_bytes() {
  std::ifstream file("/proc/self/net/dev");
  double total = 0;
  for (std::string line; std::getline(file, line);) {
    const std::size_t colon = line.find(':');
    if (colon == std::string::npos || line.find("lo:") != std::string::npos) continue;
    std::istringstream fields(line.substr(colon + 1));
    double value = 0;
    for (int i = 0; i < 9 && fields >> value; ++i) {
    }
    total += value;
  }
  return total;
}

}  // namespace atoll_bench
