// Trains 1,000 sharded weights towards the value 3; each rank holds one shard on its GPU.
#include <atoll/cuda.hpp>
#include <atoll/optimizer.hpp>
#include <cstdio>

__global__ void write_gradient(const float* w, float* g) {
  const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < 1000) g[i] = w[i] - 3;
}

int main() {
  auto world = atoll::World::from_env();
  const auto mesh = atoll::Mesh::plan(atoll::Topology::discover(world), world);
  atoll::fsdp::Engine engine(mesh, {.strategy = atoll::fsdp::Strategy::full_shard,
                                    .gradients = atoll::fsdp::GradientScale::average,
                                    .device = atoll::Device::cuda(world.local_rank())});
  auto& layer = engine.add_unit("layer", {{.name = "w", .shape = {1000}}});
  engine.seal({"layer"});
  engine.initialize(/*seed=*/1);
  atoll::fsdp::Optimizer optimizer(engine);
  auto compute = engine.device().stream();  // or cuda::wrap_stream() of a stream of the program
  for (int step = 0; step < 400; ++step) {
    auto pass = engine.begin({}, compute);
    {
      auto w = pass.forward(layer);  // gathered weights; a real layer launches its forward here
    }
    {
      auto w = pass.backward(layer);
      atoll::cuda::launch(compute, [&](cudaStream_t stream) {
        write_gradient<<<4, 256, 0, stream>>>(w["w"].as<float>(), w.grad("w").view.as<float>());
      });
    }
    // The update waits for the reduction of the gradients, which overlaps compute.
    optimizer.step(0.05f, compute);
  }
  float last = 0;
  engine.visit([&](const auto&, const auto&, auto values) { last = values.back(); });
  std::printf("rank %d of %d: %.2f\n", world.rank(), world.size(), static_cast<double>(last));
}
