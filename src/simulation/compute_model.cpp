#include "atoll/planner.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <regex>
#include <utility>

#include "atoll/topology.hpp"

namespace atoll_v1::atoll {
namespace {

// Measured or estimated figures of a GPU; the first three are fractions of the peak rate.
struct Measured {
  double product, attention, flash_attention_2;
  int units;
  double memory_gbyte_s;
  std::uint64_t memory_mib;
  double fp8 = 0;  // rate of fp8 as a multiple of bf16, by the data sheet
};

constexpr const char* estimates = "data sheet; efficiencies are estimates";

ComputeModel gpu_model(const std::string& name, const Measured& measured,
                       std::string source = estimates) {
  // Estimates: kernels of NVIDIA GPUs take about 2 us at least, and a launch from C++ takes the
  // CPU about 3 us.
  constexpr double kernel_s = 2e-6, launch_s = 3e-6;
  // The context of CUDA, cuBLAS, cuDNN and about 1 GB of NCCL's buffers.
  constexpr std::uint64_t reserved = std::uint64_t{2} << 30;
  std::string sheet = "NVIDIA " + name;
  std::ranges::replace(sheet, '-', ' ');
  const auto [bf16, f32] = peak_rates(sheet);
  const auto [product, attention, flash_attention_2, units, memory_gbyte_s, mib, fp8] = measured;
  return {name,  bf16,           f32,       fp8 * bf16, product,  attention, flash_attention_2,
          units, memory_gbyte_s, mib << 20, reserved,   kernel_s, launch_s,  std::move(source)};
}

// Memory: what programs get, the "total capacity" in PyTorch's out-of-memory errors that users have
// published (V100 31.7 GiB, A100 39.4 and 79.2, H100 79.1, NVL 93.1, H200 139.8, B200 178.4, MI300X
// 192.0, L40S 44.4: stepfun-ai/Step-Video-T2V 8); the data sheets have 1 to 2 % more. A GB200 gives
// programs 0.4 % less than its driver reports, as a B200 does. Rates of products and attention come from
// measurements with values that are normally distributed, which need more power than others:
// - Products, on shapes of training or squares of 8192: A100 257 TFLOP/s (H. He, "Strangely, matrix
//   multiplications on GPUs run faster when given predictable data"); H100 690, repeated for
//   seconds at its 700 W (tests/bench/results-gpu.md), and H200 the same; MI300X 620 (SemiAnalysis,
//   "MI300X vs H100 vs H200, part 1", which has 720 for H100 and H200). B200 1,745 is the best of
//   many shapes (ml-engineering, "accelerator"), and so too high for most.
// - Attention on Hopper, head dimension 128: cuDNN 539 forward (causal) and 516 backward (not
//   causal), FlashAttention-2 335 and 322 (FlashAttention-3, arXiv 2407.08608, figures 5 and 6). On
//   A100 FlashAttention-2 reaches 60 % (arXiv 2307.08691, figure 4).
// Everything else is an estimate: products of V100, H100-PCIe, H100-NVL, CPU and all GPUs whose
// source says it, other attention, other memory, and 90 % of the data sheet as the bandwidth that
// kernels reach. H800 and A800 are an H100 and an A100 with fewer links. atoll's trainer has fp8 on
// GPUs of compute capability 9.0 or later.
const std::array<ComputeModel, 20>& compute_models() {
  constexpr double tera = 1e12;
  static const std::array<ComputeModel, 20> models = {{
      gpu_model("V100", {0.80, 0.35, 0.35, 80, 810, 32'501},
                "data sheet (f16, since V100 has no bf16); efficiencies are estimates"),
      gpu_model("A100", {0.824, 0.60, 0.60, 108, 1835, 81'101},
                "data sheet (80 GB SXM); matrix products: H. He; attention: FlashAttention-2"),
      gpu_model("A100-40GB", {0.824, 0.60, 0.60, 108, 1400, 40'336},
                "data sheet (40 GB SXM); matrix products: H. He; attention: FlashAttention-2"),
      gpu_model("H100-PCIe", {0.75, 0.50, 0.34, 114, 1835, 81'080, 2},
                "data sheet (PCIe); matrix products: estimate, since 350 W limit the clock"),
      gpu_model("H100-NVL", {0.70, 0.50, 0.34, 132, 3510, 95'334, 2},
                "data sheet (NVL); matrix products: estimate, since 400 W limit the clock"),
      gpu_model(
          "H100", {0.698, 0.53, 0.33, 132, 3015, 81'008, 2},
          "data sheet (SXM); matrix products: measured under load; attention: FlashAttention-3"),
      gpu_model(
          "H200", {0.698, 0.53, 0.33, 132, 4320, 143'165, 2},
          "data sheet (SXM); matrix products: efficiency of H100; attention: FlashAttention-3"),
      gpu_model("B200", {0.775, 0.50, 0.20, 148, 7200, 182'630, 2},
                "data sheet; matrix products: ml-engineering; attention: estimate"),
      gpu_model("MI300X", {0.474, 0.35, 0.35, 304, 4770, 196'588},
                "data sheet; matrix products: SemiAnalysis; attention: estimate"),
      gpu_model("L4", {0.50, 0.45, 0.45, 58, 270, 22'500}),  // 72 W limit the clock
      gpu_model("L40S", {0.70, 0.50, 0.50, 142, 778, 45'480}),
      gpu_model("A30", {0.75, 0.55, 0.55, 56, 840, 24'060}),
      gpu_model("A40", {0.75, 0.55, 0.55, 84, 626, 45'480}),
      gpu_model("A800", {0.824, 0.60, 0.60, 108, 1835, 81'101}, "efficiency of A100"),
      gpu_model("H800", {0.698, 0.53, 0.33, 132, 3015, 81'008, 2}, "efficiency of H100"),
      gpu_model("H800-PCIe", {0.75, 0.50, 0.34, 114, 1835, 81'080, 2}, "efficiency of H100-PCIe"),
      gpu_model("H200-NVL", {0.70, 0.50, 0.34, 132, 4320, 143'165, 2}),
      gpu_model("GH200", {0.698, 0.53, 0.33, 132, 3600, 96'700, 2},
                "data sheet (96 GB); efficiency of H100"),
      gpu_model("GB200", {0.775, 0.50, 0.20, 148, 7200, 188'700, 2},
                "data sheet; efficiency of B200"),
      {"CPU", 1 * tera, 0.2 * tera, 0, 0.9, 0.5, 0.5, 0, 20, std::uint64_t{24} << 30, 0, 1e-6, 1e-6,
       "one core with AVX-512, an estimate: atoll-plan --measure measures this machine"},
  }};
  return models;
}

// Whether a text has the words of `name`, separated or not, in any case: "h100 pcie", "h100pcie"
// and "8xh100-pcie" have those of "H100-PCIe". The kind of module or card may follow, as in
// "a100sxm", or stand between, as in "A100-SXM4-40GB". Other letters and digits may not: an A1000 or
// an A100X is no A100.
bool has_words(const std::string& text, std::string_view name) {
  constexpr std::string_view gap = "[^a-z0-9]*((sxm[0-9]?|pcie)[^a-z0-9]*)?";
  std::string pattern = "(^|[^a-z0-9]|[0-9]x)";
  for (const char c : name) pattern += c == '-' ? std::string(gap) : std::string(1, c);
  pattern += "(?=$|[^a-z0-9]|sxm|pcie|nvl)";
  return std::regex_search(text, std::regex(pattern, std::regex::icase));
}

// A tile of a matrix product, and its rate as a fraction of the best tile's rate. The rates and
// lost_k are estimates: smaller tiles load more bytes for each multiplication.
struct Tile {
  double m, n, rate;
};
constexpr std::array<Tile, 4> tiles = {
    {{128, 256, 1.0}, {256, 128, 1.0}, {128, 128, 0.9}, {64, 128, 0.7}}};
// Time that a tile loses to filling the pipeline and writing its result, in steps of k.
constexpr double lost_k = 192;

double tiled_share(const ComputeModel& model, double m, double n, double k) {
  double best = 0;
  for (const Tile& tile : tiles) {
    const double count = std::ceil(m / tile.m) * std::ceil(n / tile.n);
    const double waves = std::ceil(count / model.units);
    const double useful = m * n / (waves * model.units * tile.m * tile.n);
    best = std::max(best, useful * tile.rate);
  }
  return best * k / (k + lost_k);
}

}  // namespace

const ComputeModel& find_compute_model(std::string_view name) {
  constexpr std::size_t longest_name = 256;  // bounds the recursion of the matching
  const std::string text(name.substr(0, longest_name));
  const ComputeModel* found = nullptr;
  for (const ComputeModel& model : compute_models()) {
    if (!has_words(text, model.name)) continue;
    // The longest name wins: "A100-40GB" before "A100".
    if (!found || model.name.size() > found->name.size()) found = &model;
  }
  if (found) return *found;
  throw Error(ErrorCode::not_found, fmt::format("unknown GPU \"{}\"; known are {}", name,
                                                fmt::join(compute_model_names(), ", ")));
}

std::vector<std::string> compute_model_names() {
  std::vector<std::string> names;
  for (const ComputeModel& model : compute_models()) names.push_back(model.name);
  return names;
}

double moving_seconds(const ComputeModel& model, double bytes) {
  return std::max(model.kernel_s, bytes / (model.memory_gbyte_s * 1e9));
}

double product_seconds(const ComputeModel& model, const ProductShape& shape) {
  const auto m = static_cast<double>(shape.m), n = static_cast<double>(shape.n),
             k = static_cast<double>(shape.k);
  const double peak = shape.bf16 ? model.peak_bf16 : model.peak_f32;
  // best_product was measured on a large product and contains its losses, so only the ratio counts.
  constexpr double large = 8192;
  const double share =
      model.units > 0
          ? std::min(1.0, tiled_share(model, m, n, k) / tiled_share(model, large, large, large))
          : 1;
  const double computing = 2 * m * n * k / (peak * model.best_product * share);
  return std::max(computing, moving_seconds(model, static_cast<double>(shape.moved_bytes)));
}

double attention_seconds(const ComputeModel& model, const AttentionWork& work) {
  const double peak = work.bf16 ? model.peak_bf16 : model.peak_f32;
  const double best = work.flash_attention_2 ? model.flash_attention_2 : model.best_attention;
  // Short sequences have little work beside the diagonal blocks, of which half is masked. Forward
  // of cuDNN reaches 0.58 of its best rate at 512 tokens and 0.76 at 1,024, FlashAttention-2 0.57
  // and 0.78 (FlashAttention-3, figure 5). The best rates were measured at 16,384 tokens.
  constexpr double lost_tokens = 350, longest = 16384;
  const auto share = [](double tokens) { return tokens / (tokens + lost_tokens); };
  const double reached = std::min(1.0, share(static_cast<double>(work.seq)) / share(longest));
  return std::max(model.kernel_s, work.flops / (peak * best * reached));
}

}  // namespace atoll_v1::atoll
