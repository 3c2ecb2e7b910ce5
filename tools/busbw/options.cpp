#include "options.hpp"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <utility>

#include "atoll/error.hpp"
#include "cli/cli.hpp"

namespace busbw {
namespace {

constexpr std::uint64_t most_bytes = std::uint64_t{1} << 50U;

[[noreturn]] void refuse(const std::string& why) {
  throw atoll::Error(atoll::ErrorCode::invalid_argument, why);
}

// Option values as text, until all options are parsed.
struct Texts {
  std::string collective = "all_reduce", limit = "machine", expect;
  std::vector<std::string> memory;
  std::string min = "32M", max = "32M", step = "1M", factor = "1";
  std::string dtype = "float", op = "sum";
  int time_of = 1, blocking = 0, threads = 1, gpus = 1, local_register = -1;
  int latency = 0, cpu_time = 0, timestamps = 0;
  // GPU options of nccl-tests, accepted so that scripts work.
  int parallel_init = 0, stream_null = 0, graph = 0, cta_policy = 0, device = 0, device_ctas = 16;
  std::vector<std::string> flight, tune;
};

double parse_number(const std::string& text, const std::string& what) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size() || !std::isfinite(value))
    refuse(what + " " + text + ": not a number");
  return value;
}

template <class Known, std::size_t size, class Parse>
std::vector<Known> parse_list(const std::string& text, const std::array<Known, size>& all,
                              const std::string& option, Parse parse) {
  if (text == "all") return {all.begin(), all.end()};
  std::vector<Known> list;
  std::size_t begin = 0;
  while (begin <= text.size()) {
    const std::size_t comma = std::min(text.find(',', begin), text.size());
    const std::string item = text.substr(begin, comma - begin);
    begin = comma + 1;
    if (const auto found = parse(item)) {
      list.push_back(*found);
      continue;
    }
    std::string names;
    for (const Known& one : all) names += fmt::format("{}, ", name(one));
    refuse(fmt::format("{} {}: not one of {}all", option, item, names));
  }
  return list;
}

// Adds options under one heading of --help.
class Section {
 public:
  Section(CLI::App& app, const char* heading) : app_(app), heading_(heading) {}

  template <class T>
  CLI::Option* add(const char* names, T& target, const char* help) {
    return app_.add_option(names, target, help)->group(heading_);
  }
  template <class T>
  void flag(const char* names, T& target, const char* help) {
    app_.add_flag(names, target, help)->group(heading_);
  }

 private:
  CLI::App& app_;
  const char* heading_;
};

void declare_run(CLI::App& app, Options& o, Texts& t) {
  Section section(app, "What to run");
  section.add("--collective", t.collective,
              "all_reduce, all_gather, reduce_scatter, broadcast, reduce, gather, scatter, "
              "all_to_all, all_gather_v, reduce_scatter_v, send_recv; a list with commas; or all");
  section.add(
      "-d,--datatype", t.dtype,
      "float, half, bfloat16, double, int8, uint8, uint16, int32, uint32, int64, uint64 (or "
      "f32, f16, bf16, f64, i8, u8, u16, i32, u32, i64, u64); a list with commas; or all");
  section.add(
      "-o,--op", t.op,
      "sum, prod, max, min, avg, mulsum (a sum of scaled inputs); a list with commas; or all");
  section.add("-r,--root", o.root, "root rank within the axis; -1: every rank in turn");
  section
      .add("--axis", o.axis,
           "axis of the planned mesh: world, shard or replicate; all groups of the axis run at "
           "once, and the slowest counts")
      ->check(CLI::IsMember({"world", "shard", "replicate"}));
  section
      .add("--device", o.device,
           "buffers in host memory (host) or on GPUs (cuda; the ranks of a host use its GPUs in "
           "turn); auto: cuda when every rank has its own GPU and a backend supports it")
      ->check(CLI::IsMember({"auto", "host", "cuda"}));
  section.add("--backend", o.backend, "host, nccl, mpi, ...; default: the best that works");
  section.add(
      "-x,--cta_policy", t.cta_policy,
      "compute units of a GPU that collectives may take: 0 as many as the backend likes, 1 "
      "few, 2 none (copy engines run all_gather and all_to_all of registered memory, if the "
      "hardware can)");
  section.flag("--require-gdr", o.require_gdr,
               "fail unless every connection between hosts uses GPUDirect RDMA");
  section.add("--algorithm", o.algorithm,
              "NAME, or COLLECTIVE:NAME,...; default: the backend chooses (ATOLL_ALGORITHM)");
  section
      .add("-M,--memory", t.memory,
           "memory of the buffers: registered (atoll::allocate) or plain; or, as in nccl-tests, 1 "
           "to "
           "report memory usage and 0 not to; give the option twice to set both")
      ->take_all()
      ->allow_extra_args(false)
      ->default_str("registered");
  section.flag("--pairs", o.pairs,
               "measure the bandwidth between every two ranks with messages of -e bytes, and name "
               "the rank, host or NIC that is slow");
  section
      .add("--tune", t.tune,
           "OUT CURVE...: write a tuning file (ATOLL_TUNING) from curves that were saved with "
           "different --algorithm")
      ->take_all()
      ->default_str("");
  section
      .add("--flight", t.flight,
           "explain the flight recorder files (ATOLL_FLIGHT) of a job: what each rank did last")
      ->take_all()
      ->default_str("");
}

