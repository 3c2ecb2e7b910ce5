// The C API: errors of wrong calls, every collective, the engine and simulated devices. The program
// in tests/consumer/c uses it from C, on processes.
#include <doctest/doctest.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <future>
#include <numeric>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "atoll/atoll.h"
#include "atoll/engine.h"
#include "atoll/planner.h"

namespace {

constexpr int ranks = 3;

// The handles of one rank.
struct Rank {
  std::int32_t rank = 0;
  atoll_world* world = nullptr;
  atoll_topology* topology = nullptr;
  atoll_mesh* mesh = nullptr;
  atoll_device* cpu = nullptr;
  atoll_stream* stream = nullptr;
  atoll_communicator* comm = nullptr;
};

void ok(atoll_status status) {
  if (status != ATOLL_OK) throw std::runtime_error(atoll_last_error());
}

// Checks that a call is refused with a text that contains `part`.
void refused(atoll_status status, const std::string& part,
             atoll_status expected = ATOLL_INVALID_ARGUMENT) {
  const std::string text = atoll_last_error();
  CHECK_MESSAGE(status == expected, text);
  CHECK_MESSAGE(text.find(part) != std::string::npos, text);
}

// Sends the text of rank 0 to the threads of all ranks, as MPI_Bcast() would.
struct Broadcast {
  std::promise<std::string> sent{};
  std::shared_future<std::string> received = sent.get_future().share();
};
int broadcast(void* context, void* data, std::size_t bytes) {
  auto& [self, shared] = *static_cast<std::pair<int, Broadcast&>*>(context);
  auto* const text = static_cast<char*>(data);
  if (self == 0) shared.sent.set_value({text, bytes});
  shared.received.get().copy(text, bytes);
  return 0;
}

void one_rank(int rank, Broadcast& shared, const std::function<void(Rank&)>& body) {
  Rank self;
  std::pair<int, Broadcast&> context{rank, shared};
  ok(atoll_world_open_ranks(rank, ranks, broadcast, &context, nullptr, &self.world));
  ok(atoll_world_rank(self.world, &self.rank));
  ok(atoll_topology_discover(self.world, &self.topology));
  ok(atoll_mesh_plan(self.topology, self.world, nullptr, &self.mesh));
  ok(atoll_device_open(ATOLL_MEMORY_CPU, 0, &self.cpu));
  ok(atoll_stream_open(self.cpu, nullptr, &self.stream));
  atoll_communicator_options options{};
  options.size = sizeof options;
  options.backend = "host";
  ok(atoll_communicator_open(self.mesh, "world", &options, &self.comm));
  try {
    body(self);
  } catch (const std::exception& error) {
    atoll_world_fail(self.world, error.what());
    FAIL_CHECK(error.what());
  }
  atoll_communicator_close(self.comm);
  atoll_stream_close(self.stream);
  atoll_device_close(self.cpu);
  atoll_mesh_close(self.mesh);
  atoll_topology_close(self.topology);
  atoll_world_close(self.world);
}

// Runs `body` on ranks that are threads.
void run(const std::function<void(Rank&)>& body) {
  Broadcast shared;
  std::vector<std::jthread> threads;
  for (int rank = 0; rank < ranks; ++rank)
    threads.emplace_back([&, rank] { one_rank(rank, shared, body); });
}

// On the rank `waiting`, waits until all other ranks have made this call; these do not wait.
void await_others(Rank& self, int waiting, const std::string& name) {
  if (self.rank != waiting)
    return ok(atoll_world_put(self.world, (name + std::to_string(self.rank)).c_str(), "", 0));
  for (int rank = 0; rank < ranks; ++rank) {
    std::size_t bytes = 0;
    if (rank != waiting)
      ok(atoll_world_get(self.world, (name + std::to_string(rank)).c_str(), 30'000, nullptr,
                         &bytes));
  }
}

using Numbers = std::vector<std::int32_t>;

}  // namespace

