// An example of data parallel training that uses buckets and the scheduler, but not the FSDP
// engine.
//   ddp FILE   trains a small network on 1 or 2 ranks; rank 0 writes the weights to FILE
// A training step has two micro batches of equal size, which are distributed over the ranks. One
// rank sums the gradients of both micro batches itself; two ranks sum them in the all-reduce.
// Either way each sum has two operands, so the weights are bitwise equal for 1 and 2 ranks.
#include <algorithm>
#include <atoll/schedule.hpp>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <utility>
#include <vector>

namespace {

constexpr std::size_t width = 64, depth = 6, rows = 16;
constexpr int micro_batches = 2, steps = 60;
constexpr float learning_rate = 0.2f;

using Matrix = std::vector<float>;  // the elements of a matrix in row-major order

// Returns a pseudo-random number in [-1, 1) that is the same on every machine.
float noise(std::uint64_t at) {
  at = (at + 1) * 0x9e3779b97f4a7c15u;
  at = (at ^ (at >> 29)) * 0xbf58476d1ce4e5b9u;
  return static_cast<float>(at >> 40) / static_cast<float>(1 << 23) - 1.0f;
}

struct Network {
  // `values` has a rows x width matrix for each boundary between layers, and `slopes` has the
  // gradients of these values.
  std::vector<Matrix> weights, values, slopes;

  Network() : values(depth + 1, Matrix(rows * width)), slopes(values) {
    for (std::size_t l = 0; l < depth; ++l) {
      Matrix& weight = weights.emplace_back(width * width);
      for (std::size_t i = 0; i < weight.size(); ++i) weight[i] = 0.2f * noise(l * 100'000 + i);
    }
  }

  void read(int micro) {
    for (std::size_t i = 0; i < rows * width; ++i) {
      values[0][i] = noise(9'000'000 + static_cast<std::size_t>(micro) * rows * width + i);
    }
  }

  void forward(std::size_t l) {
    for (std::size_t r = 0; r < rows; ++r) {
      for (std::size_t o = 0; o < width; ++o) {
        float sum = 0;
        for (std::size_t i = 0; i < width; ++i) {
          sum += weights[l][o * width + i] * values[l][r * width + i];
        }
        values[l + 1][r * width + o] = std::tanh(sum);
      }
    }
  }

  // Returns the loss and computes its slopes. The target of each row is the row's input in reverse
  // order, halved.
  float loss() {
    constexpr float share = 1.0f / (rows * micro_batches);
    float sum = 0;
    for (std::size_t r = 0; r < rows; ++r) {
      for (std::size_t o = 0; o < width; ++o) {
        const float off =
            values[depth][r * width + o] - 0.5f * values[0][r * width + width - 1 - o];
        slopes[depth][r * width + o] = share * off;
        sum += 0.5f * share * off * off;
      }
    }
    return sum;
  }

  // Adds the gradient of the current micro batch to `gradient`, which has the shape of the layer's
  // weights.
  void backward(std::size_t l, float* gradient) {
    std::fill(slopes[l].begin(), slopes[l].end(), 0.0f);
    for (std::size_t o = 0; o < width; ++o) {
      Matrix row(width);
      for (std::size_t r = 0; r < rows; ++r) {
        const float out = values[l + 1][r * width + o];
        const float slope = slopes[l + 1][r * width + o] * (1 - out * out);
        for (std::size_t i = 0; i < width; ++i) {
          row[i] += slope * values[l][r * width + i];
          slopes[l][r * width + i] += slope * weights[l][o * width + i];
        }
      }
      for (std::size_t i = 0; i < width; ++i) gradient[o * width + i] += row[i];
    }
  }
};

// The buckets of gradients that are summed over the ranks. They contain the layers in the order of
// backward, the last layer first.
class Gradients {
 public:
  explicit Gradients(const atoll::Mesh& mesh) : scheduler_({}, mesh.axis("world")) {
    const std::vector<std::uint64_t> counts(depth, width * width);
    // A real model would use bucket_bytes() alone. The limit of 32 KiB makes this small model have
    // several buckets.
    const auto bytes = std::min(atoll::bucket_bytes(mesh.axis("world")), std::uint64_t{32768});
    plan_ = atoll::plan_buckets(counts, atoll::DType::f32, bytes);
    for (const auto& bucket : plan_.buckets) {
      memory_.push_back(
          scheduler_.allocate(bucket.elements * sizeof(float), {atoll::Lane::replicate}));
    }
  }

