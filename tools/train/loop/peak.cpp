#include "loop/peak.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <fstream>
#include <nlohmann/json.hpp>

#include "atoll/topology.hpp"
#include "environment.hpp"
#include "loop/clock.hpp"
#include "report/files.hpp"
#include "report/log.hpp"
#include "report/phase.hpp"

namespace train {
namespace {

nlohmann::json read_peaks(const std::filesystem::path& file) {
  std::ifstream in(file, std::ios::binary);
  auto peaks = nlohmann::json::parse(in, nullptr, false);
  return peaks.is_object() ? peaks : nlohmann::json::object();
}

// Returns the best of several samples on all ranks: an interruption lowers a sample, and nothing
// raises one.
double measure(atoll::World& world, const Machine& machine, atoll::DType dtype, double seconds) {
  // On a GPU, a sample is already the best of many products of several sizes.
  const int samples = machine.device().kind() == atoll::DeviceKind::cuda ? 1 : 5;
  const auto start = Clock::now();
  double best = 0;
  for (int i = 0; i < samples; ++i) {
    if (i > 0 && seconds_since(start) > seconds) break;
    best = std::max(best, machine.matrix_peak(world, dtype, seconds / samples));
  }
  for (const auto& rank : world.exchange("train/peak", fmt::format("{:a}", best))) {
    best = std::max(best, std::stod(rank));
  }
  return best;
}

// The model of this machine's CPU with its family, model and stepping numbers, which tell models of
// one name apart; "" if /proc/cpuinfo does not say them.
std::string cpu_model() {
  std::ifstream in("/proc/cpuinfo");
  std::string line, name, numbers;
  while (std::getline(in, line) && !line.empty()) {  // stops after the first processor's entry
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

// Measures the peak on CPUs, again if it is far below the peak that earlier runs reached.
double measure_beside_known(atoll::World& world, const Machine& machine, atoll::DType dtype,
                            double seconds, const KnownPeaks& known) {
  const std::string model = cpu_model();
  const std::string key = fmt::format("{}, {} ranks of {} threads on {:.4g} processors, {}", model,
                                      machine.place.sharing, machine.threads,
                                      machine.cores * machine.place.sharing, atoll::name(dtype));
  // Uses the known peak only if all ranks have the same key and the CPU has a name.
  const auto keys = world.exchange("train/peak_key", key);
  const bool is_known =
      !model.empty() && std::ranges::all_of(keys, [&](const auto& other) { return other == key; });
  const auto told = world.exchange(
      "train/known_peak", fmt::format("{:a}", is_known && world.rank() == 0 ? known.find(key) : 0));
  const double earlier = std::stod(told[0]);
  double best = measure(world, machine, dtype, seconds);
  for (int again = 0; again < 2 && earlier > best && far_apart(earlier, best); ++again) {
    best = std::max(best, measure(world, machine, dtype, seconds));
  }
  if (world.rank() != 0) return best;
  if (earlier > best && far_apart(earlier, best)) {
    log::warn(
        "the peak of matrix products is {:.2f} TFLOP/s per rank, but earlier runs on this CPU had "
        "{:.2f}: other work or a lower clock slows this machine, and MFU refers to the lower peak "
        "(if the machine has changed, delete {})",
        best / 1e12, earlier / 1e12, known.file().string());
  }
  if (is_known) known.raise(key, best);
  return best;
}

}  // namespace

double KnownPeaks::find(const std::string& key) const {
  if (file_.empty()) return 0;
  const auto peaks = read_peaks(file_);
  const auto found = peaks.find(key);
  return found != peaks.end() && found->is_number() ? found->get<double>() : 0;
}

void KnownPeaks::raise(const std::string& key, double flops) const {
  if (file_.empty() || flops <= find(key)) return;
  try {
    auto peaks = read_peaks(file_);
    peaks[key] = flops;
    make_directory(file_.parent_path());
    write_json_atomic(file_, peaks);
  } catch (const std::exception&) {
    // Ignored, because the next run can do without a known peak.
  }
}

std::filesystem::path usual_peak_file() {
  if (variable("XDG_CACHE_HOME").empty() && variable("HOME").empty()) return {};
  return user_cache() / "atoll" / "peaks.json";
}

Peak find_peak(atoll::World& world, const Machine& machine, atoll::DType dtype, double seconds,
               const KnownPeaks& known) {
  const Phase phase("measuring the peak of matrix products");
  const bool is_gpu = machine.device().kind() == atoll::DeviceKind::cuda;
  Peak peak{.measured = is_gpu ? measure(world, machine, dtype, seconds)
                               : measure_beside_known(world, machine, dtype, seconds, known),
            .source = "measured"};
  peak.flops = peak.measured;
  if (!is_gpu) return peak;
  // All ranks use the same peak. GPUs of several kinds have no published peak in common.
  const atoll::PeakRates sheet = atoll::peak_rates(machine.device().name());
  const double whole = dtype == atoll::DType::bf16  ? sheet.bf16
                       : dtype == atoll::DType::f32 ? sheet.f32
                                                    : 0;
  const double mine = whole / machine.place.sharing;
  const std::string text = fmt::format("{:a}", mine);
  const auto all = world.exchange("train/datasheet", text);
  const bool alike = std::ranges::all_of(all, [&](const auto& rank) { return rank == text; });
  if (mine <= 0 || !alike) return peak;
  peak.flops = mine;
  peak.source = "datasheet";
  return peak;
}

bool far_apart(double a, double b) noexcept {
  constexpr double most = 1.25;
  return std::max(a, b) > most * std::min(a, b);
}

void check_peak(Peak& peak, atoll::World& world, const Machine& machine, atoll::DType dtype,
                double seconds) {
  const double first = peak.measured;
  double last = measure(world, machine, dtype, seconds);
  if (far_apart(first, last)) {
    last = std::max(last, measure(world, machine, dtype, seconds));
    if (world.rank() == 0) {
      log::warn(
          "the peak of matrix products was {:.2f} TFLOP/s per rank at the start and is {:.2f} now: "
          "other work on this machine disturbs its figures",
          first / 1e12, last / 1e12);
    }
  }
  peak.measured = std::max(first, last);
  if (peak.source == "measured") peak.flops = peak.measured;
}

}  // namespace train
