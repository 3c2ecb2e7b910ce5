// The driver's side of a job. A job runs the ranks of one implementation, which serve requests.
#pragma once

#include <sys/types.h>

#include <string>
#include <utility>
#include <vector>

#include "control.hpp"

namespace atoll_bench {

// A command, and variables that are added to its environment. The output of the command goes to
// stderr.
struct Launch {
  std::vector<std::string> command;
  std::vector<std::pair<std::string, std::string>> environment;
};

// A running job. Its ranks sleep between requests, so that several jobs can exist at once and take
// turns.
class Job {
 public:
  explicit Job(const Launch& launch);
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;
  ~Job();  // the destructor asks the ranks to exit, then kills those that remain

  // Waits until all ranks are ready, because a job that is still starting takes cores from the
  // other jobs. Throws the same errors as measure().
  void await_ranks();
  // Runs one row on all ranks and returns the times. Throws std::runtime_error if a rank fails or
  // does not answer in time. The job cannot be used after an error.
  Answer measure(const Request& request);
  // Describes a wrong result of the last row; returns "" if all results were right.
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
