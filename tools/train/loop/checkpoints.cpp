#include "loop/checkpoints.hpp"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <csignal>
#include <cstring>
#include <optional>
#include <string>
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
  std::int64_t time_ns = 0;  // when its index was written
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

// Returns when the index of a checkpoint was written; nothing if it has no index.
std::optional<std::int64_t> saved_at(const fs::path& folder) {
  struct stat info {};
  if (::stat((folder / index_name).c_str(), &info) != 0 || !S_ISREG(info.st_mode)) return {};
  return std::int64_t{info.st_mtim.tv_sec} * 1'000'000'000 + info.st_mtim.tv_nsec;
}

// Steps alone do not order checkpoints: a run that starts anew in the same folder saves step 1 after
// step 1000 of the run before.
void sort_newest_first(std::vector<Saved>& all) {
  std::ranges::sort(all, [](const Saved& a, const Saved& b) {
    return std::pair(a.time_ns, a.step) > std::pair(b.time_ns, b.step);
  });
}

// The step of the checkpoint to which OUT/checkpoint leads; nothing without such a link.
std::optional<std::int64_t> linked_step(const fs::path& out) {
  std::error_code error;
  const fs::path target = fs::read_symlink(out / "checkpoint", error);
  if (error || !saved_at(out / target)) return {};
  return step_of(target.filename().string());
}

// Copies and clocks may change the times, so the link, which follows each save, decides: the
// checkpoint to which it leads is the newest, unless one of a later step has a later time (the link
// is then yet to follow). Earlier steps are next in their order. Checkpoints of later steps are the
// oldest, because the run has since been resumed before them.
void sort_newest_first(const fs::path& out, std::vector<Saved>& all) {
  sort_newest_first(all);
  const auto linked = linked_step(out);
  if (!linked || all.empty()) return;
  if (all.front().step < *linked) {
    log::warn(
        "{}: the times of the checkpoints do not fit their steps, as after a copy; {} counts "
        "as the newest",
        checkpoints_folder(out).string(), checkpoint_folder("", *linked).string());
  }
  const std::int64_t newest = std::max(all.front().step, *linked);
  std::ranges::stable_sort(all, [&](const Saved& a, const Saved& b) {
    return std::pair(a.step <= newest, a.step) > std::pair(b.step <= newest, b.step);
  });
}

std::vector<Saved> numbered_checkpoints(const fs::path& out) {
  const fs::path parent = checkpoints_folder(out);
  std::vector<Saved> all;
  for (const std::string& name : names_in(parent)) {
    const auto step = step_of(name);
    const auto time = saved_at(parent / name);
    if (step && time) all.push_back({parent / name, *step, *time});
  }
  sort_newest_first(out, all);
  return all;
}

// Removes the index first, so that a removal that is cut off leaves no checkpoint.
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
  return step_of(name) && !saved_at(folder);
}

bool is_all(std::string_view text, std::string_view allowed) {
  return !text.empty() && text.find_first_not_of(allowed) == text.npos;
}

// Whether `path` is a draft of `file` by write_file_atomic() of a process that has ended,
// FILE.TAG.tmp, or an unfinished file of export_weights(), FILE.DIGITS.partial. The latter does not
// name its process, which may be one of another host.
bool is_draft(const fs::path& path, std::string_view file) {
  const std::string whole = path.filename().string();
  std::string_view name = whole;
  if (!name.starts_with(file) || name.substr(file.size(), 1) != ".") return false;
  name.remove_prefix(file.size() + 1);
  const std::size_t dot = name.find('.');
  const std::string_view tag = name.substr(0, dot);
  const std::string_view end = dot == name.npos ? "" : name.substr(dot);
  if (end == ".tmp") return is_all(tag, "0123456789abcdef-") && is_abandoned(path, tag);
  return end == ".partial" && tag.size() == 16 && is_all(tag, "0123456789abcdef") &&
         is_unchanged(path, std::chrono::hours(1));
}

}  // namespace

fs::path checkpoints_folder(const fs::path& out) { return out / "checkpoints"; }

fs::path checkpoint_folder(const fs::path& out, std::int64_t step) {
  return checkpoints_folder(out) / fmt::format("{}{:08}", prefix, step);
}

std::vector<fs::path> find_checkpoints(const fs::path& out) {
  std::vector<Saved> all = numbered_checkpoints(out);
  const fs::path single = out / "checkpoint";
  const auto time = saved_at(single);
  if (time && !fs::is_symlink(single)) {
    all.push_back({single, 0, *time});
    sort_newest_first(all);
  }
  std::vector<fs::path> folders;
  for (Saved& saved : all) folders.push_back(std::move(saved.folder));
  return folders;
}

void link_newest(const fs::path& out, std::int64_t step) {
  const fs::path link = out / "checkpoint", draft = out / "checkpoint.link";
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

void delete_old_checkpoints(const fs::path& out, std::int64_t keep_last, std::int64_t keep_every) {
  const fs::path parent = checkpoints_folder(out);
  for (const std::string& name : names_in(parent)) {
    if (is_left_over(parent / name)) remove_folder(parent / name);
  }
  if (keep_last == 0) return;
  const std::vector<Saved> all = numbered_checkpoints(out);
  for (std::size_t i = static_cast<std::size_t>(keep_last); i < all.size(); ++i) {
    if (keep_every > 0 && all[i].step % keep_every == 0) continue;
    remove_folder(all[i].folder);
  }
}

std::vector<fs::path> remove_left_overs(const fs::path& checkpoints,
                                        const std::vector<fs::path>& files) {
  std::vector<fs::path> removed;
  const auto remove_if = [&](const fs::path& folder, const auto& is_left) {
    for (const std::string& name : names_in(folder)) {
      const fs::path path = folder / name;
      std::error_code error;
      const bool is_old = is_left(name) && is_unchanged(path, std::chrono::minutes(1));
      if (is_old && fs::remove_all(path, error) > 0 && !error) {
        removed.push_back(path);
      }
    }
  };
  try {
    remove_if(checkpoints, [&](const std::string& name) {
      return name.ends_with(".partial") && is_left_over(checkpoints / name);
    });
    for (const fs::path& file : files) {
      const std::string own = file.filename().string();
      remove_if(file.has_parent_path() ? file.parent_path() : ".",
                [&](const std::string& name) { return is_draft(file.parent_path() / name, own); });
    }
  } catch (const Error& error) {
    log::debug("while looking for what a killed run has left: {}", error.what());
  }
  return removed;
}

}  // namespace train
