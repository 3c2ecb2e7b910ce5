// The driver's side: the ranks of one implementation as a job that serves requests.
#pragma once

#include <sys/types.h>

#include <string>
#include <utility>
#include <vector>

#include "control.hpp"

namespace atoll_bench {

// A command and what it finds in its environment beside the caller's; the output goes to stderr.
struct Launch {
  std::vector<std::string> command;
  std::vector<std::pair<std::string, std::string>> environment;
};

// Ranks sleep between requests, so that jobs can stand side by side and take turns.
class Job {
 public:
  explicit Job(const Launch& launch);
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;
  ~Job();  // asks the ranks to end, then makes them

  // Until all ranks are there: a job that is starting takes the cores from others. Throws as
  // measure() does.
  void await_ranks();
  // Throws std::runtime_error when a rank fails or does not come back in time; the job is of no use
  // then.
  Answer measure(const Request& request);
  // What was wrong with the results of the last row; "" if nothing was.
  std::string difference();

 private:
  void send(const Request& request);
  void await_answer(std::uint32_t before);
  bool ended();  // has the process that started the ranks?

  SharedControl control_ = SharedControl::make();
  pid_t process_ = -1;
  int status_ = 0;
};

}  // namespace atoll_bench