TEST_CASE("a wrong call returns a status, and its text names the argument") {
  atoll_world* world = nullptr;
  std::int32_t number = 0;
  refused(atoll_world_open(nullptr, nullptr), "atoll_world_open: the argument world is NULL");
  refused(atoll_world_rank(nullptr, &number), "argument world is NULL");
  refused(atoll_device_open(7, 0, nullptr), "argument device is NULL");
  refused(atoll_work_synchronize(nullptr), "argument work is NULL");
  refused(atoll_engine_seal(nullptr, nullptr, 1), "argument order is NULL");
  refused(atoll_compute_model_open(nullptr, nullptr), "argument model is NULL");
  refused(atoll_world_open_ranks(0, 2, nullptr, nullptr, nullptr, &world), "argument broadcast");
  refused(atoll_world_regroup(nullptr, nullptr, &world), "argument old");
  CHECK(world == nullptr);
  atoll_world_close(nullptr);
  atoll_communicator_close(nullptr);
  atoll_world_fail(nullptr, "nothing");

  atoll_config* config = nullptr;
  ok(atoll_config_open(&config));
  refused(atoll_config_set(config, "time_out", "3"), "time_out");
  refused(atoll_config_set(config, "timeout", "soon"), "soon");
  refused(atoll_config_set(config, "timeout", nullptr), "argument value is NULL");
  atoll_config_close(config);
  std::thread([] { CHECK(std::string(atoll_last_error()).empty()); }).join();
  CHECK(std::string(atoll_last_error()) == "atoll_config_set: the argument value is NULL");
  CHECK(std::string(atoll_status_name(ATOLL_PEER_LOST)) == "peer lost");
  CHECK(std::string(atoll_status_name(99)) == "unknown error");
  atoll_topology* topology = nullptr;
  refused(atoll_topology_from_json("{", "a file", &topology), "a file", ATOLL_BAD_DATA);
}

TEST_CASE("wrong arguments of meshes, communicators and collectives are refused") {
  run([](Rank& self) {
    Numbers data(4, 1);
    std::int32_t number = 0;
    atoll_mesh* mesh = nullptr;
    atoll_axis axis{"shard", 2};
    atoll_finding finding{};
    atoll_communicator* comm = nullptr;
    atoll_communicator_options options{};
    const std::int32_t* list = nullptr;
    const auto sum = [&](void* to, std::uint64_t count, std::int32_t dtype, std::int32_t op) {
      return atoll_all_reduce(self.comm, data.data(), to, count, dtype, op, self.stream, nullptr);
    };
    refused(atoll_mesh_make(self.world, &axis, 1, nullptr, &mesh), "3");
    refused(atoll_mesh_ranks(self.mesh, "tensor", &list, &number, &number), "tensor");
    refused(atoll_mesh_axis(self.mesh, 9, &axis), "axis 9", ATOLL_NOT_FOUND);
    refused(atoll_mesh_finding(self.mesh, 99, &finding), "finding 99", ATOLL_NOT_FOUND);
    refused(atoll_communicator_open(self.mesh, "world", &options, &comm), "has no size");
    options.size = sizeof options;
    options.backend = "nonsense";
    refused(atoll_communicator_open(self.mesh, "world", &options, &comm), "nonsense",
            ATOLL_UNSUPPORTED);
    refused(sum(nullptr, 4, ATOLL_I32, ATOLL_SUM), "dst is NULL");
    refused(sum(data.data() + 1, 3, ATOLL_I32, ATOLL_SUM), "overlap");
    refused(sum(data.data(), 4, 99, ATOLL_SUM), "dtype 99");
    refused(sum(data.data(), 4, ATOLL_I32, 99), "99");
    refused(atoll_all_gather(self.comm, data.data(), data.data(), ~0ull, ATOLL_I32, self.stream,
                             nullptr),
            "argument count is too large");
    refused(atoll_send(self.comm, data.data(), 1, ATOLL_I32, 7, 0, self.stream, nullptr), "rank 7");
    refused(atoll_all_gather_v(self.comm, data.data(), data.data(), nullptr, ATOLL_I32, self.stream,
                               nullptr),
            "argument counts is NULL");
    refused(atoll_barrier(self.comm, nullptr, nullptr), "argument stream is NULL");
    refused(atoll_world_host_of(self.world, 3, &number), "argument rank");
    char small = 0;
    std::size_t bytes = 1;
    ok(atoll_world_put(self.world, "key", "value", 5));
    refused(atoll_world_get(self.world, "key", 1000, &small, &bytes), "argument bytes");
    CHECK(bytes == 5);
    refused(atoll_world_get(self.world, "absent", 50, &small, &bytes), "absent", ATOLL_TIMEOUT);
    ok(atoll_world_barrier(self.world));
    ok(atoll_world_check(self.world));
  });
}

