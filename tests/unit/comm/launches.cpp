// Counts what a collective on a GPU launches: kernels, copies and groups of the backend. A test
// device and the test backend `counting` count and do nothing, so the sizes are those of a real
// job.
#include <dlfcn.h>
#include <doctest/doctest.h>
#include <sys/mman.h>

#include <atomic>
#include <mutex>
#include <string>

#include "atoll/communicator.hpp"
#include "device/backend.hpp"
#include "device/ops.hpp"
#include "plugins/counting.hpp"
#include "thread_ranks.hpp"

namespace {

using atoll::ConstView;
using atoll::DType;
using atoll::View;

struct Launches {
  std::atomic<std::uint64_t> kernels{0}, copies{0};
};

class CountingStream final : public atoll::StreamBackend {
 public:
  CountingStream(std::unique_ptr<atoll::StreamBackend> inner, Launches& launches)
      : inner_(std::move(inner)), launches_(launches) {}
  void enqueue(std::function<void()> work) override { inner_->enqueue(std::move(work)); }
  void copy(void*, const void*, std::size_t) override { ++launches_.copies; }
  void fill(void*, std::byte, std::size_t) override { ++launches_.copies; }
  std::shared_ptr<atoll::EventBackend> record() override { return inner_->record(); }
  void wait(std::shared_ptr<atoll::EventBackend> event, atoll::WaitReason reason) override {
    inner_->wait(std::move(event), reason);
  }
  void synchronize() override { inner_->synchronize(); }
  std::chrono::nanoseconds exposed_communication() const override { return {}; }
  void* native() noexcept override { return this; }  // not null, as on GPUs
  void launch(const std::function<void(void*)>& work) override { work(this); }

 private:
  std::unique_ptr<atoll::StreamBackend> inner_;
  Launches& launches_;
};

class CountingOps final : public atoll::DeviceOps {
 public:
  explicit CountingOps(Launches& launches) : launches_(launches) {}
  void cast(atoll::Stream&, View, ConstView) override { ++launches_.kernels; }
  void dequantize(atoll::Stream&, View, ConstView) override { ++launches_.kernels; }
  void add(atoll::Stream&, View, ConstView) override { ++launches_.kernels; }
  void scale(atoll::Stream&, View, ConstView, double) override { ++launches_.kernels; }
  void pack_rows(atoll::Stream&, View, ConstView, const atoll::RowGrid&, double) override {
    ++launches_.kernels;
  }
  void reduce(atoll::Stream&, View, ConstView, atoll::ReduceOp, int) override {
    ++launches_.kernels;
  }
  void sum_squares(atoll::Stream&, View, ConstView) override { ++launches_.kernels; }
  void clip_factor(atoll::Stream&, View, ConstView, atoll::ClipRule) override {
    launches_.kernels += 3;
  }
  void adamw(atoll::Stream&, const atoll::AdamWStep&) override { ++launches_.kernels; }
  void sgd(atoll::Stream&, const atoll::SgdStep&) override { ++launches_.kernels; }
  void fill_normal(atoll::Stream&, View, const atoll::NormalFill&) override { ++launches_.kernels; }

 private:
  Launches& launches_;
};

// A device whose memory consists of addresses without pages.
class CountingDevice final : public atoll::DeviceBackend {
 public:
  explicit CountingDevice(Launches& launches)
      : DeviceBackend({.kind = atoll::DeviceKind::cuda, .name = "counting", .ordinal = 0}),
        launches_(launches),
        ops_(launches) {}
  void* allocate(std::size_t bytes) override {
    return ::mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  }
  void deallocate(void* data, std::size_t bytes) noexcept override { ::munmap(data, bytes); }
  std::unique_ptr<atoll::StreamBackend> make_stream(const atoll::StreamOptions& options) override {
    return std::make_unique<CountingStream>(host_.backend()->make_stream(options), launches_);
  }
  atoll::DeviceOps& ops() noexcept override { return ops_; }

