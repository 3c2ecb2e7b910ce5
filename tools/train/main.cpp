// atoll-train: trains or fine-tunes a decoder, sharded over the ranks of a job.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "atoll/world.hpp"
#include "cli/cli.hpp"
#include "commands.hpp"
#include "environment.hpp"
#include "fail.hpp"
#include "foreign.hpp"
#include "html/document.hpp"
#include "json_reader.hpp"
#include "loop/flags.hpp"
#include "loop/trainer.hpp"
#include "model/config.hpp"
#include "page/page.hpp"
#include "report/files.hpp"
#include "report/log.hpp"
#include "report/phase.hpp"

namespace {

constexpr int wrong_usage = 2;
constexpr const char* in_help_all = "--help-all lists the flags";
constexpr const char* examples =
    "Examples:\n"
    "  atoll-train --data demo\n"
    "  mpirun -n 4 --bind-to none atoll-train --data alpaca.json --tokenizer tokenizer.model \\\n"
    "      --strategy hybrid_shard --mesh 2x2 --steps 100 --out results/alpaca\n"
    "Start ranks with mpirun, srun --mpi=pmix, mpiexec or torchrun, or set ATOLL_RANK, "
    "ATOLL_SIZE,\n"
    "ATOLL_ADDR and ATOLL_TOKEN for each. `atoll-topo --env` lists every variable.\n\n"
    "Exit status: 0, or 1 after a failure, 2 for wrong flags, 3 below --min-mfu, 4 above\n"
    "--max-memory, 75 after a signal or --max-time. A run that misses a limit has trained and\n"
    "saved as any other.";
constexpr const char* evaluate_help =
    "Prints loss and perplexity of a model without training, as --evaluate does, or of a run's "
    "checkpoint, such as OUT/best, with the flags of the run.";
constexpr const char* export_help =
    "Writes the model of a run, or of one of its checkpoints, such as OUT/best, in Hugging Face's "
    "format, without training.";
constexpr const char* report_help =
    "Writes report.html, a page for a browser, into the results folder of a run.";
constexpr const char* compare_help =
    "Shows the figures of runs and the settings that differ, side by side. Runs that have not "
    "ended have only curves.";

// All words that may follow `atoll-train` instead of a flag.
cli::Commands commands() {
  return {{"evaluate", "MODEL --data FILE FLAG...", evaluate_help},
          {"export", "RUN FOLDER FLAG...", export_help},
          {"report", "FOLDER", report_help},
          {"compare", "FOLDER... --html FILE", compare_help}};
}

// Returns what is wrong with the text of an integer, also of a size with a unit: CLI11 would read
// "-1" as an unsigned number, and a number that is too large as the largest one.
template <class Integer>
std::string misread(const std::string& text) {
  if (std::is_unsigned_v<Integer> && text.starts_with('-')) return "must not be negative";
  Integer number = 0;
  const auto parsed = std::from_chars(text.data(), text.data() + text.size(), number);
  return parsed.ec == std::errc::result_out_of_range ? text + " is too large" : "";
}

// Declares a flag whose default, "auto", the run replaces.
CLI::Option* declare_chosen(CLI::App& app, const train::Flag& flag, double& value) {
  const auto take = [&value, &flag](const std::string& text) {
    if (text == "auto") {
      value = flag.usual->number;
    } else if (!CLI::detail::lexical_cast(text, value)) {
      throw CLI::ConversionError(text, std::string(flag.name()));
    }
  };
  return app.add_option_function<std::string>(std::string(flag.names), take, flag.help)
      ->type_name("FLOAT")
      ->default_str("auto");
}

// Declares a flag of the table. Parsing writes to `value`.
template <class Value>
CLI::Option* declare(CLI::App& app, const train::Flag& flag, Value& value) {
  const std::string names(flag.names);
  if constexpr (std::is_same_v<Value, bool>) {
    return app.add_flag(names, value, flag.help);
  } else if constexpr (std::is_same_v<Value, double>) {
    return flag.usual ? declare_chosen(app, flag, value) : app.add_option(names, value, flag.help);
  } else {
    CLI::Option* const option = app.add_option(names, value, flag.help);
    if (!flag.words.empty())
      option->type_name(cli::words_type({flag.words.begin(), flag.words.end()}));
    if constexpr (std::is_same_v<Value, std::vector<std::string>>) {
      option->allow_extra_args(false);
      if (flag.form != train::Form::repeated) option->delimiter(',');
    } else if constexpr (std::is_integral_v<Value>) {
      if (flag.form == train::Form::bytes) option->transform(cli::as_bytes);
      // CLI11 applies the last transformation first, so misread() sees the text as typed.
      option->transform(CLI::Validator([](std::string& text) { return misread<Value>(text); }, ""));
    }
    return option;
  }
}

void declare_all(CLI::App& app, train::RunOptions& options, bool& prints,
                 std::span<const cli::Replaces> replaces) {
  app.option_defaults()->always_capture_default();
  for (const train::Flag& flag : train::flags()) {
    app.option_defaults()->group(std::string(flag.group));
    std::visit([&](auto member) { return declare(app, flag, options.*member); }, flag.member)
        ->configurable(!(flag.uses & train::Use::early));
  }
  const auto presets = train::preset_names();
  app.get_option("--model")->type_name(cli::words_type({presets.begin(), presets.end()}));
  cli::add_config_option(app, train::foreign_flags(), replaces)->group("Run");
  app.add_flag("--print-config", prints, "print all flags as --config reads them, and end")
      ->group("Run")
      ->configurable(false);
}

// The flags that --help shows, and the words of a command that in_flags() has taken out.
void add_help(CLI::App& app, train::Mode mode) {
  std::vector<std::string> common{
      "--model",        "--init",        "--data",   "--tokenizer", "--eval-split", "--seq",
      "--global-batch", "--micro-batch", "--epochs", "--steps",     "--lr",         "--lora-rank",
      "--dtype",        "--strategy",    "--mesh",   "--out",       "--resume",     "--dry-run"};
  if (mode == train::Mode::evaluate) {
    common = {"--model",       "--init",      "--resume",     "--config",       "--lora-rank",
              "--ema",         "--data",      "--data-type",  "--tokenizer",    "--train-on",
              "--samples",     "--eval-data", "--eval-split", "--eval-samples", "--seq",
              "--micro-batch", "--pad-to",    "--dtype",      "--strategy",     "--mesh",
              "--device",      "--threads",   "--quiet"};
  } else if (mode == train::Mode::export_model) {
    common = {"--export-dtype", "--lora-merge", "--data", "--tokenizer", "--device", "--quiet"};
  }
  cli::add_common_options(app, ATOLL_TRAIN_FEATURES, std::move(common),
                          mode == train::Mode::train ? commands() : cli::Commands());
}

bool is_typed(const std::vector<std::string>& words, const std::string& flag) {
  return std::ranges::any_of(
      words, [&](const std::string& word) { return word == flag || word.starts_with(flag + "="); });
}

// Returns what is wrong with the flags, before ranks meet; "" if nothing is.
std::string wrong_flag(const CLI::App& app, const train::RunOptions& options,
                       const std::vector<std::string>& words) {
  // Only typed flags count: config.toml still has the --init with which its run began.
  const bool starts_twice = is_typed(words, "--init") && is_typed(words, "--resume") &&
                            options.init != "none" && options.resume != "auto";
  if (starts_twice && !options.evaluate) {
    return fmt::format(
        "--init {}: the checkpoint of --resume has the weights; remove one of the two flags",
        options.init);
  }
  if (options.epochs > 0 && app.count("--steps") > 0)
    return "--epochs and --steps: use one of them";
  if (options.warmup_ratio > 0 && app.count("--warmup-steps") > 0) {
    return "--warmup-ratio and --warmup-steps: use one of them";
  }
  if (options.evaluate && app.count("--model") + app.count("--init") + app.count("--resume") == 0)
    return "--evaluate: name a model (--model, --init) or a checkpoint (--resume OUT/best)";
  if (std::string wrong = train::foreign_word(options); !wrong.empty()) return wrong;
  try {
    train::check(train::resolved(options));
  } catch (const train::Error& error) {
    return error.what();
  }
  return "";
}

// Returns a warning if the configuration file sets warmup-steps and does not name untimed-steps:
// its writer may mean those, which other versions of atoll-train call warmup-steps.
std::string unclear_warmup(const CLI::App& app) {
  if (app.count("--config") == 0) return "";
  for (const auto& file : app.get_config_ptr()->as<std::vector<std::string>>()) {
    const std::string text = "\n" + train::read_text(file, std::uintmax_t{1} << 20);
    const bool is_unclear = text.find("\nwarmup-steps") != text.npos;
    if (!is_unclear || text.find("untimed-steps") != text.npos) continue;
    return fmt::format(
        "--config {}: warmup-steps are those in which the learning rate rises; figures of speed "
        "leave out untimed-steps",
        file);
  }
  return "";
}

// Returns the exit code.
int train_on(atoll::World& world, const train::RunOptions& options) {
  try {
    const train::RunResult result = train::run(world, options);
    if (result.stop != train::Stop::none) return train::exit_saved_and_stopped;
    for (const auto& gate : result.missed_gates) {
      if (world.rank() == 0) std::fprintf(stderr, "atoll-train: %s\n", gate.message.c_str());
    }
    return result.missed_gates.empty() ? 0 : result.missed_gates.front().exit_code;
  } catch (const std::exception& error) {
    const std::string_view what = train::text_of(error);
    world.fail(what);
    // Errors of communicators already name the rank.
    const std::string who = fmt::format("rank {}: ", world.rank());
    std::fprintf(stderr, "atoll-train: %s%s\n", what.starts_with(who) ? "" : who.c_str(),
                 what.data());
    return 1;
  }
}

bool is_utf8(const char* text) {
  try {
    (void)nlohmann::json(text).dump();
    return true;
  } catch (const nlohmann::json::exception&) {
    return false;
  }
}

// Returns what is wrong with the first value that no flag can take; "" if there is none. An empty
// value, as from a variable of the shell that is not set, would count as a flag that is not given:
// --resume "" would train anew. All values are written to the results, which are JSON.
std::string unusable_value(int argc, char** argv) {
  for (int i = 1; i < argc; ++i) {
    const std::string_view value = argv[i], flag = argv[i - 1];
    if (value.empty() && flag.starts_with("--")) {
      return fmt::format("{}: the value is empty; leave the flag out, or give one", flag);
    }
    if (!is_utf8(argv[i])) {
      return fmt::format("argument {}: not UTF-8: use names of files that are UTF-8", i);
    }
  }
  return "";
}

// Prints what is wrong with the command line, once for a job. Returns the exit code.
int refuse(const std::string& name, const std::string& wrong) {
  if (train::is_first_rank()) {
    std::fprintf(stderr, "%s: %s\n", name.c_str(), wrong.c_str());
  } else {
    // Launchers kill the other ranks when one ends, so rank 0 gets time to print the error.
    std::this_thread::sleep_for(std::chrono::seconds(1));
  }
  return wrong_usage;
}

// Returns an exit code if the arguments are wrong or ask for help. `where` says how to get help.
std::optional<int> parse(CLI::App& app, int argc, char** argv, const char* where,
                         std::span<const cli::ForeignName> foreign = {}) {
  try {
    app.parse(argc, argv);
    return std::nullopt;
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);  // prints what --help asks for
    const std::string wrong = cli::complaint(app, error, foreign);
    return refuse(app.get_name(), fmt::format("{} ({})", wrong, where));
  }
}

