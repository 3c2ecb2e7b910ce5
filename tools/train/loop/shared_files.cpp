#include "loop/shared_files.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <span>
#include <string_view>
#include <utility>

#include "atoll/communicator.hpp"
#include "data/file.hpp"
#include "data/sources.hpp"
#include "environment.hpp"
#include "fail.hpp"
#include "loop/adapters.hpp"
#include "loop/model_source.hpp"
#include "loop/weight_files.hpp"
#include "model/config.hpp"
#include "report/files.hpp"
#include "report/log.hpp"

namespace train {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr std::uint64_t piece_bytes = std::uint64_t{16} << 20;
constexpr const char* complete_mark = ".complete";
// A file that is being received is named FILE.partial-TAG, with the TAG of process_tag().
constexpr std::string_view partial_mark = ".partial-";

// A file or folder that an option names.
struct Place {
  std::string flag;
  fs::path given;  // the path as the option names it
  fs::path path;   // the path on this rank; empty if this rank lacks the place
  bool is_model = false;
  bool needs_weights = false;
  bool is_converted = false;  // only rank 0 reads the data, to convert them
};

Place model_place(const std::string& flag, const std::string& text, bool needs_weights) {
  return {flag, text, local_model(text), true, needs_weights};
}

Place file_place(const std::string& flag, const fs::path& path) {
  std::error_code ignored;
  return {flag, path, fs::exists(path, ignored) ? path : fs::path()};
}

bool is_path(const std::string& tokenizer) {
  return tokenizer != "auto" && tokenizer != "bytes" && !tokenizer.starts_with("ids:");
}

// Returns equal places in equal order on every rank, because all ranks have equal flags.
std::vector<Place> places_of(const RunOptions& options) {
  std::vector<Place> places;
  if (!options.init.empty() && options.init != "none") {
    places.push_back(model_place("--init", options.init, true));
  } else if (!is_preset(options.model)) {
    places.push_back(model_place("--model", options.model, options.init.empty()));
  }
  if (is_path(options.tokenizer))
    places.push_back({"--tokenizer", options.tokenizer, local_model(options.tokenizer)});
  for (const auto& [flag, data] :
       {std::pair{"--data", options.data}, std::pair{"--eval-data", options.eval_data}}) {
    if (data.empty()) continue;
    for (const SourceSpec& source : parse_sources(data, options.data_type)) {
      if (is_generated(source)) continue;
      places.push_back(file_place(flag, source.path));
      places.back().is_converted = source.kind == SourceKind::other;
    }
  }
  return places;
}

// Returns the value of --data in which sources at the path of `place` have the path `copy`.
std::string with_copy(const std::string& data, const std::string& type, const Place& place,
                      const fs::path& copy) {
  return replace_sources(data, type, [&](const SourceSpec& source) {
    if (is_generated(source) || source.path != place.given) return source.text;
    return source.ending + (source.ending.empty() ? "" : ":") + copy.string();
  });
}

// Makes the options name the copy of a place.
void use_copy(RunOptions& options, const Place& place, const fs::path& copy) {
  if (place.flag == "--init") options.init = copy;
  if (place.flag == "--model") options.model = copy;
  if (place.flag == "--tokenizer") options.tokenizer = copy;
  if (place.flag == "--data") {
    options.data = with_copy(options.data, options.data_type, place, copy);
  }
  if (place.flag == "--eval-data") {
    options.eval_data = with_copy(options.eval_data, options.data_type, place, copy);
  }
}

fs::path folder_of(const fs::path& place) {
  return fs::is_directory(place) ? place : fs::absolute(place).parent_path();
}

// Returns the names of the files to send. A file of a model is sent with config.json and the files
// of the tokenizer beside it, a folder without the files that are not part of the model.
std::set<std::string> files_of(const Place& place) {
  const bool whole_folder = fs::is_directory(place.path);
  const std::string own = whole_folder ? "" : place.path.filename().string();
  if (!whole_folder && !place.is_model) return {own};
  const fs::path folder = folder_of(place.path);
  std::set<std::string> names{"config.json", "generation_config.json",
                              std::string(adapter_config_name)};
  names.insert(tokenizer_files().begin(), tokenizer_files().end());
  if (!whole_folder) names.insert(own);
  if (whole_folder && place.needs_weights && has_weights(folder)) {
    names.emplace(weight_index_name);
    for (const fs::path& file : weight_files(folder)) names.insert(file.filename().string());
  }
  std::erase_if(names,
                [&](const std::string& name) { return !fs::is_regular_file(folder / name); });
  return names;
}

// What the sender tells all ranks before it sends: the key of the copy in the cache; the name of
// its folder there, from which a model gets its name; the file that the option names, empty for a
// folder; the names and sizes of the files.
json listing_of(const Place& place, const std::string& folder) {
  const bool whole_folder = fs::is_directory(place.path);
  json files = json::array();
  std::vector<fs::path> paths;
  for (const std::string& name : files_of(place)) {
    paths.push_back(folder_of(place.path) / name);
    files.push_back({name, fs::file_size(paths.back())});
  }
  return {{"key", cache_key("", paths)},
          {"folder", folder},
          {"file", whole_folder ? "" : place.path.filename().string()},
          {"files", files}};
}

// Returns the digest of a file as the disk has it: what was received may have been written wrongly.
std::string digest_on_disk(const fs::path& file) {
  if (const int fd = ::open(file.c_str(), O_RDONLY | O_CLOEXEC); fd >= 0) {
    // Drops the file from the page cache. If that fails, the digest is that of the cached copy.
    if (::fdatasync(fd) == 0) (void)::posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    ::close(fd);
  }
  std::ifstream in(file, std::ios::binary);
  std::vector<std::byte> block(std::size_t{1} << 20);
  Digest digest;
  while (in) {
    in.read(reinterpret_cast<char*>(block.data()), static_cast<std::streamsize>(block.size()));
    digest.add(std::span(block).first(static_cast<std::size_t>(in.gcount())));
  }
  if (!in.eof()) fail(ErrorCode::io, "{}: cannot be read", file.string());
  return digest.finish();
}

// Moves the files of one place from a rank to others.
class Transfer {
 public:
  Transfer(atoll::World& world, const Place& place, int sender, const std::vector<int>& receivers)
      : world_(world), place_(place), sender_(sender) {
    std::vector<int> ranks{sender};
    ranks.insert(ranks.end(), receivers.begin(), receivers.end());
    const auto me = std::ranges::find(ranks, world.rank());
    receives_ = me != ranks.end() && me != ranks.begin();
    if (me != ranks.end()) axis_ = {&world, "files", ranks, static_cast<int>(me - ranks.begin())};
  }