TEST_CASE("every collective moves the data that its contract states") {
  run([](Rank& self) {
    const auto me = self.rank;
    auto* const on = self.stream;
    const std::int32_t mine = 10 + me;
    const Numbers each{100 + me, 200 + me, 300 + me};  // one element for each rank
    const auto done = [&](const Numbers& found, const Numbers& expected) {
      ok(atoll_stream_synchronize(on));
      CHECK(found == expected);
    };
    Numbers one(1), all(3), two(2);
    ok(atoll_all_gather(self.comm, &mine, all.data(), 1, ATOLL_I32, on, nullptr));
    done(all, {10, 11, 12});
    ok(atoll_reduce_scatter(self.comm, each.data(), one.data(), 1, ATOLL_I32, ATOLL_MAX, on,
                            nullptr));
    done(one, {100 * (me + 1) + 2});
    std::vector<float> halves(3, 1.0f + static_cast<float>(me));
    float twice = 0;
    ok(atoll_all_reduce_scaled(self.comm, halves.data(), halves.data(), 3, ATOLL_F32, ATOLL_SUM,
                               0.5, on, nullptr));
    ok(atoll_reduce_scatter_scaled(self.comm, halves.data(), &twice, 1, ATOLL_F32, ATOLL_AVG, 2.0,
                                   on, nullptr));
    ok(atoll_stream_synchronize(on));
    CHECK(halves == std::vector<float>(3, 3.0f));
    CHECK(twice == 6.0f);
    ok(atoll_all_reduce(self.comm, &mine, one.data(), 1, ATOLL_I32, ATOLL_SUM | ATOLL_NATIVE, on,
                        nullptr));
    done(one, {33});
    one = {100 * (me + 1) + 2};
    ok(atoll_reduce(self.comm, &mine, me == 1 ? one.data() : nullptr, 1, ATOLL_I32, ATOLL_SUM, 1,
                    on, nullptr));
    done(one, {me == 1 ? 33 : 100 * (me + 1) + 2});
    one = {mine};
    ok(atoll_broadcast(self.comm, one.data(), 1, ATOLL_I32, 2, on, nullptr));
    done(one, {12});
    ok(atoll_all_to_all(self.comm, each.data(), all.data(), 1, ATOLL_I32, on, nullptr));
    done(all, {100 * (me + 1), 100 * (me + 1) + 1, 100 * (me + 1) + 2});
    all = {0, 0, 0};
    ok(atoll_gather(self.comm, &mine, me == 0 ? all.data() : nullptr, 1, ATOLL_I32, 0, on,
                    nullptr));
    done(all, me == 0 ? Numbers{10, 11, 12} : Numbers{0, 0, 0});
    ok(atoll_scatter(self.comm, me == 2 ? each.data() : nullptr, one.data(), 1, ATOLL_I32, 2, on,
                     nullptr));
    done(one, {100 * (me + 1) + 2});

    const std::uint64_t counts[] = {1, 0, 2}, to_self[] = {me == 0, me == 1, me == 2};
    const Numbers part(counts[me], mine);
    ok(atoll_all_gather_v(self.comm, part.data(), all.data(), counts, ATOLL_I32, on, nullptr));
    done(all, {10, 12, 12});
    ok(atoll_gather_v(self.comm, part.data(), me == 1 ? all.data() : nullptr, counts, ATOLL_I32, 1,
                      on, nullptr));
    done(all, {10, 12, 12});
    ok(atoll_reduce_scatter_v(self.comm, each.data(), two.data(), counts, ATOLL_I32, ATOLL_MIN, on,
                              nullptr));
    done(two, me == 0 ? Numbers{100, 0} : me == 1 ? Numbers{0, 0} : Numbers{200, 300});
    ok(atoll_all_to_all_v(self.comm, &mine, to_self, one.data(), to_self, ATOLL_I32, on, nullptr));
    done(one, {mine});

    std::int32_t sent = mine;
    atoll_work* work = nullptr;
    const atoll_message messages[] = {{ATOLL_SEND, (me + 1) % ranks, &sent, 1, ATOLL_I32, 0},
                                      {ATOLL_RECV, (me + 2) % ranks, one.data(), 1, ATOLL_I32, 0}};
    ok(atoll_send_recv(self.comm, messages, 2, on, &work));
    ok(atoll_work_synchronize(work));
    atoll_work_close(work);
    CHECK(one[0] == 10 + (me + 2) % ranks);

    atoll_communicator_options options{};
    options.size = sizeof options;
    options.tags = 1;
    atoll_communicator* tagged = nullptr;
    std::int32_t source = -1, tag = -1;
    ok(atoll_communicator_open(self.mesh, "world", &options, &tagged));
    ok(atoll_send(tagged, &sent, 1, ATOLL_I32, (me + 1) % ranks, 40 + me, on, nullptr));
    ok(atoll_recv(tagged, one.data(), 1, ATOLL_I32, ATOLL_ANY, ATOLL_ANY, on, &work));
    ok(atoll_work_synchronize(work));
    ok(atoll_work_source(work, &source, &tag));
    atoll_work_close(work);
    CHECK((source == (me + 2) % ranks && tag == 40 + source && one[0] == 10 + source));
    atoll_communicator_close(tagged);

    atoll_stop* stop = nullptr;
    ok(atoll_stop_open(&stop));
    if (me == 1) ok(atoll_stop_request(stop));
    options.stop = stop;
    refused(atoll_communicator_open(self.mesh, "world", &options, &tagged), "rank 1 stopped it",
            ATOLL_ABORTED);
    atoll_stop_close(stop);

    atoll_communicator* half = nullptr;
    std::int32_t size = 0;
    ok(atoll_communicator_split(self.comm, me == 1 ? -1 : 0, 0, "half", &half));
    CHECK((half == nullptr) == (me == 1));
    if (half != nullptr) ok(atoll_communicator_size(half, &size));
    CHECK(size == (me == 1 ? 0 : 2));
    atoll_communicator_close(half);
    ok(atoll_barrier(self.comm, on, nullptr));
    ok(atoll_stream_synchronize(on));
  });
}

