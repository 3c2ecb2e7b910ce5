// PMI-1, the protocol of MPICH's process manager Hydra, which Slurm's pmi2 plugin supports as well.
// The launcher passes a socket in PMI_FD. Each request is a line `cmd=name key=value ...`, and each
// answer is another line. The format is described in "PMI: A Scalable Parallel Process-Management
// Interface for Extreme-Scale Systems" (Balaji et al.); details follow what both launchers send.
//
// A put is visible to other ranks after a barrier. Creating a World is therefore a barrier here,
// and an absent rank cannot be named.
//
// The socket belongs to the process, and an MPI library may use it before, after and between
// Worlds. Hydra treats a process that exits without "finalize" as crashed and stops the others, and
// it answers nothing after "finalize". Atoll therefore sends "finalize" at process exit, which has
// no effect if MPI_Finalize has already sent it. Slurm requires "init" first and does not answer a
// second one, so under Slurm MPI_Init must come before World.
#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <exception>

#include "atoll/error.hpp"
#include "core/parse.hpp"
#include "world/launch.hpp"

namespace atoll_v1::atoll::launch {
namespace {

using net::Clock;

// Returns the value of the field `name` in a PMI line "cmd=x name=value ...", or "" if the line
// does not contain this field.
std::string_view field(std::string_view line, std::string_view name) {
  for (const std::string_view word : split(line, ' ')) {
    if (word.size() > name.size() && word.starts_with(name) && word[name.size()] == '=') {
      return word.substr(name.size() + 1);
    }
  }
  return {};
}

class PmiSession {
 public:
  static PmiSession& of_process(int socket) {
    static PmiSession session(socket);
    return session;
  }

  // Duplicates the descriptor, because MPI_Finalize closes the original, and the system may then
  // reuse its number for another file.
  explicit PmiSession(int socket) : socket_(::fcntl(socket, F_DUPFD_CLOEXEC, 0)) {
    if (!socket_) fail(ErrorCode::io, "the file descriptor in PMI_FD is not open");
  }
  ~PmiSession() {
    // A forked child must not end the PMI session of its parent.
    if (name_space_.empty() || owner_ != ::getpid()) return;
    try {
      ask("cmd=finalize", "finalize_ack", Clock::now() + std::chrono::seconds(1));
    } catch (const std::exception&) {
      // An MPI library of this process has already ended the PMI session.
    }
  }
  PmiSession(const PmiSession&) = delete;
  PmiSession& operator=(const PmiSession&) = delete;

  // Returns the name of the job's key-value space, and starts the PMI session at the first call.
  const std::string& name_space(Clock::time_point deadline) {
    if (!name_space_.empty()) return name_space_;
    send("cmd=init pmi_version=1 pmi_subversion=1", deadline);
    const auto patience = std::min(deadline, Clock::now() + std::chrono::seconds(2));
    if (net::wait_for(socket_.get(), POLLIN, patience)) expect("response_to_init", deadline);
    name_space_ = field(ask("cmd=get_my_kvsname", "my_kvsname", deadline), "kvsname");
    return name_space_;
  }

  std::string ask(const std::string& line, std::string_view answer, Clock::time_point deadline) {
    send(line, deadline);
    return expect(answer, deadline);
  }

 private:
  void send(const std::string& line, Clock::time_point deadline) {
    try {
      net::send_all(socket_.get(), line + '\n', deadline);
    } catch (const Error& error) {
      if (error.code() == ErrorCode::timeout)
        fail(ErrorCode::timeout, "the launcher did not read a request in time");
      fail(ErrorCode::io, "the launcher has closed PMI_FD");
    }
  }

  std::string expect(std::string_view answer, Clock::time_point deadline) {
    for (;;) {
      const std::string line = read_line(deadline);
      const std::string_view command = field(line, "cmd");
      // Skips a late answer to the request "init".
      if (command == "response_to_init" && answer != command) continue;
      const std::string_view status = field(line, "rc");
      if (command != answer || (!status.empty() && status != "0")) {
        fail(ErrorCode::backend,
             fmt::format("the launcher answered \"{}\" instead of {}", line, answer));
      }
      return line;
    }
  }

  // Reads single bytes, because data after the line may be meant for an MPI library.
  std::string read_line(Clock::time_point deadline) {
    constexpr std::size_t longest = 4096;
    std::string line;
    for (char c = 0; line.size() < longest;) {
      if (!net::wait_for(socket_.get(), POLLIN, deadline)) {
        fail(ErrorCode::timeout, "some rank did not join the job in time");
      }
      const ssize_t count = ::read(socket_.get(), &c, 1);
      if (count < 0 && (errno == EINTR || errno == EAGAIN)) continue;
      if (count <= 0) fail(ErrorCode::io, "the launcher has closed PMI_FD");
      if (c == '\n') return line;
      line += c;
    }
    fail(ErrorCode::bad_data, "the launcher sent an answer of more than 4096 bytes");
  }

  [[noreturn]] static void fail(ErrorCode code, std::string_view why) {
    throw Error(code, fmt::format("PMI: {}", why));
  }

  net::Fd socket_;
  pid_t owner_ = ::getpid();
  std::string name_space_;
};

Rendezvous pmi_rendezvous(int socket) {
  PmiSession& session = PmiSession::of_process(socket);
  const std::string key = next_key();
  const auto publish = [&session, key](const std::string& text, Clock::time_point deadline) {
    const std::string& space = session.name_space(deadline);
    session.ask(fmt::format("cmd=put kvsname={} key={} value={}", space, key, text), "put_result",
                deadline);
    session.ask("cmd=barrier_in", "barrier_out", deadline);
  };
  const auto look_up = [&session, key](Clock::time_point deadline) {
    const std::string& space = session.name_space(deadline);
    session.ask("cmd=barrier_in", "barrier_out", deadline);
    const std::string line =
        session.ask(fmt::format("cmd=get kvsname={} key={}", space, key), "get_result", deadline);
    return std::string(field(line, "value"));
  };
  return {publish, look_up};
}

}  // namespace

std::optional<Job> find_pmi(const Config& config) {
  const std::optional<int> socket = number("PMI_FD", 0);
  const std::optional<int> rank = number("PMI_RANK", 0);
  const std::optional<int> size = number("PMI_SIZE", 1);
  if (!socket || !rank || !size) return std::nullopt;
  Job job{"pmi", *rank, *size, configured_endpoint(config)};
  if (job.size > 1 && !job.agreed) job.rendezvous = pmi_rendezvous(*socket);
  return job;
}

}  // namespace atoll_v1::atoll::launch
