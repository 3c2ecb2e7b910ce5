// Measures how fast the living ranks of a job go on after a loss, and checks that they do:
//   fault_regroup [--fault FAULT] [--trials N] [--ranks N] [--hosts N] [--seed N]
//   fault_regroup --rank         one rank of a job that a launcher has started
// Ranks loop over collectives and compare each result. At a random instant a fault happens, and
// this program waits until each living rank has run a collective in a later epoch. A job meets
// several faults, until fewer than two ranks or hosts are left; then a new job starts.
//   kill, kill-two, kill-host    kills one rank, two, or all ranks of a host
//   kill-waiting                 kills a second rank while the others regroup
//   stop                         sends SIGSTOP to a rank until the next epoch has begun; the store
//                                notices its silence after 2 s, and the rank then gets an error
//   silence                      a host loses its network; its ranks get an error
//   cut                          two hosts lose each other for 3 s, but not the store; all go on
// The last two run on emulated hosts (network.cpp), with the program atoll-store on a host of its
// own. For the others this process serves the store, as atoll-store does. The times run from the
// fault to the first collective of the last rank. A trial fails if that takes over 20 s, if a
// result is wrong, or if a rank ends that was not meant to.
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
#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "atoll/communicator.hpp"
#include "atoll/log.hpp"
#include "atoll/tooling/store.hpp"

namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr milliseconds limit{20'000};
constexpr int exit_error = 4;  // exit status of a rank that ends with an error of atoll
constexpr const char* token = "faults of epochs";

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
  atoll::Config config = atoll::Config::from_env();
  if (size > 0) {
    config.rank = rank;
    config.size = size;
    config.addr = address;
    config.token = token;
    config.host_id = host;
  }
  config.store = "external";
  config.failure_scope = "communicator";
  if (std::getenv("ATOLL_LOG") == nullptr) config.log = "error";
  if (std::getenv("ATOLL_TIMEOUT") == nullptr) config.timeout = 2s;
  config.rendezvous_timeout = 5s;
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

// --- processes ---

// A child process and the end of a pipe from which its output is read.
struct Child {
  pid_t pid = -1;
  int from = -1;
  int to = -1;  // its input; -1: none
  std::string rest{};

  // Returns the next line of its output.
  std::string line(Clock::time_point deadline) {
    for (;;) {
      if (const auto end = rest.find('\n'); end != std::string::npos) {
        const std::string result = rest.substr(0, end);
        rest.erase(0, end + 1);
        return result;
      }
      const auto left = std::chrono::ceil<milliseconds>(deadline - Clock::now()).count();
      pollfd item{from, POLLIN, 0};
      if (left <= 0 || ::poll(&item, 1, static_cast<int>(left)) <= 0)
        throw std::runtime_error(fmt::format("process {} writes nothing", pid));
      std::array<char, 256> piece{};
      const ssize_t count = ::read(from, piece.data(), piece.size());
      if (count <= 0) throw std::runtime_error(fmt::format("process {} has ended", pid));
      rest.append(piece.data(), static_cast<std::size_t>(count));
    }
  }
  int wait() {
    int status = 0;
    ::waitpid(pid, &status, 0);
    ::close(from);
    if (to >= 0) ::close(to);
    return status;
  }
};

Child start_child(std::vector<std::string> words, bool has_input = false) {
  std::array<int, 2> out{}, in{-1, -1};
  if (::pipe2(out.data(), O_CLOEXEC) != 0 || (has_input && ::pipe2(in.data(), O_CLOEXEC) != 0))
    throw std::runtime_error("no pipe");
  const pid_t pid = ::fork();
  if (pid == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    ::dup2(out[1], STDOUT_FILENO);
    if (has_input) ::dup2(in[0], STDIN_FILENO);
    std::vector<char*> pointers;
    for (std::string& word : words) pointers.push_back(word.data());
    pointers.push_back(nullptr);
    ::execvp(pointers[0], pointers.data());
    ::_exit(127);
  }
  ::close(out[1]);
  if (has_input) ::close(in[0]);
  return {pid, out[0], in[1]};
}

std::size_t shared_memory_names(const std::filesystem::path& root) {
  std::size_t count = 0;
  for (const auto& entry : std::filesystem::directory_iterator(root / "dev/shm"))
    count += entry.path().filename().string().starts_with("atoll");
  return count;
}

// The hosts of the jobs: this machine under several names, or emulated hosts with a network.
class Hosts {
 public:
  Hosts() = default;
  // `count` hosts for ranks and one for the store.
  Hosts(const std::filesystem::path& folder, int count)
      : network_(start_child({folder / "fault_network", std::to_string(count + 1)}, true)) {
    std::istringstream pids(network_.line(Clock::now() + limit));
    for (int pid = 0; pids >> pid;) pids_.push_back(pid);
    if (pids_.size() != static_cast<std::size_t>(count) + 1)
      throw std::runtime_error("the emulated hosts did not start");
  }
  ~Hosts() {
    if (network_.pid < 0) return;
    ::close(std::exchange(network_.to, -1));
    network_.wait();
  }
  Hosts(const Hosts&) = delete;
  Hosts& operator=(const Hosts&) = delete;

  bool are_emulated() const { return !pids_.empty(); }
  // Starts a program on a host.
  Child start(int host, std::vector<std::string> words) const {
    if (are_emulated()) {
      const std::string pid = std::to_string(pids_.at(static_cast<std::size_t>(host)));
      words.insert(words.begin(), {"nsenter", "-t", pid, "-n", "-u", "-i", "-m", "--"});
    }
    return start_child(std::move(words));
  }
  // Sends a command of network.cpp.
  void command(const std::string& text) {
    const std::string line = text + '\n';
    if (::write(network_.to, line.data(), line.size()) < 0 ||
        network_.line(Clock::now() + limit) != "ok")
      throw std::runtime_error("the emulated network has ended");
  }
  std::size_t names_in_memory() const {
    if (!are_emulated()) return shared_memory_names("/");
    std::size_t count = 0;
    for (const int pid : pids_) count += shared_memory_names(fmt::format("/proc/{}/root", pid));
    return count;
  }

 private:
  Child network_;
  std::vector<int> pids_;
};

// --- the job ---

struct Rank {
  Child child;
  int host = 0;
};

class Job {
 public:
  Job(const Options& options, const std::filesystem::path& program, Hosts& hosts)
      : options_(options), hosts_(hosts) {
    if (hosts.are_emulated()) {
      hosts.command("clear");
      store_ =
          hosts.start(options.hosts, {program.parent_path().parent_path() / "bin/atoll-store",
                                      "--address", fmt::format("198.18.0.{}:0", options.hosts + 1),
                                      "--ranks", std::to_string(options.ranks)});
      address_ = store_.line(Clock::now() + limit);
    } else {
      server_ = std::make_unique<atoll::StoreServer>(
          atoll::StoreServer::Options{.address = "127.0.0.1:0",
                                      .token = token,
                                      .ranks = options.ranks,
                                      .heartbeat = options.fault == "stop" ? 2s : 10s});
      address_ = server_->address();
    }
    for (int number = 0; number < options.ranks; ++number) {
      const int host = number * options.hosts / options.ranks;
      ranks_[number] = {
          hosts.start(host, {program, "--rank", std::to_string(number),
                             std::to_string(options.ranks), address_, fmt::format("h{}", host)}),
          host};
    }
    wait_for_size(options.ranks, {});
  }
  ~Job() {
    for (const auto& [number, rank] : ranks_) ::kill(rank.child.pid, SIGKILL);
    while (!ranks_.empty()) forget(ranks_.begin()->first);
    if (server_) server_->wait();
    if (store_.pid < 0) return;
    ::kill(store_.pid, SIGKILL);
    store_.wait();
  }
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  bool can_go_on() const { return hosts().size() > 1 && ranks_.size() > 3; }

  // Returns the time from the fault until the last living rank has run a collective.
  double meet(std::mt19937& random) {
    const auto pause = std::uniform_int_distribution(0, 150'000)(random);
    std::this_thread::sleep_for(std::chrono::microseconds(pause));
    const std::vector<int> victims = choose(random);
    const auto begin = Clock::now();
    std::vector<Rank> gone;
    if (options_.fault == "cut") {
      cut(victims);
    } else {
      gone = lose(victims, random);
    }
    const auto end = wait_for_size(static_cast<int>(ranks_.size()), begin);
    for (Rank& rank : gone) expect_error(rank);
    return std::chrono::duration<double>(end - begin).count();
  }

 private:
  // Separates the hosts of two ranks for a while.
  void cut(const std::vector<int>& pair) {
    hosts_.command(
        fmt::format("cut {} {}", ranks_.at(pair.front()).host, ranks_.at(pair.back()).host));
    std::this_thread::sleep_for(3s);
    hosts_.command("clear");
  }

  // Returns the victims that still exist.
  std::vector<Rank> lose(const std::vector<int>& victims, std::mt19937& random) {
    std::vector<Rank> gone;
    if (options_.fault == "silence")
      hosts_.command(fmt::format("silence {}", ranks_.at(victims.front()).host));
    for (const int victim : victims) {
      const bool stays = options_.fault == "stop" || options_.fault == "silence";
      if (options_.fault != "silence")
        ::kill(ranks_.at(victim).child.pid, stays ? SIGSTOP : SIGKILL);
      if (stays)
        gone.push_back(std::move(ranks_.extract(victim).mapped()));
      else
        forget(victim);
      if (options_.fault != "kill-waiting" || victim == victims.back()) continue;
      std::this_thread::sleep_for(
          std::chrono::microseconds(std::uniform_int_distribution(0, 40'000)(random)));
    }
    return gone;
  }

  void forget(int number) { ranks_.extract(number).mapped().child.wait(); }

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
    if (options_.fault == "cut") {  // the victims are a rank of each of two hosts
      const int host = ranks_.at(all.front()).host;
      const auto other =
          std::ranges::find_if(all, [&](int number) { return ranks_.at(number).host != host; });
      return {all.front(), *other};
    }
    if (options_.fault == "kill-host" || options_.fault == "silence") {
      const int host = ranks_.at(all.front()).host;
      std::erase_if(all, [&](int number) { return ranks_.at(number).host != host; });
      return all;
    }
    const bool two = options_.fault == "kill-two" || options_.fault == "kill-waiting";
    all.resize(two ? 2 : 1);
    return all;
  }

  // Waits until each rank has run a collective in an epoch of `size` ranks that began after
  // `begin`.
  // Returns the latest time.
  Clock::time_point wait_for_size(int size, Clock::time_point begin) {
    const auto deadline = Clock::now() + limit;
    const std::int64_t earliest = begin.time_since_epoch().count();
    std::int64_t last = 0;
    for (auto& [number, rank] : ranks_) {
      std::int64_t epoch = 0, ranks = 0, time = 0;
      while (ranks != size || time <= earliest) {
        const std::string line = rank.child.line(deadline);
        if (std::sscanf(line.c_str(), "%ld %ld %ld", &epoch, &ranks, &time) != 3)
          throw std::runtime_error("a rank reports: " + line);
      }
      last = std::max(last, time);
    }
    return Clock::time_point(Clock::duration(last));
  }

  // A rank that was stopped, or that cannot reach the store, must end with an error.
  static void expect_error(Rank& rank) {
    ::kill(rank.child.pid, SIGCONT);
    siginfo_t ended{};
    for (int tries = 0; ended.si_pid == 0; ++tries) {
      if (tries == 200) ::kill(rank.child.pid, SIGKILL);
      std::this_thread::sleep_for(100ms);
      ::waitid(P_PID, static_cast<id_t>(rank.child.pid), &ended, WEXITED | WNOHANG | WNOWAIT);
    }
    const int status = rank.child.wait();
    if (!WIFEXITED(status) || WEXITSTATUS(status) != exit_error)
      throw std::runtime_error("a rank that is not in the epoch did not end with an error");
  }

  Options options_;
  Hosts& hosts_;
  std::unique_ptr<atoll::StoreServer> server_;  // null if `store_` is the store
  Child store_;
  std::string address_;
  std::map<int, Rank> ranks_;
};

// Starts this program again in namespaces of its own, which end with it. If that is impossible,
// prints the reason and returns 77.
int enter_namespaces(char** argv) {
  std::vector<char*> words;
  for (const char* word :
       {"unshare", "--pid", "--fork", "--kill-child", "--mount-proc", "--mount", "--net"})
    words.push_back(const_cast<char*>(word));
  for (; *argv != nullptr; ++argv) words.push_back(*argv);
  words.push_back(nullptr);
  ::setenv("FAULTS_INSIDE", "1", 1);
  if (::geteuid() == 0 && ::access("/dev/net/tun", F_OK) == 0) ::execvp(words[0], words.data());
  fmt::print("skipped: emulated hosts need root, unshare and /dev/net/tun\n");
  return 77;
}

int run_trials(const Options& options, const std::filesystem::path& program, Hosts& hosts) {
  std::mt19937 random(options.seed);
  std::vector<double> times;
  int failed = 0;
  const std::size_t names = hosts.names_in_memory();
  while (static_cast<int>(times.size()) + failed < options.trials) {
    try {
      Job job(options, program, hosts);
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
      times.empty() ? 0.0 : times.back(), hosts.names_in_memory() - names);
  // On this machine, other jobs may make files in /dev/shm at the same time.
  const bool is_clean = !hosts.are_emulated() || hosts.names_in_memory() == names;
  return failed == 0 && is_clean ? 0 : 1;
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
      return exit_error;
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
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe");
  if (options.fault == "stop") ::setenv("ATOLL_TIMEOUT", "20", 1);
  if (options.fault != "silence" && options.fault != "cut") {
    Hosts here;
    return run_trials(options, program, here);
  }
  if (std::getenv("FAULTS_INSIDE") == nullptr) return enter_namespaces(argv);
  for (const char* name : {"ATOLL_TOKEN", "ATOLL_CUT_TIMEOUT", "ATOLL_HEARTBEAT"})
    ::setenv(name, name == std::string_view("ATOLL_TOKEN") ? token : "2", 1);
  Hosts emulated(program.parent_path(), options.hosts);
  return run_trials(options, program, emulated);
}