TEST_CASE("streams, memory, and callbacks of failures") {
  run([](Rank& self) {
    using Told = std::promise<atoll_status>;  // the status that a callback gets on another thread
    const auto tell = [](void* context, atoll_status status, const char*) {
      static_cast<Told*>(context)->set_value(status);
    };
    const auto status_of = [](Told& told) {
      auto future = told.get_future();
      return future.wait_for(std::chrono::seconds(30)) == std::future_status::ready ? future.get()
                                                                                    : -1;
    };
    const auto increment = [](void* context) { ++*static_cast<int*>(context); };
    atoll_stream* other = nullptr;
    atoll_buffer* buffer = nullptr;
    atoll_work* work = nullptr;
    atoll_registration* registration = nullptr;
    const char* reason = nullptr;
    void* data = nullptr;
    int source = 7, target = 0;
    ok(atoll_stream_open(self.cpu, "other", &other));
    ok(atoll_buffer_open(self.cpu, sizeof source, &self.comm, 1, &buffer));
    ok(atoll_buffer_data(buffer, &data));
    ok(atoll_stream_copy(self.stream, data, &source, sizeof source));
    ok(atoll_stream_enqueue(self.stream, increment, data));
    ok(atoll_stream_wait(other, self.stream));
    ok(atoll_stream_copy(other, &target, data, sizeof source));
    ok(atoll_stream_zero(other, data, sizeof source));
    ok(atoll_stream_synchronize(other));
    CHECK(target == 8);
    CHECK(*static_cast<int*>(data) == 0);
    atoll_buffer_close(buffer);
    ok(atoll_buffer_open_alone(self.cpu, 100 + static_cast<std::size_t>(self.rank), &self.comm, 1,
                               &buffer));
    ok(atoll_buffer_data(buffer, &data));
    ok(atoll_registration_open(&source, sizeof source, &self.comm, 1, &registration));
    ok(atoll_registration_slow(registration, &reason));
    CHECK(*reason != 0);  // other processes cannot access the memory of a stack
    atoll_registration_close(registration);

    // Rank 2 does not take part, so that the other ranks wait until it aborts the communicator.
    Told done, failed;
    if (self.rank == 2) {
      await_others(self, 2, "enqueued");
      ok(atoll_communicator_abort(self.comm, "enough"));
    } else {
      ok(atoll_all_reduce(self.comm, data, data, 1, ATOLL_I32, ATOLL_SUM, self.stream, &work));
      await_others(self, 2, "enqueued");
      ok(atoll_work_then(work, tell, &done));
      CHECK(status_of(done) == ATOLL_ABORTED);
      refused(atoll_work_synchronize(work), "enough", ATOLL_ABORTED);
      refused(atoll_work_error(work), "enough", ATOLL_ABORTED);
      refused(atoll_work_wait(work, other), "enough", ATOLL_ABORTED);
    }
    refused(atoll_communicator_check(self.comm), "rank 2: enough", ATOLL_ABORTED);
    ok(atoll_world_on_failure(self.world, tell, &failed));
    await_others(self, 0, "registered");
    if (self.rank == 0) atoll_world_fail(self.world, "no data");
    refused(atoll_world_barrier(self.world), "no data", ATOLL_ABORTED);
    refused(atoll_world_check(self.world), "no data", ATOLL_ABORTED);
    atoll_work_close(work);
    atoll_buffer_close(buffer);
    atoll_stream_close(other);
    CHECK(status_of(failed) == ATOLL_ABORTED);
  });
}

