#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cctype>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <map>
#include <sstream>
#include <string>

#include "atoll/config.hpp"
#include "atoll/error.hpp"
#include "core/log.hpp"
#include "unit/error_text.hpp"

namespace {

// A temporary file that the destructor removes.
class TemporaryFile {
 public:
  explicit TemporaryFile(const std::string& text) {
    const int fd = ::mkstemp(path_.data());
    REQUIRE(fd >= 0);
    REQUIRE(::write(fd, text.data(), text.size()) == static_cast<ssize_t>(text.size()));
    ::close(fd);
  }
  ~TemporaryFile() { ::unlink(path_.c_str()); }
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;

  const std::string& path() const { return path_; }
  std::string text() const {
    std::ostringstream all;
    all << std::ifstream(path_).rdbuf();
    return all.str();
  }

 private:
  std::string path_ = "/tmp/atoll-config-XXXXXX";
};

using Values = std::map<std::string, std::string>;

// Sets environment variables in the constructor and unsets them in the destructor.
class Environment {
 public:
  explicit Environment(const Values& values) : values_(values) {
    for (const auto& [name, value] : values_) ::setenv(name.c_str(), value.c_str(), 1);
  }
  ~Environment() {
    for (const auto& [name, value] : values_) ::unsetenv(name.c_str());
  }
  Environment(const Environment&) = delete;
  Environment& operator=(const Environment&) = delete;

 private:
  Values values_;
};

// Runs `action` and returns the text that it writes to stderr.
template <class Action>
std::string logged(Action action) {
  const TemporaryFile file("");
  const int saved = ::dup(STDERR_FILENO);
  const int fd = ::open(file.path().c_str(), O_WRONLY | O_APPEND);
  ::dup2(fd, STDERR_FILENO);
  action();
  std::fflush(stderr);
  ::dup2(saved, STDERR_FILENO);
  ::close(fd);
  ::close(saved);
  return file.text();
}

// Returns the text of an Error(invalid_argument), or "".
std::string problem_of(const std::string& variable, const std::string& value) {
  const std::string error = atoll_test::error_of([&] { atoll::Config().set(variable, value); });
  if (error == "no error") return "";
  const std::string code = "invalid argument: ";
  CHECK(error.starts_with(code));
  return error.substr(code.size());
}

std::string error_from_env() {
  return atoll_test::error_of([] { atoll::Config::from_env(); });
}

}  // namespace

TEST_CASE("the environment overrides the file, which overrides the defaults") {
  const TemporaryFile file(
      "# a comment\n"
      "timeout = 7\n"
      "\n"
      "  backend=host  # and one at the end\n"
      "ATOLL_ISLANDS = 2\n");
  const Environment environment(Values{{"ATOLL_CONFIG", file.path()}, {"ATOLL_TIMEOUT", "9"}});
  const atoll::Config config = atoll::Config::from_env();
  CHECK(config.timeout.count() == 9);
  CHECK(config.backend == "host");
  CHECK(config.islands == 2);
  CHECK(config.rendezvous_timeout.count() == 60);
  CHECK(config.rank == -1);
}

TEST_CASE("every variable of the table can be set by both of its names") {
  const std::map<std::string_view, std::string> values{{"ATOLL_LOG", "warn"},
                                                       {"ATOLL_DETERMINISTIC", "1"},
                                                       {"ATOLL_CHECK", "lifetimes"},
                                                       {"ATOLL_PARENT", "ignore"},
                                                       {"ATOLL_TCP_CHECKSUM", "crc32c"}};
  int settable = 0;
  for (const atoll::ConfigEntry& entry : atoll::config_entries()) {
    CHECK_FALSE(entry.meaning.empty());
    if (entry.variable == "ATOLL_CONFIG") continue;
    const std::string value = values.contains(entry.variable) ? values.at(entry.variable) : "3";
    std::string name(entry.variable.substr(6));
    for (char& c : name) c = static_cast<char>(std::tolower(c));
    atoll::Config by_variable, by_name;
    by_variable.set(entry.variable, value);
    by_name.set(name, value);
    CHECK(atoll::describe(by_variable) == atoll::describe(by_name));
    CHECK(atoll::describe(by_variable) != atoll::describe(atoll::Config()));
    ++settable;
  }
  CHECK(settable == 26);
}

