// Tests of the manual page and the completion that are made from the command line of a program.
#include <doctest/doctest.h>

#include <CLI/CLI.hpp>
#include <string>

#include "atoll/version.hpp"
#include "cli/cli.hpp"

namespace {

// Declares a small command line with all kinds of options that the programs have.
struct Example {
  CLI::App app{"Shows a thing.", "atoll-show"};
  std::string format = "tree";
  std::string file;
  bool quiet = false;

  Example() {
    app.option_defaults()->always_capture_default();
    app.add_option("--format", format, "how to show it")->check(CLI::IsMember({"tree", "json"}));
    app.option_defaults()->group("Results");
    app.add_option("-o,--output", file, ".svg or a path like C:\\x")->option_text("FILE");
    app.add_flag("--quiet,!--loud", quiet, "say less");
    app.footer(
        "Reads the machine.\n\nExamples:\n  atoll-show -o a.svg\n\nExit status: 0 on "
        "success.\nOr 1.");
    cli::add_common_options(app, "pictures svg");
  }
};

}  // namespace

TEST_CASE("a manual page has every option and section of --help") {
  const Example example;
  const std::string page = cli::manual_page(example.app);
  CHECK(page.starts_with(".TH ATOLL-SHOW 1 \"\" \"atoll " ATOLL_VERSION "\" \"User Commands\"\n"));
  for (const char* part :
       {".SH NAME\natoll\\-show \\- Shows a thing.\n", ".SH SYNOPSIS\n.B atoll\\-show\n",
        "\\fB\\-h\\fR, \\fB\\-\\-help\\fR\n",
        "\\fB\\-\\-format\\fR \\fITEXT:{tree,\\:json}=tree\\fR\nhow to show it\n",
        ".SS Results\n.TP\n\\fB\\-o\\fR, \\fB\\-\\-output\\fR \\fIFILE\\fR\n"
        "\\&.svg or a path like C:\\ex\n",
        "\\fB\\-\\-quiet\\fR, \\fB\\-\\-loud\\fR\n", ".SH NOTES\nReads the machine.\n",
        ".SH EXAMPLES\n.nf\n  atoll\\-show \\-o a.svg\n.fi\n",
        ".SH EXIT STATUS\n0 on success.\nOr 1.\n"})
    CHECK_MESSAGE(page.find(part) != page.npos, part);
}

TEST_CASE("a completion has every option, and the values of options that list them") {
  const Example example;
  const std::string script = cli::bash_completion(example.app);
  CHECK(script.find("    --format) words='tree json' ;;\n") != std::string::npos);
  CHECK(script.find(
            "words='-h --help --format -o --output --quiet --loud --help-all --version' ;;\n") !=
        std::string::npos);
  CHECK(script.ends_with("complete -o default -F _atoll_show atoll-show\n"));
  CHECK(script.find("--generate") == std::string::npos);
}

TEST_CASE("help, page and completions have the commands of a program") {
  Example example;
  const cli::Commands commands{{"draw", "FILE FLAG...", "Draws it."},
                               {"list", "[--all] FOLDER...", "Lists them."}};
  const std::string page = cli::manual_page(example.app, commands);
  CHECK(page.find("[\\fIoptions\\fR]\n.br\n.B atoll\\-show draw\n\\fIFILE FLAG...\\fR\n.br\n") !=
        page.npos);
  CHECK(page.find(".SH COMMANDS\n.TP\n\\fBdraw\\fR\nDraws it.\n") != page.npos);
  const std::string zsh = cli::zsh_completion(example.app, commands);
  CHECK(zsh.starts_with("#compdef atoll-show\n"));
  CHECK(zsh.find(cli::bash_completion(example.app, commands)) != zsh.npos);
  CHECK(zsh.find("      -*:list) words='--help --all' ;;\n      -*) words='-h --help") != zsh.npos);
  CHECK(zsh.find("words='draw list' ;;\n") != zsh.npos);
  cli::add_help(example.app, {}, commands);
  CHECK(example.app.help().find("\nCommands:\n  atoll-show draw FILE FLAG...\n                     "
                                "         Draws it.\n") != std::string::npos);
}

TEST_CASE("help fits 100 columns, and shows the common flags first") {
  CLI::App app("Shows a thing.", "atoll-show");
  std::string one, two;
  app.add_option("--one", one,
                 "a text that is longer than one line of the help, which has at most one hundred "
                 "columns, and goes on in a second line");
  app.add_option("--two", two, "another")->check(CLI::IsMember({"a", "b"}));
  cli::add_common_options(app, "", {"--one"});
  const std::string some = app.help();
  CHECK(some.find("--two") == some.npos);
  CHECK(some.find("atoll-show --help-all lists all 5 flags.\n") != some.npos);
  CHECK(
      some.find("\n  --one TEXT                  a text that is longer than one line of the help, "
                "which has at most one\n                              hundred columns, and goes on "
                "in a second line\n") != some.npos);
  const std::string all = app.help("", CLI::AppFormatMode::All);
  CHECK(all.find("\n  --two TEXT:{a,b}            another\n") != all.npos);
}

TEST_CASE("--version names the program, the library and what was built in") {
  Example example;
  CHECK(example.app.version() == "atoll-show " ATOLL_VERSION "\nlibatoll " +
                                     std::string(atoll::version()) + ": " +
                                     std::string(atoll::build_features()) + "\npictures svg");
  CHECK(atoll::version() == ATOLL_VERSION);
  CHECK(atoll::build_features().starts_with("devices cpu"));
  CHECK(example.app.help().find("--generate") == std::string::npos);
}
