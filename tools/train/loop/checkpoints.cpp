#include "loop/checkpoints.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstring>
#include <functional>
#include <optional>
#include <regex>
#include <string_view>
#include <utility>

#include "fail.hpp"
#include "report/files.hpp"
#include "report/log.hpp"

namespace train {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view prefix = "step-";
constexpr const char* index_name = "index.json";

struct Saved {
  fs::path folder;
  std::int64_t step = 0;
};

// Returns the step of a checkpoint's folder, or nothing for another name.
std::optional<std::int64_t> step_of(std::string_view name) {
  if (!name.starts_with(prefix)) return {};
  name.remove_prefix(prefix.size());
  std::int64_t step = -1;
  const auto parsed = std::from_chars(name.data(), name.data() + name.size(), step);
  if (parsed.ec != std::errc() || parsed.ptr != name.data() + name.size() || step < 0) return {};
  return step;
}

bool is_whole(const fs::path& folder) {
  std::error_code ignored;
  return fs::is_regular_file(folder / index_name, ignored);
}

// The step of the whole checkpoint that a link leads to.
std::optional<std::int64_t> linked_step(const fs::path& out, const char* link) {
  std::error_code ignored;
  const fs::path target = fs::read_symlink(out / link, ignored);
  return is_whole(out / target) ? step_of(target.filename().string()) : std::nullopt;
}

// Latest step first, but steps after the one to which the link leads come last: the run has been
// resumed from an earlier step since. Without a link, only the step decides.
std::vector<Saved> numbered_checkpoints(const fs::path& out) {
  const fs::path parent = checkpoints_folder(out);
  std::vector<Saved> all;
  for (const std::string& name : names_in(parent)) {
    const auto step = step_of(name);
    if (step && is_whole(parent / name)) all.push_back({parent / name, *step});
  }
  const auto linked = linked_step(out, "checkpoint");
  std::ranges::sort(all, std::greater(), [&](const Saved& saved) {
    return std::pair(!linked || saved.step <= *linked, saved.step);
  });
  return all;
}

// Removes the index first, so that an interrupted removal leaves no complete checkpoint.
void remove_folder(const fs::path& folder) {
  const auto remove_file = [](const fs::path& file) {
    if (::unlink(file.c_str()) == 0 || errno == ENOENT) return;
    fail(ErrorCode::io, "{}: cannot delete an old checkpoint: {}", file.string(),
         std::strerror(errno));
  };
  remove_file(folder / index_name);
  for (const std::string& name : names_in(folder)) remove_file(folder / name);
  if (::rmdir(folder.c_str()) != 0 && errno != ENOENT) {
    fail(ErrorCode::io, "{}: cannot delete an old checkpoint: {}", folder.string(),
         std::strerror(errno));
  }
}

// Whether a save or removal that was cut off has left this folder.
bool is_left_over(const fs::path& folder) {
  std::string name = folder.filename().string();
  for (const std::string_view end : {".partial", ".old"}) {
    if (name.ends_with(end)) return step_of(name.substr(0, name.size() - end.size())).has_value();
  }
  return step_of(name) && !is_whole(folder);
}

// Whether `name` is a draft of `file` by write_file_atomic(), FILE.TAG.tmp, or an unfinished file
// of export_weights(), FILE.DIGITS.partial.
bool is_draft(const std::string& name, const std::string& file) {
  static const std::regex ending(R"(\.[0-9a-f-]+\.(tmp|partial))");
  return name.starts_with(file) && std::regex_match(name.substr(file.size()), ending);
}

}  // namespace

fs::path checkpoints_folder(const fs::path& out) { return out / "checkpoints"; }

fs::path checkpoint_folder(const fs::path& out, std::int64_t step) {
  return checkpoints_folder(out) / fmt::format("{}{:08}", prefix, step);
}

std::vector<fs::path> find_checkpoints(const fs::path& out) {
  std::vector<fs::path> folders;
  for (Saved& saved : numbered_checkpoints(out)) folders.push_back(std::move(saved.folder));
  const fs::path single = out / "checkpoint";
  if (!fs::is_symlink(single) && is_whole(single)) folders.push_back(single);
  return folders;
}

fs::path config_of_checkpoint(const fs::path& checkpoint) {
  std::error_code ignored;
  const fs::path above = (checkpoint / "").parent_path().parent_path();
  for (const fs::path& out : {above, above.parent_path()}) {  // of OUT/best, OUT/checkpoints/STEP
    if (fs::exists(out / "config.toml", ignored)) return out / "config.toml";
  }
  return {};
}

void link_checkpoint(const fs::path& out, const std::string& name, std::int64_t step) {
  const fs::path link = out / name, draft = out / (name + ".link");
  std::error_code error;
  const auto status = fs::symlink_status(link, error);
  if (fs::exists(status) && !fs::is_symlink(status)) return;
  const fs::path target = checkpoint_folder("", step);
  ::unlink(draft.c_str());
  if (::symlink(target.c_str(), draft.c_str()) == 0 && ::rename(draft.c_str(), link.c_str()) == 0) {
    return;
  }
  const int reason = errno;
  ::unlink(draft.c_str());
  fail(ErrorCode::io, "{}: {}", link.string(), std::strerror(reason));
}

bool keeps_best(const fs::path& out, std::int64_t done) {
  const auto step = linked_step(out, "best");
  if (step && *step > done) ::unlink((out / "best").c_str());
  return step && *step <= done;
}

void delete_old_checkpoints(const fs::path& out, std::int64_t keep_last, std::int64_t keep_every) {
  const fs::path parent = checkpoints_folder(out);
  for (const std::string& name : names_in(parent)) {
    if (is_left_over(parent / name)) remove_folder(parent / name);
  }
  if (keep_last == 0) return;
  const std::vector<Saved> all = numbered_checkpoints(out);
  const auto best = linked_step(out, "best");
  for (std::size_t i = static_cast<std::size_t>(keep_last); i < all.size(); ++i) {
    if (all[i].step == best || (keep_every > 0 && all[i].step % keep_every == 0)) continue;
    remove_folder(all[i].folder);
  }
}

std::vector<fs::path> remove_left_overs(const fs::path& checkpoints,
                                        const std::vector<fs::path>& files) {
  std::vector<fs::path> removed;
  const auto remove_if = [&](const fs::path& folder, std::chrono::minutes age,
                             const auto& is_left) {
    for (const std::string& name : names_in(folder)) {
      const fs::path path = folder / name;
      std::error_code error;
      if (!is_left(name) || !is_unchanged(path, age)) continue;
      if (fs::remove_all(path, error) > 0 && !error) removed.push_back(path);
    }
  };
  try {
    remove_if(checkpoints, std::chrono::minutes(1), [&](const std::string& name) {
      return name.ends_with(".partial") && is_left_over(checkpoints / name);
    });
    for (const fs::path& file : files) {
      remove_if(file.has_parent_path() ? file.parent_path() : ".", std::chrono::hours(1),
                [&](const std::string& name) { return is_draft(name, file.filename().string()); });
    }
  } catch (const Error& error) {
    log::debug("while looking for what a killed run has left: {}", error.what());
  }
  return removed;
}

}  // namespace train
