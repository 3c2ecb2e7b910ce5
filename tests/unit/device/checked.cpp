// Tests of the checked device (ATOLL_CHECK=lifetimes): which waits order two accesses, how long the
// content of memory is valid, and the messages.
#include <doctest/doctest.h>

#include <array>
#include <atomic>
#include <cmath>
#include <cstddef>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "device/backend.hpp"
#include "device/checked/device.hpp"
#include "device/ops.hpp"
#include "unit/error_text.hpp"

using atoll::Access;
using atoll_test::error_of;
using atoll_test::has;

namespace {

constexpr std::uint64_t count = 1024;

// A checked device with a buffer and three streams.
struct Bench {
  atoll::Device device = atoll::checked_device(atoll::Device::cpu());
  atoll::Buffer memory = device.allocate(count * sizeof(float));
  atoll::Stream a = device.stream({.name = "a"});
  atoll::Stream b = device.stream({.name = "b"});
  atoll::Stream c = device.stream({.name = "c"});

  atoll::View all() const { return memory.view(atoll::DType::f32); }
  void write(atoll::Stream& stream) const { stream.use(all(), Access::write, "writer"); }
  void read(atoll::Stream& stream) const { stream.use(all(), Access::read, "reader"); }
  void hold(atoll::Stream& stream, std::string_view what) const {
    stream.backend().hold(memory.data(), memory.bytes(), {what, what.empty() ? "" : "x"});
  }
};

std::string finding(const std::function<void()>& work) {
  const std::string error = error_of(work);
  if (error == "no error") return "";
  CHECK(error.starts_with("internal error: "));
  return error;
}

}  // namespace

TEST_CASE("a read on another stream needs an event after the write") {
  {
    Bench bench;
    const atoll::Event early = bench.a.record();
    bench.write(bench.a);
    bench.b.wait(early);
    const std::string text = finding([&] { bench.read(bench.b); });
    CHECK(has(text, "ATOLL_CHECK=lifetimes: reader on stream b reads bytes 0 to 4096"));
    CHECK(has(text, "writer on stream a writes it, unordered: stream b waits for no event"));
  }
  Bench bench;
  bench.write(bench.a);
  bench.b.wait(bench.a.record());
  CHECK(finding([&] { bench.read(bench.b); }) == "");
}

TEST_CASE("order is transitive over streams") {
  Bench bench;
  bench.write(bench.a);
  bench.b.wait(bench.a.record());
  bench.c.wait(bench.b.record());
  CHECK(finding([&] { bench.write(bench.c); }) == "");
  // The checker reports an error, because no event orders stream b after stream c.
  CHECK(finding([&] { bench.read(bench.b); }) != "");
}

TEST_CASE("order is transitive over the host once it has synchronized") {
  for (const int how : {0, 1, 2}) {
    CAPTURE(how);
    Bench bench;
    bench.write(bench.a);
    const atoll::Event event = bench.a.record();
    if (how == 0) bench.a.synchronize();
    if (how == 1) event.synchronize();
    while (how == 2 && !event.happened()) {
    }
    CHECK(finding([&] { bench.write(bench.b); }) == "");
  }
  Bench bench;
  bench.b.synchronize();
  bench.write(bench.a);
  CHECK(finding([&] { bench.write(bench.b); }) != "");
  Bench other;
  {
    other.write(other.a), other.a = other.device.stream();
  }  // destroying a stream waits for the stream's work
  CHECK(finding([&] { other.write(other.b); }) == "");
}

TEST_CASE("reads need no order among each other, a write needs one with each of them") {
  for (const bool both : {false, true}) {
    CAPTURE(both);
    Bench bench;
    bench.read(bench.a);
    bench.read(bench.b);
    bench.c.wait(bench.a.record());
    if (both) bench.c.wait(bench.b.record());
    const std::string text = finding([&] { bench.write(bench.c); });
    CHECK((text == "") == both);
    if (!both) CHECK(has(text, "reader on stream b reads it"));
  }
}

TEST_CASE("parts of an allocation have separate histories") {
  Bench bench;
  const atoll::View left = bench.all().part(0, 512), right = bench.all().part(512, 512);
  bench.a.use(left, Access::write, "left");
  CHECK(finding([&] { bench.b.use(right, Access::write, "right"); }) == "");
  const atoll::View middle = bench.all().part(500, 24);
  CHECK(has(finding([&] { bench.b.use(middle, Access::read, "middle"); }), "left on stream a"));
}

