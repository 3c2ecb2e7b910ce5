// Measures how fast the living ranks of a job go on after a loss, and checks that they do:
//   fault_regroup [--fault kill|kill-two|kill-host|stop|kill-waiting] [--trials N] [--ranks N]
//                 [--hosts N] [--seed N]
//   fault_regroup --rank         one rank of a job that a launcher has started
// Ranks loop over collectives and compare each result. This process serves the store, as the
// program atoll-store does. At random instants it kills or stops ranks, and waits until each other
// rank has run a collective in the next epoch. A job meets several faults, until fewer than two
// ranks or hosts are left; then a new job starts. `stop` stops a rank until the next epoch has
// begun; it must then get an error. `kill-waiting` kills a second rank while the others regroup.
// The times run from the fault to the first collective of the last rank. A trial fails if that
// takes over 20 s, if a result is wrong, or if a rank ends that was not killed.
#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <memory>
#include <random>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "atoll/communicator.hpp"
#include "atoll/log.hpp"
#include "atoll/tooling/store.hpp"

namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr milliseconds limit{20'000};

struct Options {
  std::string fault = "kill";
  int trials = 20;
  int ranks = 6;
  int hosts = 3;
  unsigned seed = 1;
};

// --- a rank ---

float value_of(int rank, std::size_t i) {
  return static_cast<float>(static_cast<std::size_t>(rank) + 1 + (i % 3));
}

void run_collectives(atoll::World& world) {
  std::vector<int> ranks;
  float sum = 0;
  for (int rank = 0; rank < world.size(); ++rank) {
    ranks.push_back(rank);
    sum += value_of(rank, 0);
  }
  auto all = atoll::Communicator::open(world, ranks, "all", {.backend = "host"});
  auto stream = atoll::Device::cpu().stream();
  for (std::size_t round = 0;; ++round) {
    const std::size_t count = std::size_t{2} << (round % 18);
    std::vector<float> values(count);
    for (std::size_t i = 0; i < count; ++i) values[i] = value_of(world.rank(), i);
    all.all_reduce(values, values, atoll::ReduceOp::sum, stream).synchronize();
    if (values[0] != sum ||
        values[count - 1] !=
            sum + static_cast<float>(static_cast<std::size_t>(world.size()) * ((count - 1) % 3))) {
      fmt::print("wrong sum\n");
      std::_Exit(3);
    }
    if (round == 0) {
      fmt::print("{} {} {}\n", world.epoch(), world.size(),
                 Clock::now().time_since_epoch().count());
      std::fflush(stdout);
    }
  }
}

// Without a size, a launcher and the environment say what the rank is and where the store is.
int run_rank(int rank, int size, const std::string& address, const std::string& host) {
  atoll::Config config;
  if (size == 0) {
    config = atoll::Config::from_env();
  } else {
    config.rank = rank;
    config.size = size;
    config.addr = address;
    config.token = "faults of epochs";
    config.host_id = host;
  }
  config.store = "external";
  config.failure_scope = "communicator";
  config.log = std::getenv("ATOLL_LOG") ? std::getenv("ATOLL_LOG") : "error";
  config.timeout = 2s;
  auto world = std::make_unique<atoll::World>(atoll::World::from_env(config));
  for (;;) {
    try {
      run_collectives(*world);
    } catch (const atoll::Error&) {
      if (world->failure()) throw;  // the epoch went on without this rank
    }
    auto next = atoll::World::regroup(*world, {.grace = 500ms});
    world = std::make_unique<atoll::World>(std::move(next));
  }
}

// --- the job ---

struct Rank {
  pid_t pid = -1;
  int from = -1;
  int host = 0;
  std::string line{};
};

class Job {
 public:
  Job(const Options& options, const std::string& program) : options_(options) {
    server_ = std::make_unique<atoll::StoreServer>(
        atoll::StoreServer::Options{"127.0.0.1:0", "faults of epochs", options.ranks});
    for (int rank = 0; rank < options.ranks; ++rank) start(rank, program);
    wait_for_epoch(0);
  }
  ~Job() {
    for (const auto& [number, rank] : ranks_) ::kill(rank.pid, SIGKILL);
    while (!ranks_.empty()) forget(ranks_.begin()->first);
    server_->wait();
  }

  bool can_go_on() const { return hosts().size() > 1 && ranks_.size() > 3; }

  // Returns the time from the fault until the last living rank has run a collective.
  double meet(std::mt19937& random) {
    const auto pause = std::uniform_int_distribution(0, 150'000)(random);
    std::this_thread::sleep_for(std::chrono::microseconds(pause));
    std::vector<int> victims = choose(random);
    const auto begin = Clock::now();
    const int signal = options_.fault == "stop" ? SIGSTOP : SIGKILL;
    std::vector<Rank> gone;
    for (const int victim : victims) {
      ::kill(ranks_.at(victim).pid, signal);
      if (signal == SIGKILL)
        forget(victim);
      else
        gone.push_back(ranks_.extract(victim).mapped());
      if (options_.fault != "kill-waiting" || victim == victims.back()) continue;
      std::this_thread::sleep_for(
          std::chrono::microseconds(std::uniform_int_distribution(0, 40'000)(random)));
    }
    const auto end = wait_for_size(static_cast<int>(ranks_.size()));
    for (Rank& rank : gone) expect_error(rank);
    return std::chrono::duration<double>(end - begin).count();
  }

 private:
  void start(int number, const std::string& program) {
    std::array<int, 2> ends{};
    if (::pipe2(ends.data(), O_CLOEXEC) != 0) throw std::runtime_error("no pipe");
    const int host = number * options_.hosts / options_.ranks;
    const pid_t pid = ::fork();
    if (pid == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      ::dup2(ends[1], STDOUT_FILENO);
      const std::string rank = std::to_string(number), size = std::to_string(options_.ranks),
                        name = "h" + std::to_string(host), address = server_->address();
      ::execl(program.c_str(), program.c_str(), "--rank", rank.c_str(), size.c_str(),
              address.c_str(), name.c_str(), nullptr);
      ::_exit(127);
    }
    ::close(ends[1]);
    ranks_[number] = {pid, ends[0], host};
  }

  void forget(int number) {
    const Rank rank = ranks_.extract(number).mapped();
    ::waitpid(rank.pid, nullptr, 0);
    ::close(rank.from);
  }

  std::vector<int> hosts() const {
    std::vector<int> result;
    for (const auto& [number, rank] : ranks_) result.push_back(rank.host);
    const auto rest = std::ranges::unique(result);
    result.erase(rest.begin(), rest.end());
    return result;
  }

  std::vector<int> choose(std::mt19937& random) const {
    std::vector<int> all;
    for (const auto& [number, rank] : ranks_) all.push_back(number);
    std::ranges::shuffle(all, random);
    if (options_.fault == "kill-host") {
      const int host = ranks_.at(all.front()).host;
      std::erase_if(all, [&](int number) { return ranks_.at(number).host != host; });
      return all;
    }
    const bool two = options_.fault == "kill-two" || options_.fault == "kill-waiting";
    all.resize(two ? 2 : 1);
    return all;
  }

  // Reads the next line of a rank: "epoch size time".
  std::array<std::int64_t, 3> read(Rank& rank, Clock::time_point deadline) const {
    for (;;) {
      if (const auto end = rank.line.find('\n'); end != std::string::npos) {
        std::array<std::int64_t, 3> result{};
        const std::string line = rank.line.substr(0, end);
        rank.line.erase(0, end + 1);
        if (std::sscanf(line.c_str(), "%ld %ld %ld", &result[0], &result[1], &result[2]) != 3)
          throw std::runtime_error("a rank reports: " + line);
        return result;
      }
      const auto left = std::chrono::ceil<milliseconds>(deadline - Clock::now()).count();
      pollfd item{rank.from, POLLIN, 0};
      if (left <= 0 || ::poll(&item, 1, static_cast<int>(left)) <= 0)
        throw std::runtime_error(fmt::format("process {} runs no collective", rank.pid));
      std::array<char, 256> piece{};
      const ssize_t count = ::read(rank.from, piece.data(), piece.size());
      if (count <= 0) throw std::runtime_error(fmt::format("process {} has ended", rank.pid));
      rank.line.append(piece.data(), static_cast<std::size_t>(count));
    }
  }

  void wait_for_epoch(std::int64_t epoch) {
    const auto deadline = Clock::now() + limit;
    for (auto& [number, rank] : ranks_)
      while (read(rank, deadline)[0] < epoch) continue;
  }

  // Waits until each rank has run a collective in an epoch of `size` ranks. Returns the latest
  // time.
  Clock::time_point wait_for_size(int size) {
    const auto deadline = Clock::now() + limit;
    std::int64_t last = 0;
    for (auto& [number, rank] : ranks_) {
      auto report = read(rank, deadline);
      while (report[1] != size) report = read(rank, deadline);
      last = std::max(last, report[2]);
    }
    return Clock::time_point(Clock::duration(last));
  }

  // A rank that was stopped must end with an error when it continues, because its epoch is over.
  static void expect_error(Rank& rank) {
    ::kill(rank.pid, SIGCONT);
    int status = 0;
    for (int tries = 0; ::waitpid(rank.pid, &status, WNOHANG) == 0; ++tries) {
      if (tries == 100) ::kill(rank.pid, SIGKILL);
      std::this_thread::sleep_for(100ms);
    }
    ::close(rank.from);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 4)
      throw std::runtime_error("a stopped rank did not end with the error of its epoch");
  }

  Options options_;
  std::unique_ptr<atoll::StoreServer> server_;
  std::map<int, Rank> ranks_;
};

std::size_t shared_memory_names() {
  std::size_t count = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/dev/shm"))
    count += entry.path().filename().string().starts_with("atoll");
  return count;
}

int run_trials(const Options& options, const std::string& program) {
  std::mt19937 random(options.seed);
  std::vector<double> times;
  int failed = 0;
  const std::size_t names = shared_memory_names();
  while (static_cast<int>(times.size()) + failed < options.trials) {
    try {
      Job job(options, program);
      while (job.can_go_on() && static_cast<int>(times.size()) + failed < options.trials)
        times.push_back(job.meet(random));
    } catch (const std::exception& problem) {
      ++failed;
      fmt::print("trial {}: {}\n", times.size() + static_cast<std::size_t>(failed), problem.what());
    }
  }
  std::ranges::sort(times);
  const double median = times.empty() ? 0 : times[times.size() / 2];
  fmt::print(
      "{:14} {:4} ranks {:2} hosts {:4} trials {:3} failed  median {:6.3f} s  worst {:6.3f} s  "
      "left over {} names\n",
      options.fault, options.ranks, options.hosts, options.trials, failed, median,
      times.empty() ? 0.0 : times.back(), shared_memory_names() - names);
  return failed == 0 ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  const std::span<char*> words(argv, static_cast<std::size_t>(argc));
  if (argc == 2 && words[1] == std::string("--rank")) return run_rank(0, 0, "", "");
  if (argc == 6 && words[1] == std::string("--rank")) {
    try {
      return run_rank(std::atoi(words[2]), std::atoi(words[3]), words[4], words[5]);
    } catch (const atoll::Error& error) {
      fmt::print(stderr, "rank {}: {}\n", words[2], error.what());
      return 4;
    }
  }
  Options options;
  for (std::size_t i = 1; i + 1 < words.size(); i += 2) {
    const std::string name = words[i];
    if (name == "--fault") options.fault = words[i + 1];
    if (name == "--trials") options.trials = std::atoi(words[i + 1]);
    if (name == "--ranks") options.ranks = std::atoi(words[i + 1]);
    if (name == "--hosts") options.hosts = std::atoi(words[i + 1]);
    if (name == "--seed") options.seed = static_cast<unsigned>(std::atoi(words[i + 1]));
  }
  atoll::log::set_level(atoll::log::level_from_name("error"));
  return run_trials(options, std::filesystem::read_symlink("/proc/self/exe"));
}
