#include "loop/known_peaks.hpp"

#include <fmt/format.h>

#include <exception>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "environment.hpp"
#include "report/files.hpp"

namespace train {
namespace {

nlohmann::json read(const std::filesystem::path& file) {
  std::ifstream in(file, std::ios::binary);
  std::stringstream text;
  text << in.rdbuf();
  auto peaks = nlohmann::json::parse(text.str(), nullptr, false);
  return peaks.is_object() ? peaks : nlohmann::json::object();
}

}  // namespace

double KnownPeaks::find(const std::string& key) const {
  if (file_.empty()) return 0;
  const auto peaks = read(file_);
  const auto found = peaks.find(key);
  return found != peaks.end() && found->is_number() ? found->get<double>() : 0;
}

void KnownPeaks::raise(const std::string& key, double flops) const {
  if (file_.empty() || flops <= find(key)) return;
  try {
    auto peaks = read(file_);
    peaks[key] = flops;
    make_directory(file_.parent_path());
    write_file_atomic(file_, peaks.dump(2) + "\n");
  } catch (const std::exception&) {
    // The next run knows no peak.
  }
}

std::filesystem::path usual_peak_file() {
  if (variable("XDG_CACHE_HOME").empty() && variable("HOME").empty()) return {};
  return user_cache() / "atoll" / "peaks.json";
}

std::string cpu_model() {
  std::ifstream in("/proc/cpuinfo");
  std::string line, name, numbers;
  while (std::getline(in, line) && !line.empty()) {  // of the first processor
    const std::size_t colon = line.find(':');
    if (colon == line.npos || colon + 2 > line.size()) continue;
    const std::string value = line.substr(colon + 2);
    if (line.starts_with("model name"))
      name = value;
    else if (line.starts_with("cpu family") || line.starts_with("model") ||
             line.starts_with("stepping"))
      numbers += (numbers.empty() ? "" : "/") + value;
  }
  return name.empty() ? "" : fmt::format("{} ({})", name, numbers);
}

}  // namespace train