TEST_CASE("an engine trains through the C API") {
  run([](Rank& self) {
    const std::int64_t shape[] = {5};
    const char* const order[] = {"layer"};
    atoll_param param{"w", shape, 1, 0.0f, 0.1f, 0};
    atoll_engine_options options{};
    atoll_optimizer_options adam{};
    atoll_engine* engine = nullptr;
    atoll_unit* layer = nullptr;
    atoll_optimizer* optimizer = nullptr;
    options.size = sizeof options;
    options.strategy = "full_shard";
    options.average = options.synchronous = 1;
    adam.size = sizeof adam;
    ok(atoll_engine_open(self.mesh, &options, &engine));
    ok(atoll_engine_add_unit(engine, "layer", &param, 1, &layer));
    ok(atoll_engine_seal(engine, order, 1));
    ok(atoll_engine_initialize(engine, 1));
    ok(atoll_optimizer_open(engine, &adam, &optimizer));
    for (int step = 0; step < 200; ++step) {
      atoll_pass* pass = nullptr;
      atoll_scope* scope = nullptr;
      void* values = nullptr;
      float* gradient = nullptr;
      std::uint64_t count = 0;
      std::int32_t accumulate = 0;
      ok(atoll_engine_begin(engine, 0, 1, 0, self.stream, &pass));
      ok(atoll_pass_forward(pass, layer, &scope));
      refused(atoll_scope_gradient(scope, "w", &gradient, &accumulate), "argument scope");
      atoll_scope_close(scope);
      ok(atoll_pass_backward(pass, layer, &scope));
      ok(atoll_scope_param(scope, "w", &values, &count));
      refused(atoll_scope_param(scope, "v", &values, &count), "v", ATOLL_NOT_FOUND);
      ok(atoll_scope_gradient(scope, "w", &gradient, &accumulate));
      for (std::uint64_t i = 0; i < count; ++i) gradient[i] = static_cast<float*>(values)[i] - 3;
      atoll_scope_close(scope);
      atoll_pass_close(pass);
      ok(atoll_optimizer_step(optimizer, 0.05f, self.stream));
    }
    float total = 0;
    const auto add = [](void* context, const char*, const char*, const float* values,
                        std::uint64_t count) {
      *static_cast<float*>(context) = std::accumulate(values, values + count, 0.0f);
    };
    ok(atoll_engine_visit(engine, add, &total));
    CHECK(total == doctest::Approx(15).epsilon(0.01));
    atoll_optimizer_close(optimizer);
    atoll_engine_close(engine);
  });
}