  // `folder` names the folder of the copy, on the sender. Returns the path of the copy, or an empty
  // path on ranks that have the place.
  fs::path run(const std::string& folder) {
    const bool sends = world_.rank() == sender_;
    const auto told =
        world_.exchange("train/files/list", sends ? listing_of(place_, folder).dump() : "");
    const json listing = json::parse(told[static_cast<std::size_t>(sender_)]);
    const fs::path copy =
        file_cache() / listing["key"].get<std::string>() / listing["folder"].get<std::string>();
    std::error_code ignored;
    const bool needs = receives_ && !fs::exists(copy / complete_mark, ignored);
    const auto wanted = world_.exchange("train/files/wanted", needs ? "1" : "");
    const auto hosts = std::ranges::count(wanted, "1");
    if (hosts > 0) {
      const auto files = listing["files"].get<Files>();
      if (world_.rank() == 0) log_copies(files, hosts);
      send(files, copy);
    }
    return place_.path.empty() ? copy / listing["file"].get<std::string>() : fs::path();
  }

 private:
  using Files = std::vector<std::pair<std::string, std::uintmax_t>>;  // names, and sizes in bytes

  void log_copies(const Files& files, std::int64_t hosts) const {
    std::uintmax_t bytes = 0;
    for (const auto& [name, size] : files) bytes += size;
    log::info("{} {}: rank {} sends {} file(s), {:.1f} MB, to {} host(s)", place_.flag,
              place_.given.string(), sender_, files.size(), static_cast<double>(bytes) / 1e6,
              hosts);
  }

  void send(const Files& files, const fs::path& copy) {
    std::string digests;
    if (receives_ || world_.rank() == sender_) {
      if (receives_) {
        make_directory(copy);
        remove_left_overs(copy);
      }
      auto comm = atoll::Communicator::open(axis_, {.name = "files"});
      const atoll::Buffer piece = atoll::allocate(atoll::Device::cpu(), piece_bytes, {comm});
      const fs::path folder = receives_ ? copy : folder_of(place_.path);
      for (const auto& [name, size] : files) digests += move(comm, piece, folder / name, size);
      if (receives_) {
        digests.clear();
        for (const auto& [name, size] : files) digests += digest_on_disk(copy / name);
      }
    }
    const auto all = world_.exchange("train/files/digests", digests);
    for (std::size_t rank = 0; rank < all.size(); ++rank) {
      if (all[rank].empty() || all[rank] == all[static_cast<std::size_t>(sender_)]) continue;
      const auto host = static_cast<std::size_t>(world_.placements()[rank].host);
      fail(ErrorCode::mismatch,
           "{} {}: the copy on host {} differs from the files of rank {}: start the run again, "
           "which sends them again; if it fails again, test the memory and the disk of that host",
           place_.flag, place_.given.string(), world_.hosts()[host].name, sender_);
    }
    if (receives_) write_file_atomic(copy / complete_mark, digests);
    world_.barrier();  // after the barrier, other ranks of the host open the copy
  }

