// atoll-train: trains or fine-tunes a decoder, sharded over the ranks of a job.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "atoll/world.hpp"
#include "cli/cli.hpp"
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
constexpr const char* report_help =
    "Writes report.html, a page for a browser, into the results folder of a run.";
constexpr const char* compare_help =
    "Shows the figures of runs and the settings that differ, side by side. Runs that have not "
    "ended have only curves.";

// All words that may follow `atoll-train` instead of a flag.
cli::Commands commands() {
  return {{"evaluate", "MODEL --data FILE FLAG...", evaluate_help},
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
      // CLI11 applies the transformation that was added last first.
      option->transform(CLI::Validator([](std::string& text) { return misread<Value>(text); }, ""));
    }
    return option;
  }
}

void declare_all(CLI::App& app, train::RunOptions& options, bool& prints, bool evaluates) {
  app.option_defaults()->always_capture_default();
  for (const train::Flag& flag : train::flags()) {
    app.option_defaults()->group(std::string(flag.group));
    std::visit([&](auto member) { return declare(app, flag, options.*member); }, flag.member)
        ->configurable(!(flag.uses & train::Use::early));
  }
  const auto presets = train::preset_names();
  app.get_option("--model")->type_name(cli::words_type({presets.begin(), presets.end()}));
  cli::add_config_option(app)->group("Run");
  app.add_flag("--print-config", prints, "print all flags as --config reads them, and end")
      ->group("Run")
      ->configurable(false);
  std::vector<std::string> common{
      "--model",        "--init",        "--data",   "--tokenizer", "--eval-split", "--seq",
      "--global-batch", "--micro-batch", "--epochs", "--steps",     "--lr",         "--lora-rank",
      "--dtype",        "--strategy",    "--mesh",   "--out",       "--resume",     "--dry-run"};
  if (evaluates) {
    common = {"--model",       "--init",      "--resume",     "--config",       "--lora-rank",
              "--ema",         "--data",      "--data-type",  "--tokenizer",    "--train-on",
              "--samples",     "--eval-data", "--eval-split", "--eval-samples", "--seq",
              "--micro-batch", "--pad-to",    "--dtype",      "--strategy",     "--mesh",
              "--device",      "--threads",   "--quiet"};
  }
  cli::add_common_options(app, ATOLL_TRAIN_FEATURES, std::move(common),
                          evaluates ? cli::Commands() : commands());
}