TEST_CASE("a simulated device takes the time of its work and of its links") {
  atoll_world* world = nullptr;
  atoll_mesh* mesh = nullptr;
  atoll_communicator* comm = nullptr;
  atoll_buffer* buffer = nullptr;
  void* data = nullptr;
  const atoll_axis axes[] = {{"replicate", 2}, {"shard", 4}};
  atoll_communicator_options simulated{};

  atoll_simulated_options options{};
  atoll_device* device = nullptr;
  atoll_stream* stream = nullptr;
  atoll_timed_work work{};
  atoll_compute_model* model = nullptr;
  double seconds = 0, large = 0;
  options.size = sizeof options;
  work.size = sizeof work;
  work.seconds = 2;
  options.intra_gbyte_s = 100;
  options.inter_gbyte_s = 10;
  ok(atoll_simulated_open(&options, &device));
  ok(atoll_stream_open(device, "compute", &stream));
  ok(atoll_simulated_run(stream, &work));
  ok(atoll_stream_synchronize(stream));
  ok(atoll_simulated_time(device, &seconds));
  CHECK(seconds == doctest::Approx(2));
  simulated.size = sizeof simulated;
  simulated.device = device;
  ok(atoll_world_open_simulated(0, 2, 4, nullptr, &world));
  ok(atoll_mesh_make(world, axes, 2, nullptr, &mesh));
  ok(atoll_communicator_open(mesh, "shard", &simulated, &comm));
  ok(atoll_buffer_open(device, 400'000'000, &comm, 1, &buffer));
  ok(atoll_buffer_data(buffer, &data));
  ok(atoll_all_reduce(comm, data, data, 100'000'000, ATOLL_F32, ATOLL_SUM, stream, nullptr));
  ok(atoll_stream_synchronize(stream));
  ok(atoll_simulated_time(device, &seconds));
  CHECK(seconds == doctest::Approx(2.006).epsilon(0.0002));  // 2 s + 2 x 3 / 4 x 0.4 GB / 100 GB/s
  atoll_buffer_close(buffer);
  atoll_communicator_close(comm);
  atoll_mesh_close(mesh);
  atoll_stream_close(stream);
  atoll_device_close(device);
  atoll_world_close(world);
  refused(atoll_compute_model_open("nonsense", &model), "H100", ATOLL_NOT_FOUND);
  ok(atoll_compute_model_open("H100", &model));
  ok(atoll_product_seconds(model, 1024, 1024, 1024, 1, 6 << 20, &seconds));
  ok(atoll_product_seconds(model, 8192, 8192, 8192, 1, 384 << 20, &large));
  CHECK(large > 100 * seconds);
  atoll_compute_model_close(model);
}
