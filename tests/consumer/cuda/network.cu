// Trains a small network with kernels on a CUDA stream of the program, and batches that another
// stream of the program copies. The same trainer runs on the CPU. Prints the loss of
// each step: half the mean squared error.
//   network cuda|host
#include <atoll/cuda.hpp>
#include <atoll/cuda/runtime.hpp>
#include <atoll/optimizer.hpp>
#include <cmath>
#include <cstdio>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace {

using atoll::cuda::check;

constexpr int batch = 64, inputs = 8, hidden = 32, steps = 30;
constexpr int batch_floats = batch * (inputs + 1);  // x, then the wanted output of each sample

// Arrays on the device.
struct Net {
  const float *x, *wanted;    // [batch, inputs], [batch]
  const float *w, *bias, *v;  // parameters: [hidden, inputs], [hidden], [hidden]
  float *h, *error, *delta;   // [batch, hidden], [batch], [batch, hidden]
};

// The steps of a pass. Each writes its element i; the host and the GPU run the same code.
struct HiddenForward {
  Net net;
  __host__ __device__ void operator()(int i) const {
    const int sample = i / hidden, unit = i % hidden;
    float sum = net.bias[unit];
    for (int k = 0; k < inputs; ++k) {
      sum += net.w[unit * inputs + k] * net.x[sample * inputs + k];
    }
    net.h[i] = tanhf(sum);
  }
};
struct OutputForward {
  Net net;
  __host__ __device__ void operator()(int i) const {
    float y = 0;
    for (int unit = 0; unit < hidden; ++unit) y += net.v[unit] * net.h[i * hidden + unit];
    net.error[i] = (y - net.wanted[i]) / batch;
  }
};
struct Loss {
  Net net;
  float* loss;
  __host__ __device__ void operator()(int) const {
    float sum = 0;
    for (int sample = 0; sample < batch; ++sample) sum += net.error[sample] * net.error[sample];
    *loss = sum * batch / 2;
  }
};
struct OutputBackward {
  Net net;
  float* gradient;
  __host__ __device__ void operator()(int i) const {
    float sum = 0;
    for (int sample = 0; sample < batch; ++sample) {
      const int at = sample * hidden + i;
      sum += net.error[sample] * net.h[at];
      net.delta[at] = net.error[sample] * net.v[i] * (1 - net.h[at] * net.h[at]);
    }
    gradient[i] = sum;
  }
};
struct HiddenBackward {
  Net net;
  float *w_gradient, *bias_gradient;
  __host__ __device__ void operator()(int i) const {
    float sum = 0, bias_sum = 0;
    for (int sample = 0; sample < batch; ++sample) {
      const float delta = net.delta[sample * hidden + i / inputs];
      sum += delta * net.x[sample * inputs + i % inputs];
      bias_sum += delta;
    }
    w_gradient[i] = sum;
    if (i % inputs == 0) bias_gradient[i / inputs] = bias_sum;
  }
};

template <class Op>
__global__ void run_each(Op op, int n) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i < n) op(i);
}

// Enqueues op(i) for every i below n.
template <class Op>
void each(const atoll::Device& device, atoll::Stream& stream, int n, Op op) {
  if (device.kind() == atoll::DeviceKind::cpu) {
    stream.enqueue([op, n] {
      for (int i = 0; i < n; ++i) op(i);
    });
    return;
  }
  atoll::cuda::launch(stream, [&](cudaStream_t native) {
    run_each<Op><<<(n + 255) / 256, 256, 0, native>>>(op, n);
    check(cudaGetLastError(), "run_each");
  });
}

using OwnStream = std::unique_ptr<CUstream_st, cudaError_t (*)(cudaStream_t)>;
using OwnEvent = std::unique_ptr<CUevent_st, cudaError_t (*)(cudaEvent_t)>;

OwnStream make_stream() {
  cudaStream_t stream = nullptr;
  check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
  return {stream, cudaStreamDestroy};
}
OwnEvent make_event() {
  cudaEvent_t event = nullptr;
  check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "cudaEventCreateWithFlags");
  return {event, cudaEventDestroy};
}

// Copies batches to the GPU on a separate stream, one step ahead of compute at most.
class Loader {
 public:
  // `slots` has room for two batches.
  explicit Loader(float* slots) : slots_(slots) {}

  // Enqueues the copy of a batch, for which later work of `compute` waits.
  const float* load(const std::vector<float>& from, int step, atoll::Stream& compute) {
    float* const to = slots_ + step % 2 * batch_floats;
    const auto& [loaded, used] = events_[step % 2];
    check(cudaStreamWaitEvent(stream_.get(), used.get(), 0), "cudaStreamWaitEvent");
    check(cudaMemcpyAsync(to, from.data(), batch_floats * sizeof(float), cudaMemcpyHostToDevice,
                          stream_.get()),
          "cudaMemcpyAsync");
    check(cudaEventRecord(loaded.get(), stream_.get()), "cudaEventRecord");
    atoll::cuda::wait(compute, loaded.get());
    return to;
  }
  // Call after the last work of `compute` that uses the batch of this step.
  void release(int step, atoll::Stream& compute) {
    atoll::cuda::record(compute, events_[step % 2].second.get());
  }
  // Copies data from the device, after earlier work of `compute`. Blocks.
  std::vector<float> fetch(const float* from, int count, atoll::Stream& compute) {
    std::vector<float> to(static_cast<std::size_t>(count));
    atoll::cuda::wait(stream_.get(), compute.record());
    check(cudaMemcpyAsync(to.data(), from, to.size() * sizeof(float), cudaMemcpyDeviceToHost,
                          stream_.get()),
          "cudaMemcpyAsync");
    check(cudaStreamSynchronize(stream_.get()), "cudaStreamSynchronize");
    return to;
  }