TEST_CASE("memory from other sources is not checked, and a use past the end is an error") {
  std::vector<float> host(count);
  Bench bench;
  bench.a.copy(host.data(), bench.memory.data(), bench.memory.bytes());
  CHECK(finding([&] { bench.b.copy(host.data(), host.data() + 512, 2048); }) == "");
  const atoll::ConstView past(bench.all().part(1000, 1).data, 100, atoll::DType::f32);
  CHECK(has(finding([&] { bench.a.use(past, Access::read, "reader"); }),
            "reader on stream a reads 400 bytes at 0x"));
}

TEST_CASE("copies, zero() and kernels declare what they use") {
  using atoll::DType;
  using Kernel =
      std::function<void(atoll::DeviceOps&, atoll::Stream&, atoll::View in, atoll::View out)>;
  const atoll::View low{nullptr, 0, DType::bf16};
  const std::vector<std::pair<std::string, Kernel>> kernels{
      {"copy", [](auto&, auto& s, auto in, auto out) { s.copy(out.data, in.data, out.bytes()); }},
      {"copy", [](auto&, auto& s, auto in, auto out) { s.copy(in.data, out.data, out.bytes()); }},
      {"zero", [](auto&, auto& s, auto in, auto) { s.zero(in.data, 1); }},
      {"cast", [](auto& ops, auto& s, auto in, auto out) { ops.cast(s, out, in); }},
      {"add", [](auto& ops, auto& s, auto in, auto out) { ops.add(s, out, in); }},
      {"scale", [](auto& ops, auto& s, auto in, auto out) { ops.scale(s, out, in, 2); }},
      {"reduce", [](auto& ops, auto& s, auto in,
                    auto out) { ops.reduce(s, out.part(0, 512), in, atoll::ReduceOp::sum, 0); }},
      {"sum_squares",
       [](auto& ops, auto& s, auto in, auto out) {
         ops.sum_squares(s, {out.data, 1, DType::f64}, in);
       }},
      {"clip_factor",
       [](auto& ops, auto& s, auto in, auto out) {
         ops.clip_factor(s, {in.data, 3, DType::f64}, {out.data, 1, DType::f64}, {});
       }},
      {"adamw",
       [&](auto& ops, auto& s, auto in, auto out) {
         const auto* steps = static_cast<const double*>(in.data);
         ops.adamw(s, {out.part(0, 4), out.part(4, 4), out.part(8, 4), out.part(12, 4), low, 0, 0,
                       0, 1, 0, steps, nullptr});
       }},
      {"sgd",
       [&](auto& ops, auto& s, auto in, auto out) {
         ops.sgd(s, {out.part(0, 4), in.part(0, 4), low, 0, 0, nullptr});
       }},
      {"dequantize",
       [](auto& ops, auto& s, auto in, auto out) {
         ops.dequantize(s, out.part(0, 64), {in.data, 68, DType::u8});
       }},
      {"fill_normal", [](auto& ops, auto& s, auto in, auto) { ops.fill_normal(s, in, {}); }}};
  for (const auto& [name, kernel] : kernels) {
    Bench bench;
    const atoll::Buffer out = bench.device.allocate(count * sizeof(float));
    bench.write(bench.a);
    CHECK(has(
        finding([&] { kernel(bench.device.ops(), bench.b, bench.all(), out.view(DType::f32)); }),
        name + " on stream b "));
  }
}

TEST_CASE("fresh memory, and memory whose lifetime is over, is NaN") {
  Bench bench;
  std::vector<float> seen(count);
  const auto look = [&] {
    bench.a.backend().enqueue([&] {
      const auto* values = bench.all().as<float>();
      seen.assign(values, values + count);
    });
    bench.a.synchronize();
    return std::isnan(seen.front()) && std::isnan(seen.back());
  };
  CHECK(look());
  bench.hold(bench.a, "parameters");
  bench.a.zero(bench.memory.data(), bench.memory.bytes());
  CHECK_FALSE(look());
  bench.hold(bench.a, "");
  CHECK(look());
}

