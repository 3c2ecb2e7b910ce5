#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <span>
#include <type_traits>
#include <vector>

#include "arithmetic.hpp"

namespace muon {
namespace {

using atoll::bfloat16;
using atoll::ConstView;
using atoll::Stream;
using atoll::View;

float load(float value) { return value; }
float load(bfloat16 value) { return atoll::to_float(value); }

template <class T>
T store(float value) {
  if constexpr (std::is_same_v<T, float>) {
    return value;
  } else {
    return atoll::to_bfloat16(value);
  }
}

// Calls body.operator()<T>() with the type of the elements.
template <class Body>
void with_type(atoll::DType dtype, const Body& body) {
  if (dtype == atoll::DType::bf16) {
    body.template operator()<bfloat16>();
  } else {
    body.template operator()<float>();
  }
}

template <class T>
double squares_of(std::span<const T> values) {
  double sum = 0;
  for (const T value : values) {
    const auto x = static_cast<double>(load(value));
    sum += x * x;
  }
  return sum;
}

template <class T>
void multiply(const Product& p) {
  const T* const a = p.a.as<T>();
  const T* const b = p.b.as<T>();
  T* const c = p.c.as<T>();
  const bool a_plain = p.a_layout == Layout::plain, b_plain = p.b_layout == Layout::plain;
  std::vector<float> row(static_cast<std::size_t>(p.n));
  for (std::int64_t i = 0; i < p.m; ++i) {
    std::fill(row.begin(), row.end(), 0.0f);
    for (std::int64_t l = 0; l < p.k; ++l) {
      const float x = load(a_plain ? a[i * p.k + l] : a[l * p.m + i]);
      for (std::int64_t j = 0; j < p.n; ++j) {
        row[static_cast<std::size_t>(j)] += x * load(b_plain ? b[l * p.n + j] : b[j * p.k + l]);
      }
    }
    std::transform(row.begin(), row.end(), c + i * p.n, store<T>);
  }
}

class CpuArithmetic final : public Arithmetic {
 public:
  void sum_squares(Stream& stream, std::span<const ConstView> values, Figures* figures) override {
    stream.enqueue([all = std::vector(values.begin(), values.end()), figures] {
      figures->squares = 0;
      for (const ConstView& view : all) {
        figures->squares += squares_of(std::span(view.as<float>(), view.count));
      }
    });
  }

  void measure(Stream& stream, Figures* figures, float max_norm) override {
    stream.enqueue([figures, max_norm] {
      const auto norm = static_cast<float>(std::sqrt(figures->squares));
      figures->norm = static_cast<double>(norm);
      const bool clips = max_norm > 0 && norm > max_norm;
      figures->factor = static_cast<double>(clips ? max_norm / norm : 1.0f);
      if (std::isfinite(norm)) {
        figures->steps += 1;
      } else {
        figures->factor = std::numeric_limits<double>::quiet_NaN();
      }
    });
  }

  void convert(Stream& stream, View dst, ConstView src) override {
    stream.enqueue([dst, src] {
      with_type(dst.dtype, [&]<class To>() {
        with_type(src.dtype, [&]<class From>() {
          const From* const from = src.as<From>();
          std::transform(from, from + src.count, dst.as<To>(),
                         [](From value) { return store<To>(load(value)); });
        });
      });
    });
  }

  void normalize(Stream& stream, View x) override {
    stream.enqueue([x] {
      with_type(x.dtype, [&]<class T>() {
        const std::span values(x.as<T>(), x.count);
        const double norm = std::sqrt(squares_of(std::span<const T>(values)));
        const auto scale = static_cast<float>(1 / (norm + 1e-7));
        for (T& value : values) value = store<T>(load(value) * scale);
      });
    });
  }

  void combine(Stream& stream, View into, float keep, ConstView other, float factor) override {
    stream.enqueue([into, keep, other, factor] {
      with_type(into.dtype, [&]<class T>() {
        T* const x = into.as<T>();
        const T* const y = other.as<T>();
        for (std::uint64_t i = 0; i < into.count; ++i) {
          x[i] = store<T>(keep * load(x[i]) + factor * load(y[i]));
        }
      });
    });
  }

  void momentum(Stream& stream, const MomentumStep& step) override {
    stream.enqueue([s = step] {
      const auto factor = static_cast<float>(s.figures->factor);
      if (std::isnan(factor)) return;
      const float* const gradient = s.gradient.as<float>();
      float* const m = s.momentum.as<float>();
      float* const out = s.out.as<float>();
      for (std::uint64_t i = 0; i < s.gradient.count; ++i) {
        const float g = gradient[i] * factor;
        m[i] = s.beta * m[i] + g;
        out[i] = g + s.beta * m[i];
      }
    });
  }

  void update(Stream& stream, const MatrixStep& step) override {
    stream.enqueue([s = step] {
      if (std::isnan(s.figures->factor)) return;
      float* const w = s.weights.as<float>();
      const float* const update = s.update.as<float>();
      for (std::uint64_t i = 0; i < s.weights.count; ++i) w[i] = w[i] * s.keep - s.rate * update[i];
    });
  }

  void adamw(Stream& stream, const AdamWStep& step) override {
    stream.enqueue([s = step] {
      const auto factor = static_cast<float>(s.figures->factor);
      if (std::isnan(factor)) return;
      const auto correction = [&](float beta) {
        return 1 - std::pow(static_cast<double>(beta), s.figures->steps);
      };
      const auto rate = static_cast<float>(static_cast<double>(s.rate) / correction(s.beta1));
      const auto root = static_cast<float>(1 / std::sqrt(correction(s.beta2)));
      const float* const gradient = s.gradient.as<float>();
      float* const w = s.weights.as<float>();
      float* const moment1 = s.moment1.as<float>();
      float* const moment2 = s.moment2.as<float>();
      for (std::uint64_t i = 0; i < s.weights.count; ++i) {
        const float g = gradient[i] * factor;
        float &m = moment1[i], &v = moment2[i];
        m = s.beta1 * m + (1 - s.beta1) * g;
        v = s.beta2 * v + (1 - s.beta2) * g * g;
        w[i] = w[i] * s.keep - rate * m / (std::sqrt(v) * root + s.epsilon);
      }
    });
  }
};

}  // namespace

void multiply_with_loops(Stream& stream, const Product& product) {
  stream.enqueue([p = product] { with_type(p.c.dtype, [&]<class T>() { multiply<T>(p); }); });
}

std::shared_ptr<Arithmetic> cpu_arithmetic() { return std::make_shared<CpuArithmetic>(); }

}  // namespace muon
