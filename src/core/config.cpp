#include "atoll/config.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <sstream>
#include <variant>

#include "core/errors.hpp"
#include "core/log.hpp"
#include "core/parse.hpp"
#include "core/settings.hpp"
#include "core/socket.hpp"
#include "core/terminal_safe.hpp"

namespace atoll_v1::atoll {
namespace {

constexpr std::string_view prefix = "ATOLL_";
constexpr std::string_view file_variable = "ATOLL_CONFIG";
constexpr std::size_t most_file_bytes = 1 << 20;

// Smallest and largest value of a setting.
struct Limits {
  int least = 0;
  int most = 0;
};
constexpr Limits no_limits{};
constexpr Limits rank_limits{-1, 1 << 20};
constexpr Limits count_limits{0, 1 << 20};
constexpr Limits seconds_limits{1, 1'000'000'000};

// Marks ATOLL_CONFIG in the table of settings. This variable has no field in Config, because only
// from_env() reads it.
struct FileName {};
using Field =
    std::variant<int Config::*, std::string Config::*, std::chrono::seconds Config::*, FileName>;

struct SettingRow {
  std::string_view variable;
  std::string_view unit;
  std::string_view meaning;
  Field field;
  Limits limits{};             // range of a number or duration; unused for texts
  std::string_view choices{};  // allowed texts besides "", separated by '|'; "" allows all texts
};

const SettingRow rows[] = {
    {file_variable, "path", "file of `name = value` lines, read before the environment",
     FileName{}},
    {"ATOLL_RANK", "", "rank of this process; -1: the launcher decides", &Config::rank,
     rank_limits},
    {"ATOLL_SIZE", "", "number of ranks; -1: the launcher decides", &Config::size, rank_limits},
    {"ATOLL_LOCAL_RANK", "", "rank among the ranks of this host; -1: determined by atoll",
     &Config::local_rank, rank_limits},
    {"ATOLL_ADDR", "host:port",
     "address at which rank 0 serves the rendezvous store; on rank 0, port 0: a free port",
     &Config::addr},
    {"ATOLL_TOKEN", "", "secret shared by all ranks of the job", &Config::token},
    {"ATOLL_STORE", "",
     "who serves the store; empty or \"rank0\": rank 0; \"external\": atoll-store, at ATOLL_ADDR",
     &Config::store, no_limits, "rank0|external"},
    {"ATOLL_PORT", "", "port of the store under torchrun; 0: MASTER_PORT + 1", &Config::port,
     Limits{0, 65535}},
    {"ATOLL_INTERFACE", "",
     "comma-separated network interfaces, one per rail; empty: the interface of "
     "the default route",
     &Config::interface},
    {"ATOLL_HOST_ID", "",
     "ranks with different values count as different hosts, to test several hosts on one machine",
     &Config::host_id},
    {"ATOLL_RENDEZVOUS_TIMEOUT", "seconds", "time for all ranks to join the job",
     &Config::rendezvous_timeout, seconds_limits},
    {"ATOLL_TIMEOUT", "seconds", "time for one collective", &Config::timeout, seconds_limits},
    {"ATOLL_CUT_TIMEOUT", "seconds",
     "time without any answer from another host after which the network counts as cut",
     &Config::cut_timeout, Limits{1, 3600}},
    {"ATOLL_HEARTBEAT", "seconds",
     "time without a sign of life after which a stopped rank counts as lost, if its loss does not "
     "end the job; 0: never",
     &Config::heartbeat, Limits{0, 3600}},
    {"ATOLL_FILE_TIMEOUT", "seconds",
     "time to wait until other ranks have read or written their files, such as a checkpoint",
     &Config::file_timeout, seconds_limits},
    {"ATOLL_BACKEND", "", "communication backend; empty: the best that works on every rank",
     &Config::backend},
    {"ATOLL_PLUGIN_PATH", "path", "colon-separated directories, searched first for backends",
     &Config::plugin_path},
    {"ATOLL_ALGORITHM", "",
     "COLLECTIVE:ALGORITHM,... overrides the choice of the backend (names: README of the "
     "backend)",
     &Config::algorithm},
    {"ATOLL_TUNING", "path",
     "file of algorithms by collective and size, as written by atoll-busbw --tune",
     &Config::tuning},
    {"ATOLL_FAILURE_SCOPE", "",
     "what fails with a collective or a lost rank; empty or \"job\": the whole job; "
     "\"communicator\": the communicators concerned",
     &Config::failure_scope, no_limits, "job|communicator"},
    {"ATOLL_OWNS_PROCESS", "",
     "1: a World acts on the whole process (std::terminate, signals, end with the launcher)",
     &Config::owns_process, Limits{0, 1}},
    {"ATOLL_PARENT", "",
     "launcher whose end fails the job; empty or \"end\": the one that started this process; "
     "\"parent\": the same, and without a launcher the parent process; \"ignore\": none",
     &Config::parent, no_limits, "end|parent|ignore"},
    {"ATOLL_TCP_CHECKSUM", "",
     "checksum of the data that the host backend sends over TCP; empty or \"off\": none; "
     "\"crc32c\": corrupted data is an error",
     &Config::tcp_checksum, no_limits, "off|crc32c"},
    {"ATOLL_RDMA", "",
     "settings of the verbs backend, separated by spaces: devices=NAME[:PORT],... gid=INDEX "
     "mtu=BYTES sl=LEVEL tc=CLASS pkey=0xKEY queue_pairs=N timeout=EXPONENT",
     &Config::rdma},
    {"ATOLL_DETERMINISTIC", "",
     "1: floating-point sums in one order, which depends on the mesh only", &Config::deterministic,
     Limits{0, 1}},
    {"ATOLL_FLIGHT", "path",
     "prefix of files PREFIX.RANK.json with the last operations of each rank, written at a "
     "failure and on SIGUSR1; empty: none",
     &Config::flight},
    {"ATOLL_STACK_SIGNAL", "",
     "signal by which threads record their stacks for the flight file of a failure; 0: no stacks",
     &Config::stack_signal, Limits{0, 64}},
    {"ATOLL_ISLANDS", "",
     "emulates this many islands over all ranks; 0: the islands of the topology", &Config::islands,
     count_limits},
    {"ATOLL_THREADS", "", "compute threads of this rank; 0: its share of the cores",
     &Config::threads, count_limits},
    {"ATOLL_CHECK", "",
     "\"lifetimes\": checks the order of all uses of device memory (slower); empty: no checks",
     &Config::check, no_limits, "lifetimes"},
    {"ATOLL_LOG", "", "lowest level to log: trace, debug, info, warn, error or off", &Config::log},
};

std::string name_in_file(std::string_view variable) {
  std::string result;
  for (const char c : variable.substr(prefix.size())) {
    result += c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  }
  return result;
}

const SettingRow* find_row(std::string_view name) {
  const auto found = std::ranges::find_if(rows, [&](const SettingRow& row) {
    return row.variable == name || name_in_file(row.variable) == name;
  });
  return found == std::end(rows) ? nullptr : &*found;
}

[[noreturn]] void reject(std::string_view variable, std::string_view value, std::string_view want) {
  throw invalid("{}=\"{}\": expected {}", variable, terminal_safe(value), want);
}

int parse_number(const SettingRow& row, std::string_view value) {
  const std::optional<int> number = number_from<int>(value);
  if (!number || *number < row.limits.least || *number > row.limits.most) {
    reject(row.variable, value,
           fmt::format("a whole number{}{} from {} to {}", row.unit.empty() ? "" : " of ", row.unit,
                       row.limits.least, row.limits.most));
  }
  return *number;
}

void set_row(Config& config, const SettingRow& row, std::string_view value) {
  if (row.variable == "ATOLL_LOG") {
    try {
      log::level_from_name(value);
    } catch (const Error&) {
      reject(row.variable, value, "trace, debug, info, warn, error or off");
    }
  }
  const auto choices = split(row.choices, '|');
  const bool is_allowed = value.empty() || std::ranges::find(choices, value) != choices.end();
  if (!row.choices.empty() && !is_allowed) {
    reject(row.variable, value, fmt::format("\"{}\", or nothing", fmt::join(choices, "\", \"")));
  }
  if (const auto* number = std::get_if<int Config::*>(&row.field)) {
    config.*(*number) = parse_number(row, value);
  } else if (const auto* text = std::get_if<std::string Config::*>(&row.field)) {
    config.*(*text) = std::string(value);
  } else if (const auto* seconds = std::get_if<std::chrono::seconds Config::*>(&row.field)) {
    config.*(*seconds) = std::chrono::seconds(parse_number(row, value));
  } else {
    throw invalid("{} can only be set in the environment", row.variable);
  }
}

// Returns the value in the form that set_row() reads.
std::string value_of(const Config& config, const SettingRow& row) {
  if (const auto* number = std::get_if<int Config::*>(&row.field)) {
    return fmt::format("{}", config.*(*number));
  }
  if (const auto* text = std::get_if<std::string Config::*>(&row.field)) return config.*(*text);
  if (const auto* seconds = std::get_if<std::chrono::seconds Config::*>(&row.field)) {
    return fmt::format("{}", (config.*(*seconds)).count());
  }
  const char* path = std::getenv(std::string(file_variable).c_str());
  return path == nullptr ? "" : path;
}

// Where the name of a setting was found.
enum class Origin {
  file,
  environment
};

// Levenshtein distance: an insertion, deletion or substitution costs one.
std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 0; i < a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i + 1;
    for (std::size_t j = 0; j < b.size(); ++j) {
      const std::size_t substituted = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({row[j] + 1, diagonal + 1, substituted});
    }
  }
  return row.back();
}

// Returns a remedy for an unknown variable: the nearest known one if at most a third of its letters
// differ. Names it as in a file if `variable` came from a file.
std::string suggestion(const std::string& variable, Origin origin) {
  const auto distance = [&](const SettingRow& row) {
    return edit_distance(variable, row.variable);
  };
  const std::string_view nearest = std::ranges::min_element(rows, {}, distance)->variable;
  const std::size_t letters = std::max(variable.size(), nearest.size()) - prefix.size();
  if (3 * edit_distance(variable, nearest) > letters)
    return "`atoll-topo --env` lists all settings";
  return fmt::format("did you mean {}?",
                     origin == Origin::file ? name_in_file(nearest) : std::string(nearest));
}

// Converts "timeout" to "ATOLL_TIMEOUT".
std::string as_variable(std::string_view name) {
  if (name.starts_with(prefix)) return std::string(name);
  std::string result(prefix);
  for (const char c : name) {
    result += c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c;
  }
  return result;
}

// Removes a comment from a line. `#` begins one at the start of the line or after white space, so a
// token may contain it.
std::string_view without_comment(std::string_view line) {
  for (std::size_t at = line.find('#'); at != std::string_view::npos; at = line.find('#', at + 1)) {
    if (at == 0 || line[at - 1] == ' ' || line[at - 1] == '\t') return line.substr(0, at);
  }
  return line;
}

void read_file(Config& config, const std::string& path, std::vector<std::string>& warnings) {
  std::istringstream file(read_settings_file(file_variable, path));
  const std::string shown = terminal_safe(path);
  std::string line;
  for (int number = 1; std::getline(file, line); ++number) {
    const std::string_view text = trimmed(without_comment(line));
    if (text.empty()) continue;
    const auto equals = text.find('=');
    require(equals != std::string_view::npos, "{}:{}: expected `name = value`", shown, number);
    const std::string_view name = trimmed(text.substr(0, equals));
    const SettingRow* row = find_row(name);
    if (row == nullptr) {
      warnings.push_back(fmt::format("{}:{}: unknown name {}; {}", shown, number,
                                     terminal_safe(name),
                                     suggestion(as_variable(name), Origin::file)));
      continue;
    }
    try {
      set_row(config, *row, trimmed(text.substr(equals + 1)));
    } catch (const Error& error) {
      throw Error(error.code(), fmt::format("{}:{}: {}", shown, number, error.what()));
    }
  }
}

void read_environment(Config& config, std::vector<std::string>& warnings) {
  for (char** item = environ; item != nullptr && *item != nullptr; ++item) {
    const std::string_view text = *item;
    // These variables belong to the tests and benches.
    const bool of_tests = text.starts_with("ATOLL_TEST_") || text.starts_with("ATOLL_BENCH_");
    if (!text.starts_with(prefix) || of_tests) continue;
    const auto equals = text.find('=');
    const std::string_view variable = text.substr(0, equals);
    if (variable == file_variable || equals == std::string_view::npos) continue;
    const SettingRow* row = find_row(variable);
    if (row == nullptr) {
      warnings.push_back(fmt::format("unknown variable {}; {}", terminal_safe(variable),
                                     suggestion(std::string(variable), Origin::environment)));
    } else {
      set_row(config, *row, text.substr(equals + 1));
    }
  }
}

}  // namespace

