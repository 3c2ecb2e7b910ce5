// Runs two operations on the backend `solo`: an operation that succeeds, and an operation that the
// backend refuses.
#include <algorithm>
#include <array>
#include <atoll/communicator.hpp>
#include <cstdio>
#include <string>

int main() {
  auto world = atoll::World::from_env();
  const auto mesh = atoll::Mesh::make(world, {.replicate = 1, .shard = 1});
  auto comm = atoll::Communicator::open(mesh.axis("shard"), {.name = "", .backend = "solo"});
  auto stream = comm.device().stream();
  std::array<float, 4> src{1, 2, 3, 4};
  std::array<float, 4> dst{};
  const atoll::ConstView from{src.data(), src.size(), atoll::DType::f32};
  const atoll::View to{dst.data(), dst.size(), atoll::DType::f32};
  comm.all_reduce(from, to, atoll::ReduceOp::sum, stream).synchronize();
  std::printf("sum %s\n", std::ranges::equal(src, dst) ? "right" : "wrong");
  try {
    comm.all_reduce(from, to, {atoll::ReduceOp::sum, 0.5}, stream).synchronize();
  } catch (const atoll::Error& error) {
    const bool has_reason =
        std::string(error.what()).find("solo supports no factors") != std::string::npos;
    std::printf("error %s\n", has_reason ? "right" : "wrong");
  }
}
