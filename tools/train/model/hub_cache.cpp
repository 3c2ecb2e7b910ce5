#include "model/hub_cache.hpp"

#include <algorithm>
#include <fstream>

#include "environment.hpp"
#include "fail.hpp"

namespace train {
namespace {

namespace fs = std::filesystem;

bool is_plain(std::string_view part) {
  return !part.empty() && part.front() != '.' && std::ranges::all_of(part, [](unsigned char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '.' ||
           c == '_' || c == '-';
  });
}

}  // namespace

bool is_hub_name(std::string_view text) {
  const std::size_t slash = text.find('/');
  if (slash == text.npos) return false;
  const std::size_t at = std::min(text.find('@', slash), text.size());
  const bool revision = at == text.size() || is_plain(text.substr(at + 1));
  return is_plain(text.substr(0, slash)) && is_plain(text.substr(slash + 1, at - slash - 1)) &&
         revision;
}

fs::path hub_cache() {
  if (const auto cache = variable("HF_HUB_CACHE"); !cache.empty()) return cache;
  if (const auto home = variable("HF_HOME"); !home.empty()) return fs::path(home) / "hub";
  return user_cache() / "huggingface" / "hub";
}

fs::path cached_model(const std::string& name) {
  require(is_hub_name(name), "model {}: use ORG/NAME or ORG/NAME@REVISION", name);
  const std::size_t slash = name.find('/');
  const std::size_t at = std::min(name.find('@'), name.size());
  const std::string revision = at < name.size() ? name.substr(at + 1) : "main";
  const std::string repository = name.substr(0, at);
  const fs::path folder = hub_cache() / ("models--" + name.substr(0, slash) + "--" +
                                         name.substr(slash + 1, at - slash - 1));
  std::string commit = revision;
  std::ifstream reference(folder / "refs" / revision);
  // A commit has no file in `refs`, and names its folder itself.
  if (std::string line; std::getline(reference, line) && is_plain(line)) commit = line;
  const fs::path snapshot = folder / "snapshots" / commit;
  if (fs::exists(snapshot / "config.json")) return snapshot;
  fail(ErrorCode::not_found,
       "model {}: {} does not exist: download it with `hf download {}{}`, or set HF_HUB_CACHE to "
       "the cache that has it; there is no folder {} with config.json either",
       name, (snapshot / "config.json").string(), repository,
       at < name.size() ? " --revision " + revision : "", name);
}

}  // namespace train