void declare_sizes(CLI::App& app, Options& o, Texts& t) {
  Section section(app, "Sizes in bytes; K, M, G are powers of 1,024");
  section.add("-b,--minbytes", t.min, "smallest size; default: 32M, or -e when that is smaller");
  section.add("-e,--maxbytes", t.max, "largest size; default: 32M, or -b when that is larger");
  section.add("-i,--stepbytes", t.step, "increment between sizes");
  section.add("-f,--stepfactor", t.factor,
              "factor between sizes; 2 or more replaces the increment");
  section.add("-u,--unalign", o.unalign, "elements by which buffers are misaligned");
}

void declare_measuring(CLI::App& app, Options& o, Texts& t) {
  Section section(app, "How to measure");
  section.add("-n,--iters", o.iterations, "number of timed batches");
  section.add("-m,--agg_iters", o.batch, "operations in a batch");
  section.add("-w,--warmup_iters", o.warmups, "operations before the timed ones");
  section.add("-N,--run_cycles", o.cycles, "how often to repeat all sizes; 0: until interrupted");
  section.add("-c,--check", o.checks, "number of operations whose results are checked; 0: none");
  section.add("-a,--average", t.time_of,
              "time to report: 0 rank 0, 1 average of the ranks, 2 fastest rank, 3 slowest rank");
  section.add("-z,--blocking", t.blocking,
              "1: wait and barrier after each operation; 2: wait after each operation; 3: wait and "
              "an untimed barrier after each batch");
  section.add("-T,--timeout", o.timeout_s, "seconds for one operation; 0: ATOLL_TIMEOUT");
  section.add("-R,--local_register", t.local_register,
              "1 or 2: same as --memory registered; 0: same as --memory plain");
}

void declare_output(CLI::App& app, Options& o, Texts& t) {
  Section section(app, "What to report");
  section.add("-I,--per_iter_timing", t.latency,
              "1: also time single operations (us): columns i_min, i_max, i_p99 and i_cv%, and p50 "
              "and p99 below the table");
  section.flag("--latency", t.latency, "same as -I 1");
  section.add("-K,--per_iter_skip", o.latency_skip, "number of first samples that -I leaves out");
  section.add("-C,--report_cputime", t.cpu_time,
              "1: report the time to enqueue an operation (us) instead of its duration");
  section.add("-S,--report_timestamps", t.timestamps, "1: report when each row was measured");
  section.add("--limit", t.limit,
              "what `% of limit` compares with: machine (link rates of the topology and measured "
              "memory bandwidth; on GPUs the rate of a ring), a bus bandwidth in GB/s, or off");
  section.add("--expect", t.expect,
              "share of the limit that every row must reach, for example 0.85 for 85 %");
  section.add("-J,--output_file,--json", o.json, "file for the complete report as JSON");
  section.add("--save", o.save, "file for the measured curve, which --tune reads");
  section.add("--plot", o.plot, "page for a browser with a plot of bus bandwidth over size");
}

void declare_gpu_habits(CLI::App& app, Texts& t) {
  Section section(app, "Options of nccl-tests, so that its scripts run unchanged");
  section.add("-t,--nthreads", t.threads, "must be 1: a rank is a process");
  section.add("-g,--ngpus", t.gpus, "must be 1: a rank is a process");
  section.add("-p,--parallel_init", t.parallel_init, "ignored");
  section.add("-y,--stream_null", t.stream_null, "ignored");
  section.add("-G,--cudagraph", t.graph, "ignored");
  section.add("-D,--device_implementation", t.device, "must be 0");
  section.add("-V,--device_cta_count", t.device_ctas, "ignored");
}