// Returns what is wrong with the flags, before ranks meet; "" if nothing is.
std::string wrong_flag(const CLI::App& app, const train::RunOptions& options) {
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

// Returns a warning if the configuration file sets warmup-steps and does not name untimed-steps: its
// writer may mean those, which other versions of atoll-train call warmup-steps.
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
  std::optional<train::PhaseDisplay> display;
  if (world.rank() == 0 && !options.quiet) {
    display.emplace(stderr, train::progress_options_for(stderr).surface);
  }
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

// Returns what is wrong, in a line for each flag that does not exist, with its value.
std::string complaints(CLI::App& app, const CLI::Error& error,
                       std::span<const cli::ForeignName> foreign) {
  const bool is_extra = error.get_exit_code() == static_cast<int>(CLI::ExitCodes::ExtrasError);
  if (!is_extra || foreign.empty()) return cli::complaint(app, error, foreign);
  const auto is_flag = [](const std::string& word) { return word.starts_with("--"); };
  std::string text;
  const std::vector<std::string> words = app.remaining();
  for (std::size_t i = 0; i < words.size(); ++i) {
    if (i > 0 && !is_flag(words[i]) && is_flag(words[i - 1])) continue;  // a value
    const bool has_value = is_flag(words[i]) && i + 1 < words.size() && !is_flag(words[i + 1]);
    try {
      app.parse(std::vector{words[i]});
    } catch (const CLI::ParseError& one) {
      std::string line = cli::complaint(app, one, foreign);
      if (has_value) line.insert(std::min(line.find(": "), line.size()), " " + words[i + 1]);
      text += (text.empty() ? "" : "\n  ") + line;
    }
  }
  return text;
}

// Returns an exit code if the arguments are wrong or ask for help. `where` tells what is right.
std::optional<int> parse(CLI::App& app, int argc, char** argv, const char* where,
                         std::span<const cli::ForeignName> foreign = {}) {
  try {
    app.parse(argc, argv);
    return std::nullopt;
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);  // prints what --help asks for
    const std::string wrong = complaints(app, error, foreign);
    std::fprintf(stderr, "%s: %s (%s)\n", app.get_name().c_str(), wrong.c_str(), where);
    return wrong_usage;
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
  app.add_option("runs", folders, "results folders of runs")->required();
  app.add_option("--html", file, "write a page with the curves of all runs as well");
  if (const auto code = parse(app, argc - 1, argv + 1, in_help)) return *code;
  std::vector<train::page::RunFiles> runs;
  for (const std::string& folder : folders) runs.push_back(train::page::read_run(folder));
  std::fputs(train::page::compare_text(runs).c_str(), stdout);
  if (!file.empty()) {
    train::require(train::may_replace(file, "<!DOCTYPE html>"),
                   "--html {}: the file exists and is no page: name another file", file);
    train::write_file_atomic(file, html::document(train::page::comparison_of(runs)));
  }
  return 0;
}

// Returns the exit code.
int parse_and_train(int argc, char** argv, bool evaluates) {
  CLI::App app(evaluates ? evaluate_help
                         : "Trains or fine-tunes a Mistral, Llama, Qwen or SmolLM, sharded over "
                           "the ranks of a job.",
               evaluates ? "atoll-train evaluate" : "atoll-train");
  app.footer(evaluates ? "Example:\n  atoll-train evaluate ORG/NAME --data chat.tok" : examples);
  train::RunOptions options;
  bool prints = false;
  declare_all(app, options, prints, evaluates);
  if (const auto code =
          parse(app, argc, argv, "--help-all lists the flags", train::foreign_flags())) {
    return *code;
  }
  if (const std::string wrong = unusable_value(argc, argv); !wrong.empty()) {
    std::fprintf(stderr, "atoll-train: %s\n", wrong.c_str());
    return wrong_usage;
  }
  options.config_text = cli::config_text(app);
  if (const std::string wrong = wrong_flag(app, options); !wrong.empty()) {
    std::fprintf(stderr, "atoll-train: %s (--help-all lists the flags)\n", wrong.c_str());
    return wrong_usage;
  }
  if (prints) {
    std::fputs(options.config_text.c_str(), stdout);
    return 0;
  }
  auto config = atoll::Config::from_env();
  if (options.islands > 0) config.islands = options.islands;
  auto world = atoll::World::from_env(config);
  const std::string unclear = unclear_warmup(app);
  if (world.rank() == 0 && !unclear.empty()) train::log::warn("{}", unclear);
  train::stop_on_signals();  // comes after World, whose flight recorder sets a handler for SIGUSR1
  return train_on(world, options);
}

// Returns the flags for the first word behind `atoll-train evaluate`: a model, a file of weights, a
// checkpoint of a run, or a results folder, of which the best checkpoint or the last one is meant.
std::vector<std::string> flags_of(const std::string& word) {
  namespace fs = std::filesystem;
  std::error_code ignored;
  const fs::path place = fs::absolute(fs::path(word) / "", ignored).parent_path();
  const bool is_model = fs::exists(place / "config.json", ignored);
  for (const fs::path& checkpoint : {place, place / "best", place / "checkpoint"}) {
    if (is_model || !fs::exists(checkpoint / "index.json", ignored)) continue;
    const fs::path above = checkpoint.parent_path();
    for (const fs::path& out : {above, above.parent_path()}) {  // of OUT/best, OUT/checkpoints/STEP
      const fs::path config = out / "config.toml";
      if (fs::exists(config, ignored)) return {"--config", config, "--resume", checkpoint};
    }
  }
  return {word.ends_with(".safetensors") ? "--init" : "--model", word};
}

}  // namespace

int main(int argc, char** argv) {
  // If a file reaches the size limit, write() then returns an error, and the process does not end.
  std::signal(SIGXFSZ, SIG_IGN);
  try {
    const std::string_view command = argc > 1 ? argv[1] : "";
    if (command == "report") return report(argc, argv);
    if (command == "compare") return compare(argc, argv);
    const bool evaluates = command == "evaluate";
    std::vector<std::string> words(argv, argv + argc);
    if (evaluates) words[1] = "--evaluate";
    if (evaluates && argc > 2 && !words[2].starts_with('-')) {
      const auto flags = flags_of(words[2]);
      words.insert(words.erase(words.begin() + 2), flags.begin(), flags.end());
    }
    std::vector<char*> arguments;
    for (std::string& word : words) arguments.push_back(word.data());
    return parse_and_train(static_cast<int>(arguments.size()), arguments.data(), evaluates);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "atoll-train: %s\n", train::text_of(error));
    return 1;
  }
}