  // Removes unfinished files of runs that were killed.
  static void remove_left_overs(const fs::path& copy) {
    for (const std::string& name : names_in(copy)) {
      const bool is_partial = name.find(partial_mark) != name.npos;
      std::error_code ignored;
      if (is_partial && is_unchanged(copy / name, std::chrono::hours(1))) {
        fs::remove(copy / name, ignored);
      }
    }
  }

  // Broadcasts a file in pieces. Receivers write it under another name and then rename it, so that
  // other runs open only whole files. Returns the digest of what was broadcast.
  std::string move(atoll::Communicator& comm, const atoll::Buffer& piece, const fs::path& file,
                   std::uintmax_t size) const {
    atoll::Stream stream = atoll::Device::cpu().stream({.name = "files"});
    const fs::path partial = fmt::format("{}{}{}", file.string(), partial_mark, process_tag());
    std::fstream open(receives_ ? partial : file,
                      std::ios::binary | (receives_ ? std::ios::out : std::ios::in));
    auto* const bytes = static_cast<char*>(piece.data());
    Digest digest;
    for (std::uintmax_t at = 0; at < size; at += piece_bytes) {
      const std::uint64_t count = std::min<std::uint64_t>(piece_bytes, size - at);
      if (!receives_ && !open.read(bytes, static_cast<std::streamsize>(count))) {
        fail(ErrorCode::io, "{}: cannot be read, or became shorter", file.string());
      }
      comm.broadcast(piece.view(atoll::DType::u8).part(0, count), 0, stream).wait(stream);
      stream.synchronize();
      digest.add(std::as_bytes(std::span(bytes, count)));
      if (receives_) open.write(bytes, static_cast<std::streamsize>(count));
    }
    if (!receives_) return digest.finish();
    open.close();
    std::error_code error;
    if (open) fs::rename(partial, file, error);
    if (open && !error) return digest.finish();
    fs::remove(partial, error);
    fail(ErrorCode::io, "{}: writing the copy failed (disk full?)", file.string());
  }

  atoll::World& world_;
  const Place& place_;
  int sender_;
  bool receives_ = false;
  atoll::Axis axis_{};  // the sender, and one rank of each host that lacks the files
};

// The lowest rank on each host among the ranks that lack a place.
std::vector<int> receivers_of(const atoll::World& world, const std::vector<std::string>& has,
                              std::size_t place) {
  std::vector<int> receivers;
  std::set<int> hosts;
  for (const atoll::Placement& at : world.placements()) {
    if (has[static_cast<std::size_t>(at.rank)][place] == '1') continue;
    if (hosts.insert(at.host).second) receivers.push_back(at.rank);
  }
  return receivers;
}

}  // namespace

fs::path file_cache() { return user_cache() / "atoll" / "files"; }

std::string cache_key(std::string text, const std::vector<fs::path>& files) {
  for (const fs::path& file : files) {
    std::error_code error;
    const auto size = fs::file_size(file, error);
    const auto time = fs::last_write_time(file, error).time_since_epoch().count();
    if (!error) text += fmt::format("\n{} {} {}", fs::absolute(file).string(), size, time);
  }
  Digest digest;
  digest.add(std::as_bytes(std::span(text)));
  return digest.finish().substr(0, 16);
}

void share_files(atoll::World& world, RunOptions& options) {
  const std::vector<Place> places = places_of(options);
  if (places.empty()) return;
  std::string mine;
  for (const Place& place : places) mine += place.path.empty() ? '0' : '1';
  const auto has = world.exchange("train/files/has", mine);
  for (std::size_t p = 0; p < places.size(); ++p) {
    const auto owner = std::ranges::find_if(has, [&](const auto& text) { return text[p] == '1'; });
    std::vector<int> receivers = receivers_of(world, has, p);
    if (places[p].is_converted) std::erase_if(receivers, [](int rank) { return rank != 0; });
    if (owner == has.end() || receivers.empty()) continue;
    const int sender = static_cast<int>(owner - has.begin());
    const std::string folder = places[p].is_model ? model_name(options) : "data";
    const fs::path copy = Transfer(world, places[p], sender, receivers).run(folder);
    if (!copy.empty()) use_copy(options, places[p], copy);
  }
}

}  // namespace train