TEST_CASE("a value that does not parse is an error with the name of the variable") {
  CHECK(problem_of("ATOLL_RANK", "two") ==
        "ATOLL_RANK=\"two\": expected a whole number from -1 to 1048576");
  CHECK(problem_of("timeout", "10s").find("ATOLL_TIMEOUT=\"10s\"") == 0);
  CHECK(problem_of("timeout", "0") != "");
  CHECK(problem_of("timeout", "") != "");
  CHECK(problem_of("port", "65536") != "");
  CHECK(problem_of("threads", "99999999999999999999") != "");
  CHECK(problem_of("log", "loud").find("ATOLL_LOG=\"loud\"") == 0);
  CHECK(problem_of("check", "lifetime") ==
        "ATOLL_CHECK=\"lifetime\": expected \"lifetimes\", or nothing");
  CHECK(problem_of("check", "") == "");
  CHECK(problem_of("parent", "die") ==
        "ATOLL_PARENT=\"die\": expected \"end\", \"parent\", \"ignore\", or nothing");
  CHECK(problem_of("parent", "ignore") == "");
  CHECK(problem_of("tcp_checksum", "md5") ==
        "ATOLL_TCP_CHECKSUM=\"md5\": expected \"off\", \"crc32c\", or nothing");
  CHECK(problem_of("tcp_checksum", "off") == "");
  CHECK(problem_of("cut_timeout", "0") != "");
  CHECK(problem_of("tiemout", "1") == "unknown setting tiemout; did you mean ATOLL_TIMEOUT?");
  CHECK(problem_of("ATOLL_CONFIG", "x") != "");
}

TEST_CASE("a token may contain the character that begins comments") {
  const TemporaryFile file(
      "token = a#b##c # the secret\n"
      "  # timeout = 3\n"
      "backend = host\t# after a tab\n");
  const Environment environment(Values{{"ATOLL_CONFIG", file.path()}});
  const atoll::Config config = atoll::Config::from_env();
  CHECK(config.token == "a#b##c");
  CHECK(config.backend == "host");
  CHECK(config.timeout == atoll::Config().timeout);
}

TEST_CASE("a folder, a pipe and a huge file are no files of settings") {
  const auto problem = [](const std::string& path) -> std::string {
    const Environment environment(Values{{"ATOLL_CONFIG", path}});
    return error_from_env();
  };
  const TemporaryFile taken(""), huge(std::string((1 << 20) + 1, '#'));
  const std::string pipe = taken.path() + ".pipe";
  REQUIRE(::mkfifo(pipe.c_str(), 0600) == 0);
  CHECK(problem("/tmp") ==
        "input/output error: ATOLL_CONFIG=/tmp: is a folder; name a regular file");
  CHECK(problem(pipe) ==
        "input/output error: ATOLL_CONFIG=" + pipe + ": is no regular file; name a regular file");
  CHECK(problem("/dev/zero") ==
        "input/output error: ATOLL_CONFIG=/dev/zero: is no regular file; name a regular file");
  CHECK(problem(huge.path()) == "input/output error: ATOLL_CONFIG=" + huge.path() +
                                    ": is larger than 1 MiB, so it is no file of settings");
  CHECK(problem("/nonexistent/atoll.conf") ==
        "not found: ATOLL_CONFIG=/nonexistent/atoll.conf: cannot open: No such file or directory");
  ::unlink(pipe.c_str());
}