void take_gpu_habits(Options& o, const Texts& t) {
  if (t.threads != 1 || t.gpus != 1)
    refuse("-t and -g must be 1: a rank is a process here; start more (mpirun -n N)");
  if (t.device != 0) refuse("-D must be 0: atoll has no device implementations");
  const auto note = [&](bool given, const char* option) {
    if (given) o.notes.push_back(std::string(option) + " has no effect");
  };
  note(t.parallel_init != 0, "-p");
  note(t.stream_null != 0, "-y");
  note(t.graph != 0, "-G");
  note(t.device_ctas != 16, "-V");
}

void take_lists(Options& o, const Texts& t) {
  o.collectives = parse_list(t.collective, all_collectives, "--collective", collective_from_name);
  o.dtypes = parse_list(t.dtype, all_dtypes, "-d", dtype_from_name);
  o.ops = parse_list(t.op, all_ops, "-o", op_from_name);
}

void take_memory(Options& o, const Texts& t) {
  if (t.local_register == 0) o.memory = MemoryKind::plain;
  for (const std::string& word : t.memory) {
    if (word == "registered" || word == "plain")
      o.memory = word == "plain" ? MemoryKind::plain : MemoryKind::registered;
    else if (word == "0" || word == "1")
      o.memory_report = word == "1";
    else
      refuse("--memory " + word + ": use registered, plain, 0 or 1");
  }
}

void take_limit(Options& o, const Texts& t) {
  if (t.limit == "off") {
    o.limit_from = LimitFrom::nothing;
  } else if (t.limit != "machine") {
    o.limit_from = LimitFrom::given;
    o.limit_busbw = parse_number(t.limit, "--limit");
    if (o.limit_busbw <= 0) refuse("--limit " + t.limit + ": must be above 0 GB/s");
  }
  if (!t.expect.empty()) {
    o.expect = parse_number(t.expect, "--expect");
    if (*o.expect <= 0 || *o.expect > 1)
      refuse("--expect " + t.expect + ": must be above 0 and at most 1, as in 0.85");
    if (o.limit_from == LimitFrom::nothing) refuse("--expect needs a limit: remove --limit off");
  }
  for (const char* name : {"NCCL_TESTS_SPLIT", "NCCL_TESTS_SPLIT_MASK"}) {
    const char* split = std::getenv(name);
    if (split != nullptr && *split != '\0')
      refuse(fmt::format("{} is not supported: use --axis shard or --axis replicate to run groups",
                         name));
  }
  if (const char* wanted = std::getenv("NCCL_TESTS_MIN_BW"); wanted != nullptr && *wanted != '\0')
    o.wanted_busbw = parse_number(wanted, "NCCL_TESTS_MIN_BW");
}

void take_sizes(Options& o, const Texts& t, const CLI::App& app) {
  o.min_bytes = parse_size(t.min);
  o.max_bytes = parse_size(t.max);
  if (app.count("-e") == 0) o.max_bytes = std::max(o.max_bytes, o.min_bytes);
  if (app.count("-b") == 0) o.min_bytes = std::min(o.max_bytes, o.min_bytes);
  o.step_bytes = parse_size(t.step);
  const double factor = parse_number(t.factor, "-f");
  if (factor < 0 || factor > 1e6 || factor != std::floor(factor))
    refuse("-f " + t.factor + ": must be a whole number, such as 2 to double the size");
  o.step_factor = static_cast<std::uint64_t>(factor);
  if (o.min_bytes > o.max_bytes) refuse("-b " + t.min + " is more than -e " + t.max);
  if (o.step_factor <= 1 && o.step_bytes == 0 && o.min_bytes < o.max_bytes)
    refuse("-i 0: the sizes from -b to -e would never end");
  if (o.step_factor > 1 && o.min_bytes == 0 && o.max_bytes > 0)
    refuse("-f from -b 0: the sizes would never end");
}

template <class Enum>
Enum take_choice(int value, int most, const char* option) {
  if (value < 0 || value > most) refuse(fmt::format("{} {}: 0 to {}", option, value, most));
  return static_cast<Enum>(value);
}

