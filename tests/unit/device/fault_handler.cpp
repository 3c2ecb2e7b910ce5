// The handler of SIGSEGV passes faults at unguarded addresses on, also if handlers form a ring.
// Each case is a child process.
#include "device/checked/fault_handler.hpp"

#include <doctest/doctest.h>
#include <setjmp.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <functional>
#include <string>
#include <utility>

#include "unit/child_process.hpp"

using atoll::checked::install_fault_handler;

namespace {

struct sigaction saved {};  // the handler that `chaining` has replaced
sigjmp_buf recovery;

void write_text(const char* text, std::size_t count) {
  [[maybe_unused]] const ssize_t written = ::write(STDOUT_FILENO, text, count);
}

// A handler as other libraries install it: it passes the fault to the handler that it replaced.
void chaining(int number, siginfo_t* info, void* context) {
  write_text("chaining ", 9);
  if ((saved.sa_flags & SA_SIGINFO) != 0) return saved.sa_sigaction(number, info, context);
  ::signal(number, SIG_DFL);
}

void last(int) {
  write_text("last", 4);
  ::_exit(7);
}

void recovering(int, siginfo_t*, void*) { ::siglongjmp(recovery, 1); }

void install_chaining() {
  struct sigaction action {};
  action.sa_sigaction = chaining;
  action.sa_flags = SA_SIGINFO;
  ::sigaction(SIGSEGV, &action, &saved);
}

bool never(std::uintptr_t) { return false; }

void fault() {
  void* const page = ::mmap(nullptr, 1, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  *static_cast<volatile int*>(page) = 1;
}

// Returns the status of waitpid() and the output of a child process that calls `body`.
std::pair<int, std::string> end_of(const std::function<void()>& body) {
  atoll_test::ChildProcess child([&](int out) {
    const rlimit no_core{0, 0};
    ::setrlimit(RLIMIT_CORE, &no_core);
    ::signal(SIGSEGV, SIG_DFL);
    ::dup2(out, STDOUT_FILENO);
    body();
  });
  const std::string text = child.rest().substr(0, 4096);
  return {child.status(), text};
}

}  // namespace

TEST_CASE("fault handler: a ring of two handlers ends with the default action") {
  const auto [status, text] = end_of([] {
    install_fault_handler(never);
    install_chaining();  // passes faults to the first handler
    install_fault_handler(never);
    fault();
  });
  CHECK((WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV));
  CHECK(text == "chaining ");
}

TEST_CASE("fault handler: a ring passes the fault to the handler that was first") {
  const auto [status, text] = end_of([] {
    ::signal(SIGSEGV, last);
    install_fault_handler(never);
    for (int i = 0; i < 20; ++i) {
      install_chaining();
      install_fault_handler(never);
    }
    fault();
  });
  CHECK((WIFEXITED(status) && WEXITSTATUS(status) == 7));
  CHECK(text == "chaining last");
}

TEST_CASE("fault handler: a program may leave its handler by a jump, many times") {
  const auto [status, text] = end_of([] {
    struct sigaction action {};
    action.sa_sigaction = recovering;
    action.sa_flags = SA_SIGINFO;
    ::sigaction(SIGSEGV, &action, nullptr);
    install_fault_handler(never);
    static int recovered = 0;
    // Each jump lands here again.
    if (sigsetjmp(recovery, 1) != 0) ++recovered;
    if (recovered < 100) fault();
    ::_exit(recovered == 100 ? 3 : 4);
  });
  CHECK((WIFEXITED(status) && WEXITSTATUS(status) == 3));
  CHECK(text.empty());
}