// The commands that read finished runs, which need no ranks.
constexpr const char* in_help = "--help lists the arguments";

int report(int argc, char** argv) {
  CLI::App app(report_help, "atoll-train report");
  std::string folder;
  app.add_option("folder", folder, "results folder of a run, as --out named it")->required();
  if (const auto code = parse(app, argc - 1, argv + 1, in_help)) return *code;
  std::printf("%s\n", train::page::write_report(folder).c_str());
  return 0;
}

int compare(int argc, char** argv) {
  CLI::App app(compare_help, "atoll-train compare");
  std::vector<std::string> folders;
  std::string file;
  app.add_option("runs", folders, "results folders of runs, or folders of them")->required();
  app.add_option("--html", file, "write a page with the curves of all runs as well");
  if (const auto code = parse(app, argc - 1, argv + 1, in_help)) return *code;
  if (!file.empty() && !file.ends_with(".html"))
    return refuse("atoll-train compare",
                  fmt::format("--html {}: it is a page: use FILE.html", file));
  std::vector<train::page::RunFiles> runs;
  for (const std::string& folder : folders) {
    for (const auto& run : train::page::runs_at(folder)) {
      runs.push_back(train::page::read_run(run));
    }
  }
  std::fputs(train::page::compare_text(runs).c_str(), stdout);
  if (!file.empty()) {
    train::require(train::may_replace(file, "<!DOCTYPE html>"),
                   "--html {}: the file exists and is no page: name another file", file);
    train::write_file_atomic(file, html::document(train::page::comparison_of(runs)));
    std::printf("curves in %s\n", file.c_str());
  }
  return 0;
}