void take_counts(Options& o, const Texts& t) {
  const auto at_least = [](int value, int least, const char* option) {
    if (value < least) refuse(fmt::format("{} {}: at least {}", option, value, least));
  };
  at_least(o.iterations, 1, "-n");
  at_least(o.batch, 1, "-m");
  at_least(o.warmups, 0, "-w");
  at_least(o.cycles, 0, "-N");
  at_least(o.checks, 0, "-c");
  at_least(o.root, -1, "-r");
  at_least(o.timeout_s, 0, "-T");
  at_least(o.latency_skip, 0, "-K");
  take_choice<int>(o.unalign, 1 << 20, "-u");
  o.time_of = take_choice<TimeOf>(t.time_of, 3, "-a");
  o.blocking = take_choice<Blocking>(t.blocking, 3, "-z");
  o.compute_units = take_choice<atoll::ComputeUnits>(t.cta_policy, 2, "-x");
  o.layout.latency = take_choice<int>(t.latency, 1, "-I") == 1;
  o.layout.cpu_time = take_choice<int>(t.cpu_time, 1, "-C") == 1;
  o.layout.timestamps = take_choice<int>(t.timestamps, 1, "-S") == 1;
  if (t.local_register < -1 || t.local_register > 2) refuse("-R: 0, 1 or 2");
  if (o.latency_skip > 0 && !o.layout.latency) refuse("-K needs -I 1");
  if (o.latency_skip >= o.iterations) refuse("-K must be less than -n");
  if (o.pairs > 0 && o.axis != "world") refuse("--pairs measures all ranks: remove --axis");
  if (o.pairs > 0 && o.expect) refuse("--pairs has its own verdict: remove --expect");
  if (o.pairs > 0 && (!o.plot.empty() || !o.save.empty()))
    refuse("--pairs writes --json only: remove --plot and --save");
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
    "  3  failure of the library: a lost rank, a backend error, out of memory\n"
    "  4  timeout\n"
    "  5  operation or backend not supported, or no verdict of --pairs\n"
    "  6  error in the command line\n"
    "  7  wrong data, average below 0.9 x NCCL_TESTS_MIN_BW, row below --expect, finding of "
    "--pairs";

}  // namespace

std::uint64_t parse_size(const std::string& text) {
  static constexpr std::array<std::pair<char, double>, 4> units{
      std::pair{'K', 0x1p10}, {'M', 0x1p20}, {'G', 0x1p30}, {'T', 0x1p40}};
  std::string digits = text;
  double unit = 1;
  if (!digits.empty()) {
    for (const auto& [letter, factor] : units) {
      if (std::toupper(static_cast<unsigned char>(digits.back())) != letter) continue;
      unit = factor;
      digits.pop_back();
      break;
    }
  }
  double value = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  const double bytes = value * unit;
  if (digits.empty() || error != std::errc{} || end != digits.data() + digits.size() ||
      !(bytes >= 0) || bytes > static_cast<double>(most_bytes))
    refuse("\"" + text + "\" is not a size, as in 8, 64K, 32M or 1G");
  return static_cast<std::uint64_t>(bytes);
}

std::optional<Options> parse_options(int argc, char** argv, Speaks speaks) {
  Options options;
  Texts texts;
  CLI::App app(
      "Measures the bus bandwidth of collectives on any backend, with the options and output of "
      "nccl-tests.",
      "atoll-busbw");
  app.option_defaults()->always_capture_default()->multi_option_policy(
      CLI::MultiOptionPolicy::TakeLast);  // the last use of an option wins, as with getopt
  declare_run(app, options, texts);
  declare_sizes(app, options, texts);
  declare_measuring(app, options, texts);
  declare_output(app, options, texts);
  declare_gpu_habits(app, texts);
  app.footer(footer);
  cli::add_common_options(app);
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& request) {  // the request was --help, --version or the like
    if (speaks == Speaks::yes) app.exit(request);
    return std::nullopt;
  }
  for (const std::string& file : texts.flight) options.flight.emplace_back(file);
  for (const std::string& file : texts.tune) options.tune.emplace_back(file);
  if (options.tune.size() == 1) refuse("--tune OUT CURVE...: no curve file is given");
  take_gpu_habits(options, texts);
  take_lists(options, texts);
  take_memory(options, texts);
  take_limit(options, texts);
  take_sizes(options, texts, app);
  take_counts(options, texts);
  return options;
}

}  // namespace busbw
