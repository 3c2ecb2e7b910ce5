#include "options.hpp"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <span>
#include <stdexcept>
#include <string_view>
#include <vector>

#include "atoll/error.hpp"
#include "atoll/tooling/load.hpp"
#include "cli/cli.hpp"

namespace topo {
namespace {

using std::literals::operator""sv;

struct Unit {
  std::string_view name;
  double factor;
};

// Parses a positive number that is followed by the name of one of `units`. For other text, the
// error message says that the text is not `what`, and shows `example`.
double parse_quantity(const std::string& text, std::span<const Unit> units, std::string_view what,
                      std::string_view example) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  std::string_view unit(end, text.data() + text.size());
  while (unit.starts_with(' ')) unit.remove_prefix(1);
  if (error == std::errc() && std::isfinite(value) && value > 0)
    for (const Unit& known : units)
      if (unit == known.name && value * known.factor < 1e18) return value * known.factor;
  throw atoll::Error(atoll::ErrorCode::invalid_argument,
                     fmt::format("\"{}\" is not {}: write for example {}", text, what, example));
}

// Parses "70e9", "70B", "7.2b" (1e9) or "350M" (1e6).
double parse_params(const std::string& text) {
  static constexpr std::array units{Unit{"", 1},    Unit{"M", 1e6},  Unit{"m", 1e6}, Unit{"B", 1e9},
                                    Unit{"b", 1e9}, Unit{"T", 1e12}, Unit{"t", 1e12}};
  return parse_quantity(text, units, "a number of parameters", "70e9 or 70B");
}

// Parses "80GiB", "141GB", "1.5 TiB" or a number of bytes.
double parse_bytes(const std::string& text) {
  static constexpr std::array units{Unit{"", 1},         Unit{"B", 1},        Unit{"KiB", 0x1p10},
                                    Unit{"MiB", 0x1p20}, Unit{"GiB", 0x1p30}, Unit{"TiB", 0x1p40},
                                    Unit{"kB", 1e3},     Unit{"MB", 1e6},     Unit{"GB", 1e9},
                                    Unit{"TB", 1e12}};
  return parse_quantity(text, units, "a size", "80GiB or 141GB");
}

void declare_machine(CLI::App& app, Options& options) {
  std::vector<std::string> machines;
  for (const atoll::CatalogEntry& entry : atoll::catalog()) machines.push_back(entry.name);
  const std::string type = cli::words_type(machines);
  machines.emplace_back("list");
  app.add_option("--from,-i,FILE", options.from,
                 "describe the machine in FILE instead of this one: hwloc XML, NCCL XML, "
                 "nvidia-smi topo -m or -q -x, rocm-smi --showtopo, atoll JSON, or a catalog name; "
                 "NAME=a.xml,b.txt merges several views of one host; repeat the option for more "
                 "hosts. The flag may be left out")
      ->type_name(type)
      ->option_text("FILE")
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  app.add_option("--cluster", options.cluster,
                 "describe N machines of the catalog; \"list\" prints all names")
      ->type_name(cli::words_type(machines))
      ->option_text("NAME[xN]")
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  app.add_option("--fabric", options.fabric,
                 "read the leaf switch of each NIC from FILE: output of ibnetdiscover, or JSON")
      ->option_text("FILE");
  app.add_option("--diff", options.diff,
                 "list the differences between machines A and B (files or catalog names)")
      ->type_name(type)
      ->option_text("A B")
      ->expected(2);
  app.add_option("--host", options.host, "show only this host (name or id)")->option_text("NAME");
}

void declare_views(CLI::App& app, Options& options) {
  app.add_option("--format", options.format,
                 "tree and matrix are for people; json can be read by --from; svg is a picture; "
                 "nccl-xml is for NCCL_TOPO_FILE; env prints the NCCL settings that the machine "
                 "needs")
      ->check([](const std::string& format) {
        return format == "png" || format == "pdf"
                   ? fmt::format("{0} is written to a file: use -o FILE.{0}", format)
                   : std::string();
      })
      ->check(CLI::IsMember({"tree", "matrix", "json", "svg", "nccl-xml", "env"}))
      ->option_text("tree|matrix|json|svg|nccl-xml|env");
  app.add_flag("--doctor", options.doctor,
               "report faults, their cost and how to fix them; the exit status is 1 for warnings, "
               "2 for errors, 3 when the machine could not be examined");
  app.add_flag("-v,--verbose", options.verbose,
               "list the checks of --doctor that passed, and those that could not run, too")
      ->needs("--doctor");
  app.add_option("-o,--output", options.output,
                 "write to FILE instead of standard output; FILE.svg, FILE.png and FILE.pdf are "
                 "pictures")
      ->option_text("FILE");
  app.add_option("--color", options.colour, "use colours: auto (on a terminal), always or never")
      ->check(CLI::IsMember({"auto", "always", "never"}))
      ->option_text("WHEN");
  app.add_flag("--env", options.env, "list every ATOLL_* variable with its value and meaning");
}

void declare_mesh(CLI::App& app, Options& options) {
  app.add_option("--mesh", options.mesh,
                 "plan a mesh and explain it; with RxS (replicate x shard), check that mesh")
      ->option_text("[RxS]")
      ->expected(0, 1);
  app.add_option("--ranks", options.ranks,
                 "plan for N ranks, placed host by host (default: one per GPU; under a launcher: "
                 "the ranks of the job)")
      ->option_text("N")
      ->check(CLI::Range(1, 1'000'000))
      ->needs("--mesh");
  app.add_option("--islands", options.islands,
                 "pretend that the ranks, in order, form N equal islands (default: ATOLL_ISLANDS)")
      ->option_text("N")
      ->check(CLI::Range(1, 1'000'000))
      ->needs("--mesh");
  app.add_option_function<std::string>(
         "--params", [&](const std::string& text) { options.plan.params = parse_params(text); },
         "number of model parameters: shard over as few GPUs as can hold the model")
      ->option_text("70e9|70B")
      ->needs("--mesh");
  app.add_option_function<std::string>(
         "--gpu-memory",
         [&](const std::string& text) { options.plan.gpu_memory_bytes = parse_bytes(text); },
         "memory of one GPU (default: the value that the machine reports)")
      ->option_text("80GiB")
      ->needs("--params");
  app.add_option("--state-bytes", options.plan.state_bytes,
                 "bytes per parameter for weights, gradients and optimizer (default: 16)")
      ->option_text("B")
      ->check(CLI::Range(0.01, 1000.0))
      ->needs("--params");
  app.add_option("--tensor", options.plan.tensor,
                 "reserve groups of K GPUs inside an island for tensor parallelism")
      ->option_text("K")
      ->check(CLI::Range(1, 1'000'000))
      ->needs("--mesh");
}

void declare_top(CLI::App& app, TopOptions& top) {
  app.add_option("--top", top.address,
                 "show what the ranks of the running job at HOST:PORT do, and which rank keeps the "
                 "others waiting, until the job ends (default: ATOLL_ADDR). The token comes from "
                 "ATOLL_TOKEN or --token-file")
      ->option_text("[HOST:PORT]")
      ->expected(0, 1);
  app.add_option("--token-file", top.token_file, "read the token of the job from FILE")
      ->option_text("FILE")
      ->needs("--top");
  app.add_option("--interval", top.interval, "seconds between two tables (default: 1)")
      ->option_text("S")
      ->check(CLI::Range(0.1, 86'400.0))
      ->needs("--top");
  app.add_option("--count", top.count, "end after N tables")
      ->option_text("N")
      ->check(CLI::Range(1, 1'000'000'000))
      ->needs("--top");
  app.add_flag("--once", top.once, "end after one table, like --count 1");
  app.add_flag("--json", top.json, "print a line of JSON instead of each table of --top");
}

void require(bool holds, const char* what) {
  if (!holds) throw atoll::Error(atoll::ErrorCode::invalid_argument, what);
}

// Requires HOST:PORT. An IPv6 address needs brackets, because it contains colons itself.
void check_address(const std::string& address) {
  const auto colon = std::min(address.rfind(':'), address.size());
  std::string_view host = std::string_view(address).substr(0, colon);
  const std::string_view port =
      std::string_view(address).substr(std::min(colon + 1, address.size()));
  const bool has_brackets = host.starts_with('[') && host.ends_with(']') && host.size() > 2;
  if (has_brackets) host = host.substr(1, host.size() - 2);
  int number = 0;
  const auto [end, error] = std::from_chars(port.data(), port.data() + port.size(), number);
  if (host.empty() || host.find_first_of(has_brackets ? "[]" : "[]:") != host.npos ||
      error != std::errc() || end != port.data() + port.size() || number < 1 || number > 65535)
    throw atoll::Error(
        atoll::ErrorCode::invalid_argument,
        fmt::format("--top \"{}\": expected HOST:PORT with a port from 1 to 65535, for example "
                    "node7:29500, or [fd00::7]:29500 for an IPv6 address",
                    address));
}

bool is_picture_name(const std::string& file) {
  const std::string extension = std::filesystem::path(file).extension();
  return extension == ".svg" || extension == ".png" || extension == ".pdf";
}

// If -o is missing and the last input names a picture, that name is the output file, as in lstopo.
void take_picture_name(Options& options) {
  for (auto* names : {&options.from, &options.cluster}) {
    if (!options.output.empty() || names->empty() || !is_picture_name(names->back())) continue;
    options.output = names->back();
    names->pop_back();
  }
}

// Chooses the format by the extension of the output file, unless --format names it.
void choose_format(Options& options, bool is_named) {
  const std::string extension = std::filesystem::path(options.output).extension();
  if (is_named && is_picture_name(options.output) && extension != "." + options.format)
    throw atoll::Error(atoll::ErrorCode::invalid_argument,
                       fmt::format("-o {} is a picture of another form than --format {}: leave "
                                   "--format out, or choose another name",
                                   options.output, options.format));
  if (options.output.empty() || options.doctor || options.env || options.catalog ||
      !options.diff.empty() || (is_named && options.format != "svg"))
    return;
  const bool is_picture = is_picture_name(options.output);
  if (!is_picture && (is_named || (extension != "" && extension != ".txt")))
    throw atoll::Error(
        atoll::ErrorCode::invalid_argument,
        fmt::format("-o {}: unknown extension \"{}\"; .svg, .png and .pdf are pictures, .txt or no "
                    "extension is the tree, and --format chooses any other format",
                    options.output, extension));
  if (is_picture) options.format = "svg";
}

void check(const Options& options) {
  if (options.cluster.size() > 1 && options.cluster.back().starts_with('x'))
    throw atoll::Error(atoll::ErrorCode::invalid_argument,
                       fmt::format("{0}: to repeat a machine, write --cluster {1}{0}",
                                   options.cluster.back(), options.cluster.front()));
  if (options.top.address && !options.top.address->empty()) check_address(*options.top.address);
  require(options.from.empty() || options.cluster.empty(),
          "--from and --cluster: use only one of them");
  require(options.diff.empty() || (options.from.empty() && options.cluster.empty()),
          "--diff names both machines: remove --from and --cluster");
  require(!options.doctor || options.format == "tree" || options.format == "json",
          "--doctor supports only --format tree and --format json");
  require(!options.mesh || options.mesh->empty() || !options.plan.params,
          "--params plans a mesh: remove the shape RxS after --mesh");
  require(!options.top.address || (options.from.empty() && options.cluster.empty() &&
                                   options.diff.empty() && !options.doctor && !options.mesh),
          "--top watches a running job: remove the options that describe a machine");
  require(options.top.address || (!options.top.once && !options.top.json),
          "--once and --json need --top; otherwise use --format json");
  require(options.islands == 0 || options.plan.tensor == 1,
          "--tensor needs real islands: remove --islands");
}

constexpr cli::ForeignName foreign_flags[] = {
    {"--format (of a picture: -o FILE.png)", "of output-format"},
    {"--format matrix", "csv topo m"},
    {"--from (a file or a machine of the catalog)", "input i"},
    {"--cluster", "machine preset"},
    {"--doctor", "check diagnose doctor"},
    {"-v (beside --doctor)", "all"},
    {"--format tree (I/O devices are always shown)", "no-io whole-io whole-system io"},
    {"--format env", "nccl-env env-vars"}};

}  // namespace

std::optional<Options> parse_options(int argc, char** argv) {
  Options options;
  CLI::App app(
      "Shows the hosts, GPUs, NICs, islands and rails of a machine, reports faults and how to fix "
      "them, plans a mesh, and watches a running job.",
      "atoll-topo");
  declare_machine(app, options);
  declare_views(app, options);
  declare_mesh(app, options);
  declare_top(app, options.top);
  app.footer(
      "Under a launcher, atoll-topo describes all hosts of the job, and rank 0 prints.\n\n"
      "Examples:\n"
      "  atoll-topo                                    show this machine\n"
      "  atoll-topo --doctor                           find faults and explain how to fix them\n"
      "  mpirun -n 16 atoll-topo --mesh                show the hosts of a job and plan a mesh\n"
      "  atoll-topo --format json > node.json          save this machine for --from node.json\n"
      "  atoll-topo --from n0=n0.xml,n0.txt --mesh     merge two files about one host\n"
      "  atoll-topo --cluster hgx-h100x16 --mesh --params 70e9\n"
      "                                                plan for a cluster of the catalog\n"
      "  atoll-topo -o node.svg                        draw a picture (or node.png, node.pdf)\n"
      "  atoll-topo --top node7:29500                  watch a running job\n\n"
      "Exit status: 0 on success. --doctor returns 1 for warnings, 2 for errors, and 3 when the "
      "machine could not be examined. --diff returns 1 when the machines differ, and --top when "
      "the job has failed. Other failures return 2 after one line on standard error.");
  cli::add_common_options(app);
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& request) {  // thrown for --help, --version and the like
    app.exit(request);
    return std::nullopt;
  } catch (const CLI::ParseError& error) {
    throw std::runtime_error(cli::complaint(app, error, foreign_flags));
  }
  for (const std::string& what : options.from) {
    const auto arguments = std::span(argv, static_cast<std::size_t>(argc)).subspan(1);
    const auto at = std::ranges::find(arguments, what);
    if (at != arguments.end() && at[-1] != "--from"sv && at[-1] != "-i"sv)
      options.bare.push_back(what);
  }
  take_picture_name(options);
  options.catalog = options.cluster == std::vector<std::string>{"list"};
  choose_format(options, app.count("--format") > 0);
  check(options);
  return options;
}

}  // namespace topo