 private:
  OwnStream stream_ = make_stream();
  std::pair<OwnEvent, OwnEvent> events_[2] = {{make_event(), make_event()},
                                              {make_event(), make_event()}};
  float* slots_;
};

// Returns the batch of this step and rank, which is the same on every machine.
std::vector<float> make_batch(int step, int rank) {
  std::vector<float> values(batch_floats);
  unsigned state = 1u + 7919u * static_cast<unsigned>(step) + 104729u * static_cast<unsigned>(rank);
  for (int sample = 0; sample < batch; ++sample) {
    float* const x = values.data() + sample * inputs;
    for (int k = 0; k < inputs; ++k) {
      state = state * 1664525u + 1013904223u;
      x[k] = static_cast<float>(state >> 8) / (1 << 23) - 1;
    }
    values[static_cast<std::size_t>(batch * inputs + sample)] = x[0] - x[1] / 2 + x[2] * x[2];
  }
  return values;
}

// Returns the losses of this rank. `loader` is null on the host.
std::vector<float> train(atoll::World& world, const atoll::Device& device, atoll::Stream& compute,
                         float* memory, Loader* loader) {
  const auto mesh = atoll::Mesh::plan(atoll::Topology::discover(world), world);
  atoll::fsdp::Engine engine(mesh,
                             {.strategy = atoll::fsdp::Strategy::full_shard, .device = device});
  auto& first = engine.add_unit(
      "hidden", {{.name = "w", .shape = {hidden, inputs}, .init = {.deviation = 0.4f}},
                 {.name = "bias", .shape = {hidden}}});
  auto& second =
      engine.add_unit("output", {{.name = "v", .shape = {hidden}, .init = {.deviation = 0.2f}}});
  engine.seal({"hidden", "output"});
  engine.initialize(/*seed=*/1);
  atoll::fsdp::Optimizer optimizer(engine);

  Net net{};
  net.h = memory + 2 * batch_floats;
  net.error = net.h + batch * hidden;
  net.delta = net.error + batch;
  float* const losses = net.delta + batch * hidden;
  std::vector<std::vector<float>> batches;
  for (int step = 0; step < steps; ++step) batches.push_back(make_batch(step, world.rank()));
  for (int step = 0; step < steps; ++step) {
    const auto& next = batches[static_cast<std::size_t>(step)];
    net.x = loader != nullptr ? loader->load(next, step, compute) : next.data();
    net.wanted = net.x + batch * inputs;
    auto pass = engine.begin({}, compute);
    {
      auto w = pass.forward(first);
      net.w = w["w"].as<float>();
      net.bias = w["bias"].as<float>();
      each(device, compute, batch * hidden, HiddenForward{net});
    }
    {
      auto w = pass.forward(second);
      net.v = w["v"].as<float>();
      each(device, compute, batch, OutputForward{net});
    }
    each(device, compute, 1, Loss{net, losses + step});
    {
      auto w = pass.backward(second);
      net.v = w["v"].as<float>();
      each(device, compute, hidden, OutputBackward{net, w.grad("v").view.as<float>()});
    }
    {
      auto w = pass.backward(first);
      each(device, compute, hidden * inputs,
           HiddenBackward{net, w.grad("w").view.as<float>(), w.grad("bias").view.as<float>()});
    }
    if (loader != nullptr) loader->release(step, compute);
    optimizer.step(0.02f, compute);
  }
  if (loader != nullptr) return loader->fetch(losses, steps, compute);
  compute.synchronize();
  return {losses, losses + steps};
}

std::vector<float> train_on_host(atoll::World& world, std::size_t floats) {
  const auto device = atoll::Device::cpu();
  const auto memory = device.allocate(floats * sizeof(float));
  auto compute = device.stream();
  return train(world, device, compute, static_cast<float*>(memory.data()), nullptr);
}

std::vector<float> train_on_gpu(atoll::World& world, std::size_t floats) {
  const auto device = atoll::Device::cuda(world.local_rank());
  const atoll::cuda::Current current(device.ordinal());
  const auto memory = device.allocate(floats * sizeof(float));
  auto* const data = static_cast<float*>(memory.data());
  const OwnStream own = make_stream();
  Loader loader(data);
  auto compute = atoll::cuda::wrap_stream(device, own.get(), "compute");
  return train(world, device, compute, data, &loader);
}

}  // namespace

int main(int argc, char** argv) {
  const std::string where = argc == 2 ? argv[1] : "";
  if (where != "host" && where != "cuda") {
    std::fputs("usage: network cuda|host\n", stderr);
    return 2;
  }
  if (where == "cuda" && atoll::Device::cuda_count() == 0) {
    std::puts("skipped: no GPU, or no driver for it");
    return 77;
  }
  constexpr std::size_t floats = 2 * batch_floats + batch * (2 * hidden + 1) + steps;
  auto world = atoll::World::from_env();
  const auto losses = where == "host" ? train_on_host(world, floats) : train_on_gpu(world, floats);
  if (world.rank() != 0) return 0;
  for (int step = 0; step < steps; ++step) {
    std::printf("step %d loss %.6f\n", step + 1,
                static_cast<double>(losses[static_cast<std::size_t>(step)]));
  }
}
