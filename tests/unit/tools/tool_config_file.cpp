// Tests of configuration files, which hold flags of a command line.
#include <doctest/doctest.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "atoll/version.hpp"
#include "cli/cli.hpp"

namespace {

// A command line with all kinds of options that the programs have.
struct ConfigExample {
  static constexpr cli::ForeignName foreign[] = {{"--rate", "velocity"}, {"tee", "log-to"}};
  static constexpr cli::Replaces replaces[] = {{"--name", "--text"}};
  CLI::App app{"Shows a thing.", "atoll-show"};
  std::string name, text = "usual";
  double rate = 0.5;
  int count = 3;
  std::uint64_t bytes = 0;
  std::vector<std::string> patterns, groups;
  bool careful = true, quiet = false, dry = false;

  ConfigExample() {
    app.option_defaults()->always_capture_default();
    app.add_option("--name", name);
    app.add_option("-t,--text", text);
    app.add_option("--rate", rate);
    app.add_option("--count", count);
    app.add_option("--bytes", bytes)->transform(cli::as_bytes);
    app.add_option("--patterns", patterns)->delimiter(',')->allow_extra_args(false);
    app.add_option("--group", groups)->allow_extra_args(false);
    app.add_flag("--careful,!--careless", careful);
    app.add_flag("--quiet", quiet);
    app.add_flag("--dry", dry)->configurable(false);
    cli::add_config_option(app, foreign, replaces);
  }
  void parse(std::vector<std::string> words) {
    std::reverse(words.begin(), words.end());
    app.parse(words);
  }
};

class File {
 public:
  explicit File(const std::string& text)
      : path_(std::filesystem::temp_directory_path() /
              ("atoll-config-" + std::to_string(::getpid()))) {
    std::ofstream(path_) << text;
  }
  ~File() { std::filesystem::remove(path_); }
  std::string path() const { return path_.string(); }

 private:
  std::filesystem::path path_;
};

// Returns the error of a file.
std::string refusal(const std::string& text) {
  const File file(text);
  ConfigExample example;
  try {
    example.parse({"--config", file.path()});
  } catch (const CLI::Error& error) {
    const std::string text = error.what(), start = "--config " + file.path() + ": ";
    return text.starts_with(start) ? text.substr(start.size()) : text;
  }
  return "none";
}

}  // namespace

TEST_CASE("a file sets options, and the command line overrides it") {
  const File file(
      "# a comment\n"
      "name = \"a # b\"  # the first # is part of the name\n"
      "rate = 1e-3\ncount = 1_000\nbytes = \"2K\"\n"
      "patterns = [\"*norm.weight\",\n  \"x,y\"]\ngroup = \"g:lr_scale=0.1\"\n"
      "careful = false\nquiet = true\n");
  ConfigExample example;
  example.parse({"--config", file.path(), "--count", "7"});
  CHECK(example.name == "a # b");
  CHECK(example.rate == 1e-3);
  CHECK(example.count == 7);
  CHECK(example.bytes == 2048);
  CHECK(example.patterns == std::vector<std::string>{"*norm.weight", "x", "y"});
  CHECK(example.groups == std::vector<std::string>{"g:lr_scale=0.1"});
  CHECK(!example.careful);
  CHECK(example.quiet);
}

TEST_CASE("the written file has what was given, and reads back as the same") {
  ConfigExample given;
  given.parse({"--name", "1.0", "--text", "'q\" # \\", "--rate", "0.25", "--bytes", "16G",
               "--patterns", "a,b", "--group", "p:x=1", "--group", "q:y=2", "--careless", "--dry"});
  const std::string text = cli::config_text(given.app);
  CHECK(text.starts_with("# Flags of atoll-show " ATOLL_VERSION
                         ". Lines that begin with # are defaults.\n"
                         "name = '1.0'\n"));
  CHECK(
      text.find("\nrate = 0.25\nbytes = 17179869184\npatterns = ['a', 'b']\n"
                "group = ['p:x=1', 'q:y=2']\ncareful = false\n\n# count = 3\n# quiet = false\n") !=
      std::string::npos);
  CHECK(text.find("dry") == std::string::npos);
  const File file(text);
  ConfigExample read;
  read.parse({"--config", file.path()});
  CHECK(read.name == "1.0");
  CHECK(read.text == given.text);
  CHECK(read.bytes == given.bytes);
  CHECK(read.patterns == given.patterns);
  CHECK(read.groups == given.groups);
  CHECK(!read.careful);
  CHECK(cli::config_text(read.app) == text);
}

