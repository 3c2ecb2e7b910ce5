// Trains a small network with an optimizer that is written outside the library: Lion, which is
// below, or Muon, which is installed as an example.
//   optimizers lion|muon FIRST LAST FOLDER
// Makes the steps FIRST to LAST - 1 on 1, 2 or 4 ranks. Begins with the checkpoint in FOLDER unless
// FIRST is 0, and saves one there at the end. Rank 0 prints the loss of each step. A step has four
// samples, which are distributed over the ranks and added in the order in which ranks are added:
// (0 + 1) + (2 + 3). Therefore every number of ranks gives the same bits.
#include <atoll/checkpoint.hpp>
#include <atoll/communicator.hpp>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "muon.hpp"

namespace {

namespace fsdp = atoll::fsdp;

// Lion (Chen and others, arXiv 2302.06675), with decoupled weight decay.
class Lion {
 public:
  explicit Lion(fsdp::Engine& engine) : engine_(engine) {
    engine.add_state("momentum");
    for (const fsdp::Segment& segment : engine.segments()) {
      parts_.push_back({segment, engine.state(segment, "momentum").as<float>()});
    }
  }

  void step(float rate, atoll::Stream& compute) {
    engine_.wait_gradients(compute);
    compute.enqueue([this, rate] {
      for (const Part& part : parts_) update(part, rate);
    });
    engine_.parameters_changed(compute);
  }

 private:
  struct Part {
    fsdp::Segment segment;
    float* momentum;
  };

  static void update(const Part& part, float rate) {
    constexpr float beta1 = 0.9f, beta2 = 0.99f, decay = 0.1f;
    float* const w = part.segment.values.as<float>();
    const float* const g = part.segment.gradient.as<float>();
    for (std::uint64_t i = 0; i < part.segment.gradient.count; ++i) {
      const float direction = beta1 * part.momentum[i] + (1 - beta1) * g[i];
      const float sign = direction > 0 ? 1.0f : direction < 0 ? -1.0f : 0.0f;
      w[i] = w[i] * (1 - rate * decay) - rate * sign;
      part.momentum[i] = beta2 * part.momentum[i] + (1 - beta2) * g[i];
    }
  }

  fsdp::Engine& engine_;
  std::vector<Part> parts_;
};

constexpr float share = 0.25f;  // weight of a sample in the loss
constexpr std::size_t samples = 4, ends = 32, width = 96, depth = 3;
constexpr std::size_t sizes[depth + 1] = {ends, width, width, ends};
constexpr const char* units[depth] = {"layers.0", "layers.1", "head"};

// Returns a pseudo-random number in [-1, 1) that is the same on every machine.
float noise(std::uint64_t at) {
  at = (at + 1) * 0x9e3779b97f4a7c15u;
  at = (at ^ (at >> 29)) * 0xbf58476d1ce4e5b9u;
  return static_cast<float>(at >> 40) / static_cast<float>(1 << 23) - 1.0f;
}

// Adds the terms of 1, 2 or 4 samples, in the order in which the library adds ranks.
template <class Term>
float add(std::size_t count, const Term& term) {
  if (count == 1) return term(0);
  if (count == 2) return term(0) + term(1);
  return (term(0) + term(1)) + (term(2) + term(3));
}

// The activations of this rank's samples.
struct Network {
  std::size_t rows, first;  // number of this rank's samples, and its first sample
  // `values` has a rows x width matrix for each boundary between layers, and `slopes` has the
  // gradients of these values.
  std::vector<std::vector<float>> values, slopes;
  float loss = 0;

  Network(int ranks, int rank)
      : rows(samples / static_cast<std::size_t>(ranks)),
        first(rows * static_cast<std::size_t>(rank)) {
    for (const std::size_t size : sizes) values.emplace_back(rows * size);
    slopes = values;
    for (std::size_t i = 0; i < rows * ends; ++i) values[0][i] = noise(first * ends + i);
  }

  void forward(std::size_t l, const float* weight, const float* bias) {
    const std::size_t in = sizes[l], out = sizes[l + 1];
    for (std::size_t r = 0; r < rows; ++r) {
      for (std::size_t o = 0; o < out; ++o) {
        float sum = bias[o];
        for (std::size_t i = 0; i < in; ++i) sum += weight[o * in + i] * values[l][r * in + i];
        values[l + 1][r * out + o] = std::tanh(sum);
      }
    }
  }

  // Computes the loss and its slopes. The target of each row is the row's input in reverse order,
  // halved.
  void measure() {
    loss = add(rows, [&](std::size_t r) {
      float sum = 0;
      for (std::size_t o = 0; o < ends; ++o) {
        const float off = values[depth][r * ends + o] - 0.5f * values[0][r * ends + ends - 1 - o];
        slopes[depth][r * ends + o] = share * off;
        sum += 0.5f * share * off * off;
      }
      return sum;
    });
  }

