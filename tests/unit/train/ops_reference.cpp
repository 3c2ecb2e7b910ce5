#include "unit/train/ops_reference.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

namespace train::reference {
namespace {

std::size_t index(std::int64_t i) { return static_cast<std::size_t>(i); }

double sigmoid(double x) { return 1.0 / (1.0 + std::exp(-x)); }

}  // namespace

Values random_values(std::mt19937_64& random, std::int64_t count, double deviation) {
  std::normal_distribution<double> normal(0.0, deviation);
  Values values(index(count));
  for (double& value : values) value = normal(random);
  return values;
}

Values rounded(const Values& values, atoll::DType dtype) { return Tensor(values, dtype).values(); }

double relative_error(const Values& actual, const Values& expected) {
  if (actual.size() != expected.size()) return std::numeric_limits<double>::infinity();
  double difference = 0;
  double norm = 0;
  for (std::size_t i = 0; i < actual.size(); ++i) {
    difference += (actual[i] - expected[i]) * (actual[i] - expected[i]);
    norm += expected[i] * expected[i];
  }
  if (!std::isfinite(difference)) return std::numeric_limits<double>::infinity();
  return norm > 0 ? std::sqrt(difference / norm) : std::sqrt(difference);
}

Values numerical_gradient(const std::function<double(const Values&)>& loss, const Values& x) {
  constexpr double step = 1e-5;
  Values moved = x;
  Values gradient(x.size());
  for (std::size_t i = 0; i < x.size(); ++i) {
    moved[i] = x[i] + step;
    const double above = loss(moved);
    moved[i] = x[i] - step;
    gradient[i] = (above - loss(moved)) / (2 * step);
    moved[i] = x[i];
  }
  return gradient;
}

double dot(const Values& a, const Values& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

Values linear(LinearShape shape, const Values& x, const Values& w) {
  Values y(index(shape.tokens * shape.out));
  for (std::int64_t t = 0; t < shape.tokens; ++t) {
    for (std::int64_t o = 0; o < shape.out; ++o) {
      for (std::int64_t i = 0; i < shape.in; ++i) {
        y[index(t * shape.out + o)] += x[index(t * shape.in + i)] * w[index(o * shape.in + i)];
      }
    }
  }
  return y;
}

Values rms_norm(std::int64_t width, double eps, const Values& x, const Values& weight) {
  Values y(x.size());
  for (std::size_t row = 0; row < x.size(); row += index(width)) {
    double squares = 0;
    for (std::size_t i = 0; i < index(width); ++i) squares += x[row + i] * x[row + i];
    const double rms = std::sqrt(squares / static_cast<double>(width) + eps);
    for (std::size_t i = 0; i < index(width); ++i) y[row + i] = x[row + i] / rms * weight[i];
  }
  return y;
}

Values rope(std::int64_t seq, std::int64_t heads, std::int64_t head_dim, double theta,
            const Values& x) {
  Values y(x.size());
  const std::int64_t half = head_dim / 2;
  const auto rows = static_cast<std::int64_t>(x.size()) / (heads * head_dim);
  for (std::int64_t row = 0; row < rows; ++row) {
    for (std::int64_t head = 0; head < heads; ++head) {
      const std::int64_t at = (row * heads + head) * head_dim;
      for (std::int64_t k = 0; k < half; ++k) {
        const double angle =
            static_cast<double>(row % seq) *
            std::pow(theta, -2.0 * static_cast<double>(k) / static_cast<double>(head_dim));
        const double a = x[index(at + k)];
        const double b = x[index(at + k + half)];
        y[index(at + k)] = a * std::cos(angle) - b * std::sin(angle);
        y[index(at + k + half)] = b * std::cos(angle) + a * std::sin(angle);
      }
    }
  }
  return y;
}

Values attention(const AttentionShape& shape, const Values& q, const Values& k, const Values& v) {
  Values out(q.size());
  const std::int64_t dim = shape.head_dim;
  const std::int64_t group = shape.heads / shape.kv_heads;
  for (std::int64_t row = 0; row < shape.rows; ++row) {
    for (std::int64_t head = 0; head < shape.heads; ++head) {
      for (std::int64_t i = 0; i < shape.seq; ++i) {
        const std::int64_t q_at = ((row * shape.seq + i) * shape.heads + head) * dim;
        const auto kv_at = [&](std::int64_t j) {
          return ((row * shape.seq + j) * shape.kv_heads + head / group) * dim;
        };
        const std::int64_t first =
            shape.window > 0 ? std::max<std::int64_t>(0, i - shape.window + 1) : 0;
        Values weights;
        double sum = 0;
        for (std::int64_t j = first; j <= i; ++j) {
          double score = 0;
          for (std::int64_t d = 0; d < dim; ++d) {
            score += q[index(q_at + d)] * k[index(kv_at(j) + d)];
          }
          weights.push_back(std::exp(score / std::sqrt(static_cast<double>(dim))));
          sum += weights.back();
        }
        for (std::int64_t j = first; j <= i; ++j) {
          for (std::int64_t d = 0; d < dim; ++d) {
            out[index(q_at + d)] += weights[index(j - first)] / sum * v[index(kv_at(j) + d)];
          }
        }
      }
    }
  }
  return out;
}

Values swiglu(const Values& gate, const Values& up) {
  Values out(gate.size());
  for (std::size_t i = 0; i < gate.size(); ++i) out[i] = gate[i] * sigmoid(gate[i]) * up[i];
  return out;
}

double cross_entropy(std::int64_t vocab, const std::vector<std::int32_t>& labels,
                     const Values& logits) {
  double loss = 0;
  for (std::size_t row = 0; row < labels.size(); ++row) {
    if (labels[row] < 0) continue;
    const double* values = logits.data() + row * index(vocab);
    const double top = *std::max_element(values, values + vocab);
    double sum = 0;
    for (std::int64_t i = 0; i < vocab; ++i) sum += std::exp(values[i] - top);
    loss += std::log(sum) + top - values[labels[row]];
  }
  return loss;
}

Tensor::Tensor(std::uint64_t count, atoll::DType dtype)
    : count_(count),
      dtype_(dtype),
      buffer_(atoll::Device::cpu().allocate(std::max<std::size_t>(count * size_of(dtype), 1))) {}

Tensor::Tensor(const Values& values, atoll::DType dtype) : Tensor(values.size(), dtype) {
  for (std::size_t i = 0; i < values.size(); ++i) {
    const auto value = static_cast<float>(values[i]);
    if (dtype == atoll::DType::bf16) {
      view().as<atoll::bfloat16>()[i] = atoll::to_bfloat16(value);
    } else if (dtype == atoll::DType::f64) {
      view().as<double>()[i] = values[i];
    } else {
      view().as<float>()[i] = value;
    }
  }
}

Tensor::Tensor(const std::vector<std::int32_t>& ids) : Tensor(ids.size(), atoll::DType::i32) {
  std::copy(ids.begin(), ids.end(), view().as<std::int32_t>());
}

Tensor Tensor::unset(std::int64_t count, atoll::DType dtype) {
  Tensor tensor(static_cast<std::uint64_t>(count), dtype);
  std::memset(tensor.view().data, 0xff, tensor.view().bytes());
  return tensor;
}

Values Tensor::values() const {
  Values values(count_);
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (dtype_ == atoll::DType::bf16) {
      values[i] = static_cast<double>(to_float(view().as<atoll::bfloat16>()[i]));
    } else if (dtype_ == atoll::DType::f64) {
      values[i] = view().as<double>()[i];
    } else {
      values[i] = static_cast<double>(view().as<float>()[i]);
    }
  }
  return values;
}

bool Tensor::same_bits(const Tensor& other) const {
  return count_ == other.count_ && dtype_ == other.dtype_ &&
         std::memcmp(view().data, other.view().data, view().bytes()) == 0;
}

}  // namespace train::reference