TEST_CASE("an empty list is an option that was not given, as the written file has it") {
  const File file("patterns = []\ngroup = []\n");
  ConfigExample example;
  example.parse({"--config", file.path()});
  CHECK(example.patterns.empty());
  CHECK(example.groups.empty());
  CHECK(cli::config_text(example.app).find("\n# patterns = []\n# group = []\n") !=
        std::string::npos);
}

TEST_CASE("a wrong line is named, and changes nothing in silence") {
  CHECK(refusal("rate = 1\n\nrates = 2\n") ==
        "line 3: 'rates' is no flag that a file can set; did you mean rate?");
  CHECK(refusal("zzzzzzzz = 1\n") ==
        "line 1: 'zzzzzzzz' is no flag that a file can set: write the names of --help-all without "
        "the first hyphens");
  // All wrong lines are named, in their order.
  CHECK(refusal("velocity = 1\nlog_to = 2\nquiet = 1\ncount = 5\n") ==
        "line 1: 'velocity' is no flag that a file can set; did you mean rate?\n"
        "  line 2: 'log_to' is no flag that a file can set; use tee\n"
        "  line 3: 'quiet' must be true or false");
  CHECK(refusal("dry = true\n").find("'dry' is no flag that a file can set") != std::string::npos);
  CHECK(refusal("config = 'x'\n").find("is no flag that a file can set") != std::string::npos);
  CHECK(refusal("rate\n").starts_with("line 1: must be TOML: NAME = VALUE ("));
  CHECK(refusal("rate = \"\"\n") == "line 1: 'rate' is empty");
  CHECK(refusal("rate = true\n") == "line 1: 'rate' cannot be true or false");
  CHECK(refusal("quiet = 1\n") == "line 1: 'quiet' must be true or false");
  CHECK(refusal("count = [1, 2]\n") == "line 1: 'count' needs one value");
  CHECK(refusal("[rate]\n") ==
        "line 1: 'rate' must be a text, a number, true, false or a list of these: write flags "
        "without tables such as [model]");
  CHECK(refusal("rate = 1\nrate = 2\n").starts_with("line 2: "));
  CHECK(refusal("rate = 'x'\n").find("rate") != std::string::npos);
  CHECK(refusal("count = 1.5\n").find("count") != std::string::npos);
  const std::string terminal = refusal("\"\\u001b[2J\" = 1\n");
  CHECK(terminal.find('\x1b') == std::string::npos);
  CHECK(terminal.find("is no flag") != std::string::npos);
  CHECK(refusal(std::string("\xff\xfe\0\x01", 4)).starts_with("line 1: "));
}

TEST_CASE("names may have underscores, and an option of the command line replaces another one") {
  const File file("text = 'x'\nname_of = 'y'\ncount = 4\n");
  ConfigExample example;
  std::string of;
  example.app.add_option("--name-of", of);
  example.parse({"--config", file.path(), "--name", "z"});
  CHECK(of == "y");
  CHECK(example.text == "usual");
  const std::string written = cli::config_text(example.app, ConfigExample::replaces);
  CHECK(written.find("text") == std::string::npos);
  CHECK(written.find("\ncount = 4\n") != std::string::npos);
}

TEST_CASE("checks of numbers name the value and what it must be") {
  const auto fine = cli::at_least(0.5);
  CHECK(fine("0.5") == "");
  CHECK(fine("7e2") == "");
  for (const std::string wrong : {"0.4", "-1", "nan", "inf", "", "many", "1x"}) {
    CAPTURE(wrong);
    CHECK(fine(wrong) == wrong + " must be at least 0.5");
  }
  CHECK(cli::number([](double value) { return value < 3; }, "below 3")("3") == "3 must be below 3");
}

TEST_CASE("sizes have fractions and units, and other texts are refused") {
  for (const auto& [text, bytes] :
       {std::pair("4096", "4096"), std::pair("0", "0"), std::pair("16G", "17179869184"),
        std::pair("1.5g", "1610612736"), std::pair("1.5 GiB", "1610612736"),
        std::pair("512 MB", "536870912"), std::pair("7b", "7"), std::pair("1T", "1099511627776")})
    CHECK(cli::as_bytes(text) == bytes);
  for (const char* wrong : {"", "G", "-1", "1.5x", "1 G B", "7bb", "7bib", "nan", "inf", "1e19"}) {
    CAPTURE(wrong);
    CHECK_THROWS_WITH_AS(cli::as_bytes(wrong), doctest::Contains("is no number of bytes: write"),
                         CLI::ValidationError);
  }
}