struct Texts {
  const char *name, *help, *footer;
};
Texts texts_of(train::Mode mode) {
  switch (mode) {
    case train::Mode::evaluate:
      return {"atoll-train evaluate", evaluate_help,
              "Example:\n  atoll-train evaluate ORG/NAME --data chat.tok"};
    case train::Mode::export_model:
      return {"atoll-train export", export_help,
              "Example:\n  atoll-train export results/alpaca alpaca-model"};
    case train::Mode::train:
      break;
  }
  return {"atoll-train",
          "Trains or fine-tunes a Mistral, Llama, Qwen or SmolLM, sharded over the ranks of a job.",
          examples};
}

// Joins the job. From now on `display` shows the phases of rank 0.
atoll::World join(const train::RunOptions& options, std::optional<train::PhaseDisplay>& display) {
  auto config = atoll::Config::from_env();
  config.owns_process = 1;
  if (options.islands > 0) config.islands = options.islands;
  if (train::is_first_rank() && !options.quiet) {
    display.emplace(stderr, train::progress_options_for(stderr).surface);
  }
  std::optional<train::Phase> phase(std::in_place, "waiting for all ranks");
  auto world = atoll::World::from_env(config);
  phase.reset();
  if (world.rank() != 0) display.reset();  // not every launcher numbers ranks as the World does
  return world;
}

