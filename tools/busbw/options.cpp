#include "options.hpp"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <stdexcept>

#include "atoll/error.hpp"
#include "cli/cli.hpp"

namespace busbw {
namespace {

[[noreturn]] void refuse(const std::string& why) {
  throw atoll::Error(atoll::ErrorCode::invalid_argument, why);
}

double parse_number(const std::string& text, const char* what) {
  double value = 0;
  if (!CLI::detail::lexical_cast(text, value) || !std::isfinite(value))
    refuse(fmt::format("{} {}: not a number", what, text));
  return value;
}

// GB/s of a bus bandwidth, with or without the unit.
double parse_limit(const std::string& text) {
  std::string number = text;
  for (const char* unit : {"GB/s", "gb/s", " "})
    if (number.ends_with(unit)) number.resize(number.size() - std::string_view(unit).size());
  const double limit = parse_number(number, "--limit");
  if (limit <= 0) refuse("--limit " + text + ": must be above 0 GB/s");
  return limit;
}

// Turns a percentage such as "85%" into a share, "0.85".
std::string as_share(const std::string& text) {
  double percent = 0;
  const bool is_percent =
      text.ends_with('%') && CLI::detail::lexical_cast(text.substr(0, text.size() - 1), percent);
  return is_percent ? fmt::format("{}", percent / 100) : text;
}

// The report is JSON, so the extension of another format is refused.
std::string json_name(const std::string& file) {
  const std::string extension = std::filesystem::path(file).extension();
  const bool is_other = extension == ".csv" || extension == ".tsv" || extension == ".html";
  return is_other ? fmt::format("{}: the report is JSON, so use FILE.json", file) : std::string();
}

template <class Known, std::size_t size, class Parse>
std::vector<Known> parse_list(const std::string& text, const std::array<Known, size>& all,
                              std::string_view option, Parse parse) {
  if (text == "all") return {all.begin(), all.end()};
  std::vector<Known> list;
  for (const std::string& item : CLI::detail::split(text, ',')) {
    if (const auto found = parse(item)) {
      list.push_back(*found);
      continue;
    }
    std::vector<std::string> names;
    for (const Known& one : all) names.emplace_back(name(one));
    names.emplace_back("all");
    const std::string meant = cli::nearest(item, names);
    refuse(fmt::format("{} {}: not one of {}{}", option, item, fmt::join(names, ", "),
                       meant.empty() ? "" : "; did you mean " + meant + "?"));
  }
  return list;
}

// An option whose value `take` receives. `usual` is its default in --help.
template <class T, class Take>
CLI::Option* add(CLI::App& app, const std::string& names, const std::string& usual,
                 const char* help, Take take) {
  return app.add_option_function<T>(names, take, help)->default_str(usual);
}

// A number of at least `least`.
void count(CLI::App& app, const char* names, int& target, int least, const char* help) {
  app.add_option(names, target, help)->check(cli::at_least(least));
}

void bytes(CLI::App& app, const char* names, std::uint64_t& target, const char* usual,
           const char* help) {
  app.add_option(names, target, help)
      ->transform(cli::as_bytes)
      ->check(cli::number([](double size) { return size <= 0x1p50; }, "at most 1024T"))
      ->default_str(usual);
}

// A number from 0 to `most` that stands for a value of the target, as in nccl-tests.
template <class T>
void choice(CLI::App& app, const char* names, T& target, int most, const char* help) {
  const auto take = [&target](int value) { target = static_cast<T>(value); };
  add<int>(app, names, std::to_string(static_cast<int>(target)), help, take)
      ->check(CLI::Range(0, most));
}

// Names with commas between them, or all. --help and completions list them.
template <class Known, std::size_t size, class Parse>
void list(CLI::App& app, const std::string& names, std::vector<Known>& target,
          const std::array<Known, size>& all, Parse parse, const char* usual, const char* help) {
  const auto take = [&, parse, option = names.substr(0, names.find(','))](const std::string& text) {
    target = parse_list(text, all, option, parse);
  };
  std::vector<std::string> words;
  for (const Known& one : all) words.emplace_back(name(one));
  words.emplace_back("all");
  add<std::string>(app, names, usual, help, take)->type_name(cli::words_type(words));
}

void files(CLI::App& app, const char* names, std::vector<std::filesystem::path>& target,
           const char* help) {
  using Texts = std::vector<std::string>;
  const auto take = [&](const Texts& texts) { target.assign(texts.begin(), texts.end()); };
  add<Texts>(app, names, "", help, take)->take_all();
}

void ignored(CLI::App& app, const char* names, int usual, std::vector<std::string>& notes) {
  add<int>(app, names, std::to_string(usual), "ignored", [&notes, names, usual](int value) {
    if (value != usual) notes.push_back(fmt::format("{:.2} has no effect", names));
  });
}

void fixed(CLI::App& app, const char* names, const std::string& only, const char* help) {
  const auto check = [only, help](const std::string& text) { return text == only ? "" : help; };
  add<int>(app, names, only, help, [](int) {})->check(check);
}

void declare_run(CLI::App& app, Options& o) {
  app.option_defaults()->group("What to run");
  list(app, "--collective", o.collectives, all_collectives, collective_from_name, "all_reduce",
       "one, or a list with commas");
  list(
      app, "-d,--datatype", o.dtypes, all_dtypes, dtype_from_name, "float",
      "one, or a list with commas; also float, half, bfloat16, double, int8, uint8, uint16, int32, "
      "uint32, int64, uint64");
  list(app, "-o,--op", o.ops, all_ops, op_from_name, "sum",
       "one, or a list with commas; mulsum is a sum of scaled inputs");
  count(app, "-r,--root", o.root, -1, "root rank within the axis; -1: every rank in turn");
  app.add_option("--axis", o.axis,
                 "axis of the planned mesh: world, shard or replicate; all groups of the axis run "
                 "at once, and the slowest counts")
      ->check(CLI::IsMember({"world", "shard", "replicate"}));
  app.add_option(
         "--device", o.device,
         "buffers in CPU memory (cpu or host) or on GPUs (cuda; the ranks of a host use its GPUs "
         "in turn); auto: cuda when every rank has its own GPU and a backend supports it")
      ->check(CLI::IsMember({"auto", "cpu", "host", "cuda"}));
  app.add_option("--backend", o.backend, "host, nccl, mpi, ...; default: the best that works");
  choice(app, "-x,--cta_policy", o.compute_units, 2,
         "compute units of a GPU that collectives may take: 0 as many as the backend likes, 1 few, "
         "2 none (copy engines run all_gather and all_to_all of registered memory, if the hardware "
         "can)");
  app.add_flag("--require-gdr", o.require_gdr,
               "fail unless every connection between hosts uses GPUDirect RDMA");
  app.add_option("--algorithm", o.algorithm,
                 "NAME, or COLLECTIVE:NAME,...; default: the backend chooses (ATOLL_ALGORITHM)");
  using Words = std::vector<std::string>;
  add<Words>(app, "-M,--memory", "registered",
             "memory of the buffers: registered (atoll::allocate) or plain; or, as in nccl-tests, "
             "1 to report memory usage and 0 not to; give the option twice to set both",
             [&o](const Words& words) {
               for (const std::string& word : words) {
                 if (word == "0" || word == "1")
                   o.memory_report = word == "1";
                 else
                   o.memory = word == "plain" ? MemoryKind::plain : MemoryKind::registered;
               }
             })
      ->take_all()
      ->allow_extra_args(false)
      ->check(CLI::IsMember({"registered", "plain", "0", "1"}));
  app.add_flag("--pairs", o.pairs,
               "measure the bandwidth between every two ranks with messages of -e bytes, and name "
               "the rank, host or NIC that is slow");
  files(app, "--tune", o.tune,
        "OUT CURVE...: write a tuning file (ATOLL_TUNING) from curves that were saved with "
        "different --algorithm");
  files(app, "--flight", o.flight,
        "explain the flight recorder files (ATOLL_FLIGHT) of a job: what each rank did last");
}

void declare_sizes(CLI::App& app, Options& o) {
  app.option_defaults()->group("Sizes in bytes; K, M, G are powers of 1,024");
  bytes(app, "-b,--minbytes", o.min_bytes, "32M",
        "smallest size; default: 32M, or -e when that is smaller");
  bytes(app, "-e,--maxbytes", o.max_bytes, "32M",
        "largest size; default: 32M, or -b when that is larger");
  bytes(app, "-i,--stepbytes", o.step_bytes, "1M", "increment between sizes");
  app.add_option("-f,--stepfactor", o.step_factor,
                 "factor between sizes; 2 or more replaces the increment")
      ->check(CLI::Range(0, 1000000));
  choice(app, "-u,--unalign", o.unalign, 1 << 20, "elements by which buffers are misaligned");
}

void declare_measuring(CLI::App& app, Options& o) {
  app.option_defaults()->group("How to measure");
  count(app, "-n,--iters", o.iterations, 1, "number of timed batches");
  count(app, "-m,--agg_iters", o.batch, 1, "operations in a batch");
  count(app, "-w,--warmup_iters", o.warmups, 0, "operations before the timed ones");
  count(app, "-N,--run_cycles", o.cycles, 0, "how often to repeat all sizes; 0: until interrupted");
  count(app, "-c,--check", o.checks, 0, "number of operations whose results are checked; 0: none");
  choice(app, "-a,--average", o.time_of, 3,
         "time to report: 0 rank 0, 1 average of the ranks, 2 fastest rank, 3 slowest rank");
  choice(app, "-z,--blocking", o.blocking, 3,
         "1: wait and barrier after each operation; 2: wait after each operation; 3: wait and an "
         "untimed barrier after each batch");
  count(app, "-T,--timeout", o.timeout_s, 0, "seconds for one operation; 0: ATOLL_TIMEOUT");
  add<int>(app, "-R,--local_register", "-1",
           "1 or 2: same as --memory registered; 0: same as --memory plain",
           [&o](int value) {
             if (value == 0) o.memory = MemoryKind::plain;
           })
      ->check(CLI::Range(-1, 2));
}

void declare_output(CLI::App& app, Options& o) {
  app.option_defaults()->group("What to report");
  choice(app, "-I,--per_iter_timing", o.layout.latency, 1,
         "1: also time single operations (us): columns i_min, i_max, i_p99 and i_cv%, and p50 and "
         "p99 below the table");
  app.add_flag("--latency", o.layout.latency, "same as -I 1");
  count(app, "-K,--per_iter_skip", o.latency_skip, 0, "number of first samples that -I leaves out");
  choice(app, "-C,--report_cputime", o.layout.cpu_time, 1,
         "1: report the time to enqueue an operation (us) instead of its duration");
  choice(app, "-S,--report_timestamps", o.layout.timestamps, 1,
         "1: report when each row was measured");
  add<std::string>(
      app, "--limit", "machine",
      "what `% of limit` compares with: machine (link rates of the topology and measured memory "
      "bandwidth; on GPUs the rate of a ring), a bus bandwidth in GB/s, or off",
      [&o](const std::string& text) {
        if (text == "machine") return;
        o.limit_from = text == "off" ? LimitFrom::nothing : LimitFrom::given;
        if (text == "off") return;
        o.limit_busbw = parse_limit(text);
      });
  add<double>(app, "--expect", "", "share of the limit that every row must reach, 0.85 or 85%",
              [&o](double share) { o.expect = share; })
      ->transform(as_share)
      ->check(cli::number([](double share) { return share > 0 && share <= 1; },
                          "above 0 and at most 1, as in 0.85 or 85%; for GB/s use --limit 100 "
                          "--expect 0.9"));
  app.add_option("-J,--output_file,--json", o.json,
                 "file for the complete report as JSON; -: standard output, and the table on "
                 "standard error")
      ->check(json_name);
  app.add_option("--save", o.save, "file for the measured curve, which --tune reads");
  app.add_option("--plot", o.plot, "page for a browser with a plot of bus bandwidth over size")
      ->check([](const std::string& file) {
        const std::string extension = std::filesystem::path(file).extension();
        return extension == ".html" || extension.empty()
                   ? std::string()
                   : fmt::format("{}: the plot is a page, so use FILE.html", file);
      });
}

void declare_gpu_habits(CLI::App& app, Options& o) {
  app.option_defaults()->group("Options of nccl-tests, so that its scripts run unchanged");
  fixed(app, "-t,--nthreads", "1", "must be 1: a rank is a process");
  fixed(app, "-g,--ngpus", "1",
        "must be 1: a rank is a process, so start N ranks with mpirun -n N");
  ignored(app, "-p,--parallel_init", 0, o.notes);
  ignored(app, "-y,--stream_null", 0, o.notes);
  ignored(app, "-G,--cudagraph", 0, o.notes);
  fixed(app, "-D,--device_implementation", "0", "must be 0: atoll has no device implementations");
  ignored(app, "-V,--device_cta_count", 16, o.notes);
}

void read_environment(Options& o) {
  for (const char* name : {"NCCL_TESTS_SPLIT", "NCCL_TESTS_SPLIT_MASK"}) {
    const char* split = std::getenv(name);
    if (split != nullptr && *split != '\0')
      refuse(fmt::format("{} is not supported: use --axis shard or --axis replicate to run groups",
                         name));
  }
  if (const char* wanted = std::getenv("NCCL_TESTS_MIN_BW"); wanted != nullptr && *wanted != '\0')
    o.wanted_busbw = parse_number(wanted, "NCCL_TESTS_MIN_BW");
}

// Completes the range of sizes, and checks that values fit together.
void check(Options& o, const CLI::App& app) {
  if (app.count("-e") == 0) o.max_bytes = std::max(o.max_bytes, o.min_bytes);
  if (app.count("-b") == 0) o.min_bytes = std::min(o.max_bytes, o.min_bytes);
  if (o.min_bytes > o.max_bytes)
    refuse("-b " + human_bytes(o.min_bytes) + " is more than -e " + human_bytes(o.max_bytes));
  if (o.step_factor <= 1 && o.step_bytes == 0 && o.min_bytes < o.max_bytes)
    refuse("-i 0: the sizes from -b to -e would never end");
  if (o.step_factor > 1 && o.min_bytes == 0 && o.max_bytes > 0)
    refuse("-f from -b 0: the sizes would never end");
  if (o.tune.size() == 1) refuse("--tune OUT CURVE...: no curve file is given");
  if (o.latency_skip > 0 && !o.layout.latency) refuse("-K needs -I 1");
  if (o.latency_skip >= o.iterations) refuse("-K must be less than -n");
  if (o.expect && o.limit_from == LimitFrom::nothing)
    refuse("--expect needs a limit: remove --limit off");
}

constexpr cli::ForeignName foreign_flags[] = {
    {"--json (or -J FILE.json)", "csv"},
    {"--json", "output format"},
    {"mpirun -n N", "np"},
    {"--limit GB/s --expect SHARE", "min-bw min-bandwidth"},
    {"-n", "iterations num-iters"},
    {"-b", "minsize min-size"},
    {"-e", "maxsize max-size"},
};

// Returns a hint if an argument is the name of a collective or of an nccl-tests program.
std::string collective_hint(const CLI::App& app) {
  for (std::string word : app.remaining()) {
    if (word.ends_with("_perf")) word.resize(word.size() - std::string_view("_perf").size());
    if (collective_from_name(word)) return fmt::format("; use --collective {}", word);
  }
  return {};
}

constexpr const char* footer =
    "The ranks come from mpirun, srun --mpi=pmix, mpiexec, torchrun, or ATOLL_RANK, ATOLL_SIZE,\n"
    "ATOLL_ADDR and ATOLL_TOKEN. Without any of these, one rank runs. GB/s = 1e9 bytes per "
    "second.\n\n"
    "Examples:\n"
    "  mpirun -n 4 atoll-busbw -b 1M -e 256M -f 2\n"
    "  mpirun -n 4 atoll-busbw --collective all -b 64M -e 64M --expect 0.85\n"
    "  mpirun -n 16 atoll-busbw --axis shard --collective all_gather -d bfloat16 -b 8 -e 1G -f 4\n"
    "  mpirun -n 16 atoll-busbw --pairs -e 4M\n"
    "  atoll-busbw --tune tuning.txt ring.json two_level.json\n"
    "  atoll-busbw --flight run.0.json run.1.json\n\n"
    "Exit status:\n"
    "  0  success\n"
    "  1  internal error, file that cannot be read or written\n"
    "  2  error in the command line\n"
    "  3  failure of the library: a lost rank, a backend error, out of memory\n"
    "  4  timeout\n"
    "  5  operation or backend not supported, or no verdict of --pairs\n"
    "  7  wrong data, average below 0.9 x NCCL_TESTS_MIN_BW, row below --expect, finding of "
    "--pairs";

}  // namespace

std::optional<Options> parse_options(int argc, char** argv, Speaks speaks) {
  Options options;
  CLI::App app(
      "Measures the bus bandwidth of collectives on any backend, with the options and output of "
      "nccl-tests.",
      "atoll-busbw");
  app.option_defaults()->always_capture_default()->multi_option_policy(
      CLI::MultiOptionPolicy::TakeLast);  // the last use of an option wins, as with getopt
  declare_run(app, options);
  declare_sizes(app, options);
  declare_measuring(app, options);
  declare_output(app, options);
  declare_gpu_habits(app, options);
  // --pairs measures all ranks, has its own verdict, and writes --json only.
  for (const char* other : {"--axis", "--expect", "--limit", "--plot", "--save"})
    app.get_option("--pairs")->excludes(app.get_option(other));
  app.footer(footer);
  cli::add_common_options(app, {},
                          {"--collective", "-b", "-e", "-f", "-d", "-o", "-n", "-w", "-c", "--axis",
                           "--backend", "--device", "--pairs", "--expect", "--json", "--plot"});
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& request) {  // the request was --help, --version or the like
    if (speaks == Speaks::yes) app.exit(request);
    return std::nullopt;
  } catch (const CLI::ParseError& error) {
    throw std::runtime_error(cli::complaint(app, error, foreign_flags) + collective_hint(app));
  }
  read_environment(options);
  check(options, app);
  return options;
}

}  // namespace busbw