TEST_CASE("a use after a lifetime, or of other content, is an error that names the content") {
  {
    Bench bench;
    bench.hold(bench.a, "parameters");
    bench.read(bench.a);
    bench.hold(bench.a, "");
    CHECK(has(finding([&] { bench.read(bench.a); }),
              "reader on stream a reads \"parameters x\" (bytes 0 to 4096 of the 4096"));
  }
  {
    Bench bench;
    bench.hold(bench.a, "parameters");
    CHECK(
        has(finding([&] {
              bench.a.backend().use(bench.memory.data(), 8, Access::read, {"forward", "y"},
                                    {"parameters", "y"});
            }),
            "forward y on stream a reads \"parameters y\", but the memory holds \"parameters x\""));
  }
  {
    Bench bench;
    bench.hold(bench.a, "parameters");
    CHECK(has(finding([&] { bench.hold(bench.a, "gradient"); }),
              "although that content is still in use"));
  }
  Bench bench;
  bench.hold(bench.a, "parameters");
  bench.hold(bench.a, "");
  CHECK(has(finding([&] { bench.hold(bench.b, "gradient"); }),
            "the end of its lifetime on stream a"));
}

TEST_CASE("memory may only be freed when no stream uses it") {
  for (const bool synchronized : {false, true}) {
    CAPTURE(synchronized);
    Bench bench;
    bench.read(bench.a);
    if (synchronized) bench.a.synchronize();
    bench.memory = {};
    const std::string text = finding([&] { bench.b.enqueue([] {}); });
    CHECK((text == "") == synchronized);
    if (!synchronized) CHECK(has(text, "is freed while reader on stream a may still be using it"));
  }
}

TEST_CASE("memory of a communication backend is checked as well") {
  Bench bench;
  std::array<double, 4> owned{};
  bench.device.backend()->adopt(owned.data(), sizeof owned);
  CHECK(bench.device.allocated_bytes() == bench.memory.bytes() + sizeof owned);
  bench.a.zero(owned.data(), sizeof owned);
  bench.a.synchronize();
  bench.b.zero(owned.data(), sizeof owned);
  CHECK(has(finding([&] { bench.a.zero(owned.data(), sizeof owned); }), "zero on stream b"));
  CHECK_THROWS_AS(bench.b.synchronize(), atoll::Error);
  bench.device.backend()->disown(owned.data(), sizeof owned);
  CHECK(bench.device.allocated_bytes() == bench.memory.bytes());
}

TEST_CASE("later calls report a finding again") {
  Bench bench;
  bench.write(bench.a);
  const atoll::Event event = bench.b.record();
  const std::string text = finding([&] { bench.write(bench.b); });
  REQUIRE(text != "");
  CHECK(finding([&] { bench.c.enqueue([] {}); }) == text);
  CHECK(finding([&] { bench.c.zero(bench.memory.data(), 1); }) == text);
  CHECK(finding([&] { bench.c.synchronize(); }) == text);
  CHECK(finding([&] { event.synchronize(); }) == text);
  CHECK(finding([&] { bench.c.record(); }) == "");
}

TEST_CASE("streams of other devices are refused, a checked device is not checked twice") {
  Bench bench;
  auto stranger = atoll::Device::cpu().stream();
  CHECK(has(finding([&] { bench.a.wait(stranger.record()); }), "an event of another device"));
  CHECK(atoll::checked_device(bench.device).backend() == bench.device.backend());
}

TEST_CASE("memory that is freed while a stream uses it stays mapped until the error is reported") {
  Bench bench;
  std::atomic<bool> freed{false};
  std::byte last{};
  {
    const atoll::Buffer memory = bench.device.allocate(count);
    auto* const data = static_cast<std::byte*>(memory.data());
    bench.a.use(memory.view(atoll::DType::u8), Access::write, "writer");
    bench.a.enqueue([&, data] {
      freed.wait(false);
      data[count - 1] = std::byte{7};
      last = data[count - 1];
    });
  }
  freed = true;
  freed.notify_all();
  const std::string text = finding([&] { bench.a.synchronize(); });
  CHECK(last == std::byte{7});
  CHECK(has(text, "is freed while writer on stream a may still be using it"));
}

TEST_CASE("messages tell streams of one name apart") {
  Bench bench;
  atoll::Stream first = bench.device.stream(), second = bench.device.stream();
  bench.write(first);
  const std::string text = finding([&] { bench.write(second); });
  CHECK(has(text, "writer on stream stream (number 2 of this name) writes"));
  CHECK(has(text, "writer on stream stream writes it"));
}

TEST_CASE("messages name the rank of the process") {
  const auto device = atoll::checked_device(atoll::Device::cpu(), 3);
  const auto memory = device.allocate(64);
  auto a = device.stream({.name = "a"}), b = device.stream({.name = "b"});
  a.use(memory.view(atoll::DType::u8), Access::write, "writer");
  CHECK(has(finding([&] { b.use(memory.view(atoll::DType::u8), Access::read, "reader"); }),
            "rank 3: ATOLL_CHECK=lifetimes: reader on stream b reads bytes 0 to 64"));
}
