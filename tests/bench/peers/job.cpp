#include "job.hpp"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <system_error>

namespace atoll_bench {

namespace {

using Clock = std::chrono::steady_clock;
constexpr auto patience = std::chrono::seconds(180);  // longest time to wait for one row
constexpr auto farewell = std::chrono::seconds(5);
constexpr auto tick = std::chrono::milliseconds(100);

[[noreturn]] void become(const Launch& launch, const std::string& control, pid_t driver) {
  ::prctl(PR_SET_PDEATHSIG, SIGTERM);
  if (::getppid() != driver) std::_Exit(1);
  ::dup2(STDERR_FILENO, STDOUT_FILENO);
  ::setenv("BENCH_CONTROL", control.c_str(), 1);
  for (const auto& [name, value] : launch.environment) ::setenv(name.c_str(), value.c_str(), 1);
  std::vector<char*> words;
  for (const std::string& word : launch.command) words.push_back(const_cast<char*>(word.c_str()));
  words.push_back(nullptr);
  ::execvp(words[0], words.data());
  std::fprintf(stderr, "cannot start %s: %s\n", words[0], std::strerror(errno));
  std::_Exit(127);
}

}  // namespace

Job::Job(const Launch& launch) {
  const pid_t driver = ::getpid();
  process_ = ::fork();
  if (process_ < 0) throw std::system_error(errno, std::generic_category(), "fork");
  if (process_ == 0) become(launch, control_.path(), driver);
}

Job::~Job() {
  if (!ended()) send({});
  const auto deadline = Clock::now() + farewell;
  while (!ended() && Clock::now() < deadline) ::usleep(10'000);
  if (ended()) return;
  ::kill(process_, SIGTERM);  // mpirun ends its ranks when it receives SIGTERM
  for (int i = 0; i < 200 && !ended(); ++i) ::usleep(10'000);
  if (ended()) return;
  ::kill(process_, SIGKILL);
  ::waitpid(process_, &status_, 0);
}

void Job::send(const Request& request) {
  control_->request = request;
  control_->requests.fetch_add(1);
  wake_all(control_->requests);
}

bool Job::ended() {
  if (process_ < 0) return true;
  if (::waitpid(process_, &status_, WNOHANG) != process_) return false;
  process_ = -1;
  return true;
}

std::string Job::difference() {
  return control_->wrong.exchange(0) == 1 ? control_->difference.data() : "";
}

void Job::await_ranks() { await_answer(0); }

Answer Job::measure(const Request& request) {
  await_ranks();
  const std::uint32_t before = control_->answers.load();
  send(request);
  await_answer(before);
  return control_->answer;
}

void Job::await_answer(std::uint32_t before) {
  const auto deadline = Clock::now() + patience;
  while (control_->answers.load() == before) {
    check(*control_);
    if (ended()) {
      fail(*control_, "the ranks exited with status " + std::to_string(status_));
    } else if (Clock::now() > deadline) {
      fail(*control_, "no answer after " + std::to_string(patience.count()) + " s");
    }
    wait_for_change(control_->answers, before, tick);
  }
}

}  // namespace atoll_bench