  void backward(std::size_t l, const float* weight, float* weight_gradient, float* bias_gradient) {
    const std::size_t in = sizes[l], out = sizes[l + 1];
    for (std::size_t at = 0; at < rows * out; ++at) {
      slopes[l + 1][at] *= 1 - values[l + 1][at] * values[l + 1][at];
    }
    const auto slope = [&](std::size_t r, std::size_t o) { return slopes[l + 1][r * out + o]; };
    for (std::size_t o = 0; o < out; ++o) {
      bias_gradient[o] = add(rows, [&](std::size_t r) { return slope(r, o); });
      for (std::size_t i = 0; i < in; ++i) {
        weight_gradient[o * in + i] =
            add(rows, [&](std::size_t r) { return slope(r, o) * values[l][r * in + i]; });
      }
    }
    for (std::size_t r = 0; r < rows; ++r) {
      for (std::size_t i = 0; i < in; ++i) {
        float sum = 0;
        for (std::size_t o = 0; o < out; ++o) sum += slope(r, o) * weight[o * in + i];
        slopes[l][r * in + i] = sum;
      }
    }
  }
};

void add_units(fsdp::Engine& engine) {
  for (std::size_t l = 0; l < depth; ++l) {
    const auto in = static_cast<std::int64_t>(sizes[l]);
    const auto out = static_cast<std::int64_t>(sizes[l + 1]);
    engine.add_unit(units[l], {{.name = "weight", .shape = {out, in}, .init = {0, 0.1f}},
                               {.name = "bias", .shape = {out}, .init = {0, 0}}});
  }
  engine.seal({units[0], units[1], units[2]});
}

void enqueue_gradients(fsdp::Engine& engine, Network& net, atoll::Stream& compute) {
  auto pass = engine.begin({}, compute);
  for (std::size_t l = 0; l < depth; ++l) {
    const auto scope = pass.forward(engine.unit(units[l]));
    compute.enqueue([&net, l, w = scope["weight"].as<float>(), b = scope["bias"].as<float>()] {
      net.forward(l, w, b);
    });
  }
  compute.enqueue([&net] { net.measure(); });
  for (std::size_t l = depth; l-- > 0;) {
    const auto scope = pass.backward(engine.unit(units[l]));
    compute.enqueue([&net, l, w = scope["weight"].as<float>(),
                     weight_gradient = scope.grad("weight").view.as<float>(),
                     bias_gradient = scope.grad("bias").view.as<float>()] {
      net.backward(l, w, weight_gradient, bias_gradient);
    });
  }
}

// Holds one of the two optimizers.
struct Optimizer {
  std::unique_ptr<Lion> lion;
  std::unique_ptr<muon::Muon> muon;

  void step(atoll::Stream& compute) {
    if (lion) lion->step(0.002f, compute);
    if (muon) muon->step(0.003f, compute);
  }
};

Optimizer make_optimizer(const std::string& kind, fsdp::Engine& engine, const atoll::Mesh& mesh) {
  if (kind == "lion") return {std::make_unique<Lion>(engine), nullptr};
  muon::Options options;
  options.weight_decay = 0.1f;
  options.is_hidden = [](const fsdp::Unit& unit, const fsdp::ParamSpec& param) {
    return unit.name() != "head" && param.shape.size() == 2;
  };
  return {nullptr, std::make_unique<muon::Muon>(engine, mesh, options)};
}

void train(atoll::World& world, const std::string& kind, int first, int last,
           const std::string& folder) {
  const int replicas = world.size() == 4 ? 2 : 1;
  const auto mesh =
      atoll::Mesh::make(world, {.replicate = replicas, .shard = world.size() / replicas});
  fsdp::Engine engine(mesh);
  add_units(engine);
  auto totals = atoll::Communicator::open(mesh.axis("world"), {.name = "totals"});
  engine.initialize(/*seed=*/1);
  Optimizer optimizer = make_optimizer(kind, engine, mesh);
  if (first > 0) {
    const auto extra = fsdp::load(folder, engine);
    if (optimizer.muon) optimizer.muon->set_steps(std::stoi(extra.at("steps")));
  }
  Network net(world.size(), world.rank());
  auto compute = engine.device().stream({.name = "compute"});
  for (int step = first; step < last; ++step) {
    enqueue_gradients(engine, net, compute);
    optimizer.step(compute);
    const atoll::View loss(&net.loss, 1, atoll::DType::f32);
    totals.all_reduce(loss, loss, atoll::ReduceOp::sum, compute).wait(compute);
    compute.synchronize();
    if (world.rank() == 0) {
      std::printf("%s step %d: loss %.9g\n", kind.c_str(), step, static_cast<double>(net.loss));
    }
  }
  fsdp::save(folder, engine, {{"steps", std::to_string(last)}});
}

}  // namespace

int main(int argc, char** argv) {
  const std::string kind = argc == 5 ? argv[1] : "";
  auto world = atoll::World::from_env();
  if ((kind != "lion" && kind != "muon") || samples % static_cast<unsigned>(world.size()) != 0) {
    std::fprintf(stderr, "usage: optimizers lion|muon FIRST LAST FOLDER, on 1, 2 or 4 ranks\n");
    return 2;
  }
  try {
    train(world, kind, std::atoi(argv[2]), std::atoi(argv[3]), argv[4]);
  } catch (const atoll::Error& error) {
    std::fprintf(stderr, "optimizers: %s\n", error.what());
    return 1;
  }
}