// Returns the exit code. `words` contains only flags.
int parse_and_train(std::vector<std::string> words, train::Mode mode) {
  const Texts texts = texts_of(mode);
  CLI::App app(texts.help, texts.name);
  app.footer(texts.footer);
  train::RunOptions options;
  bool prints = false;
  const auto replaces = train::replaced_flags(mode);
  declare_all(app, options, prints, replaces);
  // For the usage line: in_flags() has taken these words out, so a word that is left is misplaced.
  std::string misplaced;
  if (mode == train::Mode::evaluate) app.add_option("MODEL", misplaced, "a model or a run");
  if (mode == train::Mode::export_model) {
    app.add_option("RUN", misplaced, "results folder of a run, or a checkpoint");
    app.add_option("FOLDER", misplaced, "folder of the model");
  }
  add_help(app, mode);
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  const auto argc = static_cast<int>(arguments.size());
  if (const auto code = parse(app, argc, arguments.data(), in_help_all, train::foreign_flags())) {
    return *code;
  }
  std::string wrong = unusable_value(argc, arguments.data());
  if (!wrong.empty()) return refuse("atoll-train", wrong);
  options.config_text = cli::config_text(app, replaces);
  options.usual_warmup = app.count("--warmup-steps") + app.count("--warmup-ratio") == 0;
  options.config_file = app.get_config_ptr()->as<std::string>();
  wrong = misplaced.empty() ? wrong_flag(app, options, words)
                            : fmt::format("{}: must come first, before all flags", misplaced);
  if (!wrong.empty()) {
    const std::string place = cli::place_in_config(app, wrong);
    return refuse("atoll-train", fmt::format("{}{} ({})", place, wrong, in_help_all));
  }
  if (prints) {
    std::fputs(options.config_text.c_str(), stdout);
    return 0;
  }
  std::optional<train::PhaseDisplay> display;
  auto world = join(options, display);
  const std::string unclear = mode == train::Mode::train ? unclear_warmup(app) : "";
  if (world.rank() == 0 && !unclear.empty()) train::log::warn("{}", unclear);
  // An evaluation has nothing to save, so signals end it. The call comes after World, whose flight
  // recorder sets a handler for SIGUSR1.
  if (!options.evaluate) train::stop_on_signals();
  return train_on(world, options);
}

}  // namespace

int main(int argc, char** argv) {
  // If a file reaches the size limit, write() then returns an error, and the process does not end.
  std::signal(SIGXFSZ, SIG_IGN);
  try {
    const std::vector<std::string> words(argv, argv + argc);
    const std::string_view command = argc > 1 ? argv[1] : "";
    if (command == "report") return report(argc, argv);
    if (command == "compare") return compare(argc, argv);
    const train::Mode mode = train::mode_of(words);
    return parse_and_train(train::in_flags(words, mode), mode);
  } catch (const train::WrongUsage& wrong) {
    return refuse("atoll-train", wrong.text);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "atoll-train: %s\n", train::text_of(error));
    return 1;
  }
}
