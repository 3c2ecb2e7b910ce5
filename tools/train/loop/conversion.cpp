// Data that the trainer does not read itself: rank 0 runs atoll-data, which writes token files.
#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <exception>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <string_view>
#include <thread>
#include <vector>

#include "atoll/version.hpp"
#include "data/loaders.hpp"
#include "data/sources.hpp"
#include "environment.hpp"
#include "fail.hpp"
#include "loop/clock.hpp"
#include "loop/shared_files.hpp"
#include "loop/stopping.hpp"
#include "loop/weight_files.hpp"
#include "report/files.hpp"
#include "report/log.hpp"

namespace train {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using std::chrono::milliseconds;

constexpr const char* converter = "atoll-data";
constexpr std::string_view named = "atoll-data: ";

// Returns the word as a shell takes it.
std::string in_shell(const std::string& word) {
  if (word.find_first_of(" \t'\"$&;()<>|*?[]#~`\\!") == word.npos) return word;
  std::string quoted = "'";
  for (const char letter : word) quoted += letter == '\'' ? "'\\''" : std::string(1, letter);
  return quoted + "'";
}

// Returns the path of atoll-data, which is beside atoll-train in the build tree and when installed.
fs::path find_converter() {
  std::error_code ignored;
  std::string folders = fs::read_symlink("/proc/self/exe", ignored).parent_path().string();
  folders += ":" + variable("PATH");
  for (std::size_t at = 0; at < folders.size();) {
    const std::size_t end = std::min(folders.find(':', at), folders.size());
    const fs::path program = fs::path(folders.substr(at, end - at)) / converter;
    if (::access(program.c_str(), X_OK) == 0) return program;
    at = end + 1;
  }
  fail(ErrorCode::not_found,
       "{}, which converts these data, is neither beside atoll-train nor in PATH: install Python 3 "
       "before atoll is built, or use a token file",
       converter);
}

// A child process that gets SIGTERM when the thread that started it ends. Its output is logged.
class Child {
 public:
  explicit Child(std::vector<std::string> command) {
    // The arguments are prepared before fork(): if a process has several threads, its child may
    // call only async-signal-safe functions.
    std::vector<char*> arguments;
    for (std::string& text : command) arguments.push_back(text.data());
    arguments.push_back(nullptr);
    const pid_t parent = ::getpid();
    std::array<int, 2> ends{};
    if (::pipe2(ends.data(), O_CLOEXEC) != 0) fail_to_start();
    output_ = ends[0];
    pid_ = ::fork();
    if (pid_ == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGTERM);
      if (::getppid() != parent) ::_exit(1);
      ::dup2(ends[1], STDOUT_FILENO);
      ::dup2(ends[1], STDERR_FILENO);
      ::execv(arguments[0], arguments.data());
      constexpr std::string_view complaint = "cannot be started\n";
      (void)!::write(STDERR_FILENO, complaint.data(), complaint.size());
      ::_exit(127);
    }
    ::close(ends[1]);
    if (pid_ > 0) return;
    ::close(output_);
    fail_to_start();
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;
  ~Child() {
    if (pid_ > 0) ::kill(pid_, SIGTERM);  // the child removes its unfinished file
    for (int tries = 0; pid_ > 0 && ::waitpid(pid_, nullptr, WNOHANG) == 0; ++tries) {
      if (tries == 20) ::kill(pid_, SIGKILL);
      std::this_thread::sleep_for(milliseconds(100));
    }
    ::close(output_);
  }

  // Logs what the program prints. Returns true after `time`, or false at once when the program
  // ends.
  bool listen(milliseconds time) {
    const auto end = Clock::now() + time;
    for (auto left = time; left.count() > 0;
         left = std::chrono::duration_cast<milliseconds>(end - Clock::now())) {
      pollfd ready{output_, POLLIN, 0};
      if (::poll(&ready, 1, static_cast<int>(left.count())) <= 0) continue;
      std::array<char, 4096> bytes{};
      const ssize_t count = ::read(output_, bytes.data(), bytes.size());
      if (count == 0) return false;
      if (count > 0) text_.append(bytes.data(), static_cast<std::size_t>(count));
      for (std::size_t line = text_.find('\n'); line != text_.npos; line = text_.find('\n')) {
        log_last();
        last_ = text_.substr(0, line);
        is_logged_ = false;
        text_.erase(0, line + 1);
        // A line that begins with the program's name may be its error, which finish() throws.
        if (!last_.starts_with(named)) log_last();
      }
    }
    return true;
  }

  // Waits until the program ends. Throws an Error with the program's last line if it failed. If
  // that line contains "--template NAME", `advice`, NAME and a closing quote are appended.
  void finish(std::string_view advice) {
    int status = 0;
    ::waitpid(pid_, &status, 0);
    pid_ = 0;
    if (status == 0) return log_last();
    if (last_.empty()) last_ = fmt::format("ended with the wait status {:#x}", status);
    constexpr std::string_view flag = "--template ";
    std::string remedy;
    if (const auto at = last_.find(flag); at != last_.npos) {
      const std::size_t begin = at + flag.size();
      remedy = fmt::format("{}{}`", advice,
                           last_.substr(begin, last_.find_first_of(" ,", begin) - begin));
    }
    fail(ErrorCode::bad_data, "{}{}{}", last_.starts_with(converter) ? "" : named, last_, remedy);
  }