  atoll::Stream compute_stream() const { return scheduler_.device().stream({.name = "compute"}); }
  std::size_t buckets() const { return memory_.size(); }

  void start_step(atoll::Stream& compute) {
    for (const auto& bucket : memory_) compute.zero(bucket.data(), bucket.bytes());
  }
  float* of(std::size_t layer) const {
    const auto& place = plan_.locations[depth - 1 - layer];
    return static_cast<float*>(memory_[place.bucket].data()) + place.slot.offset;
  }
  // Must be called when the layer's last gradient has been enqueued. If that completes a bucket,
  // starts the all-reduce of the bucket.
  void complete(std::size_t layer, atoll::Stream& compute) {
    const std::size_t bucket = plan_.locations[depth - 1 - layer].bucket;
    if (layer > 0 && plan_.locations[depth - layer].bucket == bucket) return;
    works_.push_back(
        scheduler_.all_reduce(memory_[bucket].view(atoll::DType::f32), compute.record()));
  }
  // Makes `compute` wait for the sums. Throws the error of a failed all-reduce.
  void wait(atoll::Stream& compute) {
    for (const atoll::Work& work : std::exchange(works_, {})) work.wait(compute);
  }

 private:
  atoll::Scheduler scheduler_;
  atoll::BucketPlan plan_;
  std::vector<atoll::Buffer> memory_;
  std::vector<atoll::Work> works_;  // all-reduces of this step, one per bucket
};

// Enqueues one training step and returns at once. `loss` is valid when the stream has run the step.
void enqueue_step(Network& net, Gradients& gradients, const atoll::World& world, float& loss,
                  atoll::Stream& compute) {
  gradients.start_step(compute);
  compute.enqueue([&loss] { loss = 0; });
  for (int micro = world.rank(); micro < micro_batches; micro += world.size()) {
    compute.enqueue([&, micro] {
      net.read(micro);
      for (std::size_t l = 0; l < depth; ++l) net.forward(l);
      loss += net.loss();
    });
    for (std::size_t l = depth; l-- > 0;) {
      compute.enqueue([&net, l, gradient = gradients.of(l)] { net.backward(l, gradient); });
      if (micro + world.size() >= micro_batches) gradients.complete(l, compute);
    }
  }
  gradients.wait(compute);
  compute.enqueue([&] {
    for (std::size_t l = 0; l < depth; ++l) {
      for (std::size_t i = 0; i < width * width; ++i) {
        net.weights[l][i] -= learning_rate * gradients.of(l)[i];
      }
    }
  });
}

}  // namespace

int main(int argc, char** argv) {
  auto world = atoll::World::from_env();
  if (argc != 2 || micro_batches % world.size() != 0) {
    std::fprintf(stderr, "usage: ddp FILE, on 1 or %d ranks\n", micro_batches);
    return 2;
  }
  const auto mesh = atoll::Mesh::plan(atoll::Topology::discover(world), world);
  Network net;
  Gradients gradients(mesh);
  float first = 0, last = 0;
  {
    auto compute = gradients.compute_stream();
    for (int step = 0; step < steps; ++step) {
      enqueue_step(net, gradients, world, step == 0 ? first : last, compute);
    }
    compute.synchronize();
  }
  if (world.rank() == 0) {
    std::ofstream file(argv[1], std::ios::binary);
    for (const Matrix& weight : net.weights) {
      file.write(reinterpret_cast<const char*>(weight.data()),
                 static_cast<std::streamsize>(weight.size() * sizeof(float)));
    }
    if (!file.flush()) return 1;
  }
  std::printf("rank %d of %d, %zu buckets: loss %.3f, then %.3f\n", world.rank(), world.size(),
              gradients.buckets(), static_cast<double>(first), static_cast<double>(last));
  return last < first / 2 ? 0 : 1;
}