TEST_CASE("a bad line of the file is an error with its number") {
  const TemporaryFile bad_value("rank = 0\n\nsize = many\n");
  const TemporaryFile no_equals("rank 0\n");
  for (const auto& [file, place] :
       {std::pair{&bad_value, ":3: ATOLL_SIZE"}, {&no_equals, ":1: "}}) {
    const Environment environment(Values{{"ATOLL_CONFIG", file->path()}});
    CHECK(error_from_env().starts_with("invalid argument: " + file->path() + place));
  }
  const Environment environment(Values{{"ATOLL_CONFIG", "/nonexistent/atoll.conf"}});
  CHECK_THROWS_AS(atoll::Config::from_env(), atoll::Error);
}

TEST_CASE("control characters in a file of settings are shown as escapes") {
  const auto shown = [](const std::string& text) {
    const TemporaryFile file(text);
    const Environment environment(Values{{"ATOLL_CONFIG", file.path()}});
    std::string problem;
    const std::string warnings = logged([&] { problem = error_from_env(); });
    return warnings + problem;
  };
  CHECK(shown("timeout = \x1b[31m9\n").find(":1: ATOLL_TIMEOUT=\"\\x1b[31m9\"") !=
        std::string::npos);
  CHECK(shown("time\aout = 9\n").find(":1: unknown name time\\x07out; ") != std::string::npos);
  CHECK(problem_of("log", "lo\rud").find("ATOLL_LOG=\"lo\\x0dud\"") == 0);
  CHECK(problem_of("ti\x1bme", "9").find("unknown setting ti\\x1bme; ") == 0);
}

TEST_CASE("an unknown name is warned about with the nearest known one") {
  const TemporaryFile file("bakend = host\n");
  const Environment environment(Values{{"ATOLL_CONFIG", file.path()}, {"ATOLL_TIMOUT", "1"}});
  const std::string text = logged([] { atoll::Config::from_env(); });
  CHECK(text.find("unknown variable ATOLL_TIMOUT; did you mean ATOLL_TIMEOUT?") !=
        std::string::npos);
  CHECK(text.find(file.path() + ":1: unknown name bakend; did you mean backend?") !=
        std::string::npos);
}

TEST_CASE("variables of the tests and benches are not warned about") {
  const Environment environment(Values{{"ATOLL_TEST_X", "1"}, {"ATOLL_BENCH_X", "1"}});
  CHECK(logged([] { atoll::Config::from_env(); }).find("_X") == std::string::npos);
}

TEST_CASE("an unknown name that resembles no known one gets no suggestion") {
  const TemporaryFile file("colour = red\n");
  const Environment environment(Values{{"ATOLL_CONFIG", file.path()}, {"ATOLL_X", "1"}});
  const std::string text = logged([] { atoll::Config::from_env(); });
  CHECK(text.find("unknown variable ATOLL_X; `atoll-topo --env` lists all settings\n") !=
        std::string::npos);
  CHECK(text.find(file.path() + ":1: unknown name colour; `atoll-topo --env` lists all "
                                "settings\n") != std::string::npos);
  CHECK(problem_of("x", "1") == "unknown setting x; `atoll-topo --env` lists all settings");
  CHECK(problem_of("lg", "info") == "unknown setting lg; did you mean ATOLL_LOG?");
}

TEST_CASE("the log has a level and the rank; off is silent") {
  using atoll::log::Level;
  atoll::log::set_level(Level::info);
  atoll::log::set_rank(3);
  const std::string text = logged([] {
    atoll::log::debug("not {}", "this");
    atoll::log::info("but {}", "that");
  });
  CHECK(text.find("atoll info rank 3: but that\n") != std::string::npos);
  CHECK(text.find("not this") == std::string::npos);
  atoll::log::set_level(Level::off);
  CHECK(logged([] { atoll::log::error("nothing"); }).empty());
  atoll::log::set_level(Level::info);
  atoll::log::set_rank(-1);
}

TEST_CASE("the listing hides the token") {
  atoll::Config config;
  config.set("token", "hush-7");
  CHECK(atoll::describe(config).find("hush-7") == std::string::npos);
  CHECK(atoll::describe(config).find("(set)") != std::string::npos);
}