 private:
  void log_last() {
    if (!std::exchange(is_logged_, true)) log::info("{}", last_);
  }
  [[noreturn]] static void fail_to_start() {
    fail(ErrorCode::io, "{}: cannot be started: {}", converter, std::strerror(errno));
  }

  pid_t pid_ = 0;
  int output_ = -1;
  std::string text_, last_;  // bytes of the next line, and the last line
  bool is_logged_ = true;    // whether the log has the last line
};

bool has(SourceKind kind, const RunOptions& options) {
  for (const std::string& data : {options.data, options.eval_data}) {
    if (data.empty()) continue;
    const auto sources = parse_sources(data, options.data_type);
    if (std::ranges::find(sources, kind, &SourceSpec::kind) != sources.end()) return true;
  }
  return false;
}

bool is_read_here(const SourceSpec& source, const std::string& tokenizer) {
  if (source.kind != SourceKind::alpaca) return source.kind != SourceKind::other;
  return !tokenizer.ends_with(".json") && is_small_alpaca(source.path);
}

std::string tokenizer_of(const RunOptions& options) {
  const bool is_auto = options.tokenizer == "auto";
  require(
      !options.tokenizer.starts_with("ids:") && !(is_auto && has(SourceKind::token_file, options)),
      "--tokenizer {}: these data are text: name their tokenizer, which for token files is the "
      "one that made them",
      options.tokenizer);
  return is_auto ? "bytes" : options.tokenizer;
}

using Wait = std::function<void(Child&)>;

// Returns the token file of a source. `wait` returns when the child closes its output.
fs::path convert(const SourceSpec& source, const RunOptions& options, const Wait& wait) {
  const std::string tokenizer = tokenizer_of(options), program = find_converter();
  std::vector<std::string> command{program, fs::absolute(source.path), "--tokenizer", tokenizer};
  command.insert(command.end(), {"--train-on", options.train_on});
  if (!source.ending.empty()) command.insert(command.end(), {"--ending", source.ending});
  std::vector<fs::path> inputs{source.path, tokenizer};
  for (const std::string_view name : tokenizer_files())
    inputs.push_back(fs::path(tokenizer).parent_path() / name);
  const std::string key =
      cache_key(fmt::format("{} {}", ATOLL_VERSION, fmt::join(command, "\n")), inputs);
  fs::path file = file_cache() / key / (source.path.stem().string() + ".tok");
  if (fs::exists(file)) return file;
  make_directory(file.parent_path());
  command.insert(command.end(), {"-o", file});
  log::info("data {}: {} converts it to {}", source.text, converter, file.string());
  Child child(std::move(command));
  wait(child);
  const std::string result = file.filename();
  child.finish(fmt::format("; train with --data {} after `{} {} --tokenizer {} -o {} --template ",
                           in_shell(result), converter, in_shell(source.path.string()),
                           in_shell(tokenizer), in_shell(result)));
  return file;
}

// Returns the token files of the sources of `data`; "" for each that the trainer reads itself.
std::vector<std::string> convert(const std::string& data, const RunOptions& options,
                                 const Wait& wait) {
  std::vector<std::string> files;
  if (data.empty()) return files;
  for (const SourceSpec& source : parse_sources(data, options.data_type)) {
    const bool is_read = is_read_here(source, options.tokenizer);
    files.push_back(is_read ? fs::path() : convert(source, options, wait));
  }
  return files;
}

// Returns `data` with each source replaced by its entry of `files`, unless that is empty.
std::string with_files(const std::string& data, const std::string& type, const json& files) {
  std::size_t next = 0;
  return replace_sources(data, type, [&](const SourceSpec& source) {
    const std::string file = files.at(next++);
    return file.empty() ? source.text : file;
  });
}

}  // namespace

bool convert_data(atoll::World& world, RunOptions& options) {
  if (!has(SourceKind::other, options) && !has(SourceKind::alpaca, options)) return false;
  // Waiting ranks exchange texts with rank 0 often, so that no exchange reaches its time limit.
  constexpr const char* key = "train/conversion";
  const auto interval = std::min(milliseconds(3000), milliseconds(world.config().timeout) / 4);
  const auto wait = [&](Child& child) {
    while (child.listen(interval)) {
      const auto all = world.exchange(key, "");
      if (stop_requested() || std::ranges::count(all, "stop") > 0)
        fail(ErrorCode::aborted, "stopped by a signal while atoll-data converted the data");
    }
  };
  std::string told;
  if (world.rank() == 0) {
    json result;
    try {
      result = {{"data", convert(options.data, options, wait)},
                {"eval_data", convert(options.eval_data, options, wait)}};
    } catch (const std::exception& error) {
      result = {{"error", text_of(error)}};
    }
    told = world.exchange(key, result.dump(-1, ' ', false, json::error_handler_t::replace))[0];
  }
  while (told.empty()) told = world.exchange(key, stop_requested() ? "stop" : "")[0];
  const json result = json::parse(told);
  if (result.contains("error")) throw Error(ErrorCode::bad_data, result["error"]);
  const auto is_file = [](const json& file) { return file != ""; };
  if (std::ranges::none_of(result["data"], is_file) &&
      std::ranges::none_of(result["eval_data"], is_file)) {
    return false;
  }
  options.data = with_files(options.data, options.data_type, result["data"]);
  if (!options.eval_data.empty())
    options.eval_data = with_files(options.eval_data, options.data_type, result["eval_data"]);
  if (options.tokenizer == "auto") options.tokenizer = "bytes";
  return true;
}

}  // namespace train
