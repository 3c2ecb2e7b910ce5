#include "report/datasheet.hpp"

#include <array>
#include <cctype>

namespace train {
namespace {

struct Gpu {
  std::string_view name;  // part of the name that CUDA reports
  double bf16, f32;       // TFLOP/s
};

// From NVIDIA's data sheets, without sparsity: where a sheet gives only the rate with sparsity, half
// of it. A longer name comes before its beginning.
constexpr std::array gpus{
    Gpu{"GB200", 2500, 80},     Gpu{"B200", 2250, 75},   Gpu{"H200 NVL", 835.5, 60},
    Gpu{"H200", 989.5, 67},     Gpu{"GH200", 989.5, 67}, Gpu{"H100 PCIe", 756.5, 51},
    Gpu{"H100 NVL", 835.5, 60}, Gpu{"H100", 989.5, 67},  Gpu{"H800 PCIe", 756.5, 51},
    Gpu{"H800", 989.5, 67},     Gpu{"A100", 312, 19.5},  Gpu{"A800", 312, 19.5},
    Gpu{"A30", 165, 10.3},      Gpu{"A40", 149.7, 37.4}, Gpu{"A10", 125, 31.2},
    Gpu{"L40S", 362, 91.6},     Gpu{"L4", 121, 30.3}};

// Whether `name` has `part` as whole words.
bool has_words(std::string_view name, std::string_view part) noexcept {
  const std::size_t at = name.find(part);
  if (at == name.npos) return false;
  const auto in_word = [&](std::size_t place) {
    return place < name.size() && std::isalnum(static_cast<unsigned char>(name[place])) != 0;
  };
  return (at == 0 || !in_word(at - 1)) && !in_word(at + part.size());
}

}  // namespace

double datasheet_peak(std::string_view gpu, std::string_view dtype) noexcept {
  constexpr double tera = 1e12;
  if (has_words(gpu, "MIG")) return 0;
  for (const Gpu& known : gpus) {
    if (!has_words(gpu, known.name)) continue;
    return dtype == "bf16" ? known.bf16 * tera : dtype == "f32" ? known.f32 * tera : 0;
  }
  return 0;
}

}  // namespace train