 private:
  atoll::Device host_ = atoll::Device::cpu();
  Launches& launches_;
  CountingOps ops_;
};

atoll_test::Counts counts() {
  using Function = void (*)(atoll_test::Counts*);
  const std::string file = std::string(ATOLL_TEST_PLUGINS) + "/libatoll-counting.so";
  void* const handle = ::dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  REQUIRE(handle != nullptr);
  atoll_test::Counts counts;
  reinterpret_cast<Function>(::dlsym(handle, "atoll_test_counts"))(&counts);
  return counts;
}

struct Job {
  int hosts, per_host;
  bool deterministic = false;
  std::string algorithm{};
};

void run(const Job& job,
         const std::function<void(atoll::World&, atoll::Communicator&, Launches&)>& body) {
  atoll_test::run_thread_ranks(
      job.hosts * job.per_host,
      [&](atoll::World& world) {
        Launches launches;
        const atoll::Device device(std::make_shared<CountingDevice>(launches));
        const auto mesh = atoll::Mesh::make(world, {1, world.size()});
        auto comm = atoll::Communicator::open(mesh.axis("shard"), {.device = device});
        body(world, comm, launches);
        world.barrier();
      },
      [&](atoll::Config& config) {
        config.host_id = std::to_string(config.rank / job.per_host);
        config.plugin_path = ATOLL_TEST_PLUGINS;
        config.backend = "counting";
        config.deterministic = job.deterministic;
        config.algorithm = job.algorithm;
      });
}

// The gradient of a layer of Mistral-7B, in elements.
constexpr std::uint64_t layer = 218'112'000;

}  // namespace

TEST_CASE("a bf16 or deterministic sum of a layer over 2 x 8 GPUs launches at most 40 times") {
  for (const bool deterministic : {false, true}) {
    const DType dtype = deterministic ? DType::f32 : DType::bf16;
    const auto before = counts().groups;
    std::uint64_t most = 0;
    std::mutex mutex;
    run({.hosts = 2, .per_host = 8, .deterministic = deterministic},
        [&](atoll::World&, atoll::Communicator& comm, Launches& launches) {
          atoll::Stream stream = comm.device().stream();
          const std::uint64_t part = layer / static_cast<std::uint64_t>(comm.size());
          const atoll::Buffer src = comm.device().allocate(layer * size_of(dtype));
          const atoll::Buffer dst = comm.device().allocate(part * size_of(dtype));
          launches.kernels = launches.copies = 0;
          comm.reduce_scatter(src.view(dtype), dst.view(dtype), atoll::ReduceOp::sum, stream)
              .synchronize();
          const std::lock_guard lock(mutex);
          most = std::max<std::uint64_t>(most, launches.kernels + launches.copies);
        });
    const std::uint64_t groups = (counts().groups - before) / 16;
    MESSAGE(name(dtype), ": ", most, " kernels and copies, ", groups, " groups");
    CHECK(most > 0);
    CHECK(groups > 0);
    CHECK(most + groups <= 40);
  }
}

TEST_CASE("sums in two levels write to registered scratch memory, if it is reserved") {
  const std::string two_levels = "all_gather:two_level,reduce_scatter:two_level";
  for (const bool reserves : {true, false}) {
    const auto before = counts().unregistered;
    run({.hosts = 2, .per_host = 4, .algorithm = two_levels},
        [&](atoll::World&, atoll::Communicator& comm, Launches&) {
          constexpr std::uint64_t part = 1'000'000;
          const auto ranks = static_cast<std::uint64_t>(comm.size());
          const std::uint64_t scratch =
              comm.scratch_bytes(atoll::Communicator::Sum::reduce_scatter, part, DType::f32);
          CHECK(scratch == 2 * part * sizeof(float));
          if (reserves) comm.reserve_scratch(scratch);
          atoll::Stream stream = comm.device().stream();
          const atoll::Buffer src = atoll::allocate(comm.device(), ranks * part * 4, {comm});
          const atoll::Buffer dst = atoll::allocate(comm.device(), part * 4, {comm});
          comm.reduce_scatter(src.view(DType::f32), dst.view(DType::f32), atoll::ReduceOp::sum,
                              stream)
              .synchronize();
        });
    // Without a reservation, 8 x 2 sums write to unregistered scratch memory: each of the 8 ranks
    // sums inside its host once for each of the 2 hosts.
    CHECK(counts().unregistered - before == (reserves ? 0 : 8 * 2));
  }
}