std::string read_settings_file(std::string_view setting, const std::string& name) {
  const std::string path = terminal_safe(name);  // the path as messages show it
  // O_NONBLOCK: opening a pipe must not wait for a writer.
  const net::Fd file(::open(name.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  require(static_cast<bool>(file), errno == ENOENT ? ErrorCode::not_found : ErrorCode::io,
          "{}={}: cannot open: {}", setting, path, std::strerror(errno));
  struct stat status {};
  const bool known = ::fstat(file.get(), &status) == 0;
  require(known && S_ISREG(status.st_mode), ErrorCode::io, "{}={}: is {}; name a regular file",
          setting, path, S_ISDIR(status.st_mode) ? "a folder" : "no regular file");
  std::string text(most_file_bytes + 1, '\0');
  std::size_t size = 0;
  while (size < text.size()) {
    const ssize_t got = ::read(file.get(), text.data() + size, text.size() - size);
    if (got < 0 && errno == EINTR) continue;
    require(got >= 0, ErrorCode::io, "{}={}: cannot read: {}", setting, path, std::strerror(errno));
    if (got == 0) break;
    size += static_cast<std::size_t>(got);
  }
  require(size <= most_file_bytes, ErrorCode::io,
          "{}={}: is larger than 1 MiB, so it is no file of settings", setting, path);
  text.resize(size);
  return text;
}

Config Config::from_env() {
  Config config;
  std::vector<std::string> warnings;
  const char* path = std::getenv(std::string(file_variable).c_str());
  if (path != nullptr && *path != '\0') read_file(config, path, warnings);
  read_environment(config, warnings);
  log::set_level(log::level_from_name(config.log));
  for (const std::string& warning : warnings) log::warn("{}", warning);
  return config;
}

void require_valid(const Config& config) {
  Config parsed;
  for (const SettingRow& row : rows) {
    if (std::holds_alternative<FileName>(row.field)) continue;
    try {
      set_row(parsed, row, value_of(config, row));
    } catch (const Error& error) {
      throw Error(error.code(),
                  fmt::format("Config::{}: {}", name_in_file(row.variable), error.what()));
    }
  }
}

void Config::set(std::string_view name, std::string_view value) {
  const SettingRow* row = find_row(name);
  if (row == nullptr) {
    throw invalid("unknown setting {}; {}", terminal_safe(name),
                  suggestion(as_variable(name), Origin::environment));
  }
  set_row(*this, *row, value);
}

std::span<const ConfigEntry> config_entries() noexcept {
  static const auto entries = [] {
    std::array<ConfigEntry, std::size(rows)> result;
    std::ranges::transform(rows, result.begin(), [](const SettingRow& row) {
      return ConfigEntry{row.variable, row.unit, row.meaning};
    });
    return result;
  }();
  return entries;
}

std::string describe(const Config& config) {
  std::string result;
  for (const SettingRow& row : rows) {
    const std::string unit = row.unit.empty() ? "" : fmt::format(" [{}]", row.unit);
    // Users paste listings of the settings into bug reports, so these must not show the secret.
    const bool is_secret = row.variable == "ATOLL_TOKEN" && !config.token.empty();
    result += fmt::format("{:<25}= {:<8} {}{}\n", row.variable,
                          is_secret ? "(set)" : value_of(config, row), row.meaning, unit);
  }
  return result;
}

}  // namespace atoll_v1::atoll
