#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cctype>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>
#include <string_view>

#include "atoll/config.hpp"
#include "unit/error_text.hpp"
#include "unit/train/data_temporary.hpp"

using atoll_test::error_of;
using atoll_test::has;
using train_test::TemporaryFolder;

namespace {

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
  const TemporaryFolder folder;
  const auto path = folder.write("log", "");
  const int saved = ::dup(STDERR_FILENO);
  const int fd = ::open(path.c_str(), O_WRONLY | O_APPEND);
  ::dup2(fd, STDERR_FILENO);
  action();
  std::fflush(stderr);
  ::dup2(saved, STDERR_FILENO);
  ::close(fd);
  ::close(saved);
  return TemporaryFolder::read(path);
}

// A file of settings that ATOLL_CONFIG names, beside other variables.
class SettingsFile {
 public:
  explicit SettingsFile(const std::string& text, Values others = {})
      : path_(folder_.write("settings", text).string()),
        environment_((others["ATOLL_CONFIG"] = path_, others)) {}
  const std::string& path() const { return path_; }

 private:
  TemporaryFolder folder_;
  std::string path_;
  Environment environment_;
};

std::string problem_of(const std::string& variable, const std::string& value) {
  return error_of([&] { atoll::Config().set(variable, value); });
}

std::string error_from_env() {
  return atoll_test::error_of([] { atoll::Config::from_env(); });
}

}  // namespace

TEST_CASE("the environment overrides the file, which overrides the defaults") {
  const SettingsFile file(
      "# a comment\n"
      "timeout = 7\n"
      "\n"
      "  backend=host  # and one at the end\n"
      "ATOLL_ISLANDS = 2\n",
      {{"ATOLL_TIMEOUT", "9"}});
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
                                                       {"ATOLL_FAILURE_SCOPE", "job"},
                                                       {"ATOLL_OWNS_PROCESS", "1"},
                                                       {"ATOLL_PARENT", "ignore"},
                                                       {"ATOLL_TCP_CHECKSUM", "crc32c"},
                                                       {"ATOLL_STORE", "external"}};
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
  }
}

TEST_CASE("a value that does not parse is an error with the name of the variable") {
  struct Wrong {
    const char *name, *value, *error;
  };
  for (const auto& [name, value, error] :
       {Wrong{"ATOLL_RANK", "two",
              "ATOLL_RANK=\"two\": expected a whole number from -1 to 1048576"},
        {"timeout", "10s", "ATOLL_TIMEOUT=\"10s\": "},
        {"timeout", "0", "ATOLL_TIMEOUT"},
        {"timeout", "", "ATOLL_TIMEOUT"},
        {"port", "65536", "ATOLL_PORT"},
        {"threads", "99999999999999999999", "ATOLL_THREADS"},
        {"cut_timeout", "0", "ATOLL_CUT_TIMEOUT"},
        {"log", "loud", "ATOLL_LOG=\"loud\": "},
        {"log", "lo\rud", "ATOLL_LOG=\"lo\\x0dud\""},
        {"check", "lifetime", "ATOLL_CHECK=\"lifetime\": expected \"lifetimes\", or nothing"},
        {"parent", "die", "expected \"end\", \"parent\", \"ignore\", or nothing"},
        {"tcp_checksum", "md5", "expected \"off\", \"crc32c\", or nothing"},
        {"ATOLL_CONFIG", "x", "invalid argument: "},
        {"tiemout", "1", "unknown setting tiemout; did you mean ATOLL_TIMEOUT?"},
        {"lg", "info", "unknown setting lg; did you mean ATOLL_LOG?"},
        {"x", "1", "unknown setting x; `atoll-topo --env` lists all settings"},
        {"ti\x1bme", "9", "unknown setting ti\\x1bme; "}}) {
    CHECK(has(problem_of(name, value), {"invalid argument: ", error}));
  }
  for (const auto& [name, value] :
       Values{{"check", ""}, {"parent", "ignore"}, {"tcp_checksum", "off"}}) {
    CHECK(problem_of(name, value) == "no error");
  }
}

TEST_CASE("a token may contain the character that begins comments") {
  const SettingsFile file(
      "token = a#b##c # the secret\n"
      "  # timeout = 3\n"
      "backend = host\t# after a tab\n");
  const atoll::Config config = atoll::Config::from_env();
  CHECK(config.token == "a#b##c");
  CHECK(config.backend == "host");
  CHECK(config.timeout == atoll::Config().timeout);
}

TEST_CASE("a folder, a pipe and a huge file are no files of settings") {
  const TemporaryFolder folder;
  const std::string pipe = (folder.path() / "pipe").string();
  REQUIRE(::mkfifo(pipe.c_str(), 0600) == 0);
  const std::string huge = folder.write("huge", std::string((1 << 20) + 1, '#')).string();
  for (const auto& [path, problem] : Values{{"/tmp", "is a folder; name a regular file"},
                                            {pipe, "is no regular file; name a regular file"},
                                            {"/dev/zero", "is no regular file"},
                                            {huge, "is larger than 1 MiB"},
                                            {"/nonexistent/atoll.conf", "cannot open: No such"}}) {
    const Environment environment(Values{{"ATOLL_CONFIG", path}});
    CHECK(has(error_from_env(), "ATOLL_CONFIG=" + path + ": " + problem));
  }
}

TEST_CASE("a bad line of the file is an error with its number") {
  for (const auto& [text, place] :
       Values{{"rank = 0\n\nsize = many\n", ":3: ATOLL_SIZE"}, {"rank 0\n", ":1: "}}) {
    const SettingsFile file(text);
    CHECK(has(error_from_env(), "invalid argument: " + file.path() + place));
  }
}

TEST_CASE("control characters in a file of settings are shown as escapes") {
  const auto shown = [](const std::string& text) {
    const SettingsFile file(text);
    std::string problem;
    const std::string warnings = logged([&] { problem = error_from_env(); });
    return warnings + problem;
  };
  CHECK(has(shown("timeout = \x1b[31m9\n"), ":1: ATOLL_TIMEOUT=\"\\x1b[31m9\""));
  CHECK(has(shown("time\aout = 9\n"), ":1: unknown name time\\x07out; "));
}

TEST_CASE("an unknown name is warned about, with the nearest known one if any resembles it") {
  const SettingsFile file(
      "bakend = host\ncolour = red\n",
      {{"ATOLL_TIMOUT", "1"}, {"ATOLL_X", "1"}, {"ATOLL_TEST_X", "1"}, {"ATOLL_BENCH_X", "1"}});
  const std::string text = logged([] { atoll::Config::from_env(); });
  CHECK(has(text, {"unknown variable ATOLL_TIMOUT; did you mean ATOLL_TIMEOUT?",
                   file.path() + ":1: unknown name bakend; did you mean backend?",
                   "unknown variable ATOLL_X; `atoll-topo --env` lists all settings\n",
                   file.path() + ":2: unknown name colour; `atoll-topo --env` lists all"}));
  // Variables of the tests and benches are not warned about.
  CHECK(text.find("TEST_X") == std::string::npos);
  CHECK(text.find("BENCH_X") == std::string::npos);
}

TEST_CASE("the listing hides the token") {
  atoll::Config config;
  config.set("token", "hush-7");
  CHECK(atoll::describe(config).find("hush-7") == std::string::npos);
  CHECK(atoll::describe(config).find("(set)") != std::string::npos);
}
