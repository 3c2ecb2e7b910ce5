// The driver's side of a job: the ranks of one implementation, which serve requests.
#pragma once

#include <sys/types.h>

#include <string>
#include <utility>
#include <vector>

#include "control.hpp"

namespace atoll_bench {

// A command and the variables that are added to its environment. Its output goes to stderr.
struct Launch {
  std::vector<std::string> command;
  std::vector<std::pair<std::string, std::string>> environment;
};

// Ranks sleep between requests, so that several jobs can be alive at once and take turns.
class Job {
 public:
  explicit Job(const Launch& launch);
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;
  ~Job();  // asks the ranks to exit, then kills them

  // Waits until all ranks are ready, because a job that is starting takes cores from the others.
  // Throws as measure() does.
  void await_ranks();
  // Throws std::runtime_error when a rank fails or does not answer in time. The job cannot be used
  // after that.
  Answer measure(const Request& request);
  // Describes the wrong results of the last row; "" if there are none.
  std::string difference();

 private:
  void send(const Request& request);
  void await_answer(std::uint32_t before);
  bool ended();  // true when the process that started the ranks has exited

  SharedControl control_ = SharedControl::make();
  pid_t process_ = -1;
  int status_ = 0;
};

}  // namespace atoll_bench
