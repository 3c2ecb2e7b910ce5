// Tests of atoll-busbw's upper limits, which follow from the bytes in memory and on the links
// between hosts.
#include <doctest/doctest.h>

#include "limit.hpp"
#include "unit/topology/machines.hpp"

using namespace busbw;
using doctest::Approx;

namespace {
const std::vector<int> two_by_two{0, 0, 1, 1};

double memory_bytes(Collective collective, double total, int ranks, Place place) {
  return traffic_of(collective, total, ranks, place).bytes();
}
}  // namespace

TEST_CASE("bytes in memory") {
  CHECK(memory_bytes(Collective::all_gather, 1000, 4, Place::out) == 2000);
  CHECK(memory_bytes(Collective::all_gather, 1000, 4, Place::in) == 1500);
  CHECK(memory_bytes(Collective::reduce_scatter, 1000, 4, Place::out) == 1250);
  CHECK(memory_bytes(Collective::reduce_scatter, 1000, 4, Place::in) == 1250);
  CHECK(memory_bytes(Collective::all_reduce, 1000, 4, Place::out) == 2000);
  CHECK(memory_bytes(Collective::broadcast, 1000, 4, Place::in) == 1500);
  CHECK(memory_bytes(Collective::gather, 1000, 4, Place::out) == 500);
  CHECK(memory_bytes(Collective::scatter, 1000, 4, Place::in) == 375);
  CHECK(memory_bytes(Collective::all_gather, 1000, 1, Place::out) == 2000);
  for (const Collective one : all_collectives)
    if (has_in_place(one)) CHECK(memory_bytes(one, 1000, 1, Place::in) == 0);
}

TEST_CASE("bytes on the links of two equal hosts") {
  const auto bytes = [](Collective one) { return wire_bytes(one, 1000, two_by_two, 0); };
  using Bytes = std::map<int, double>;
  CHECK(bytes(Collective::all_gather) == Bytes{{0, 500}, {1, 500}});
  CHECK(bytes(Collective::reduce_scatter) == Bytes{{0, 500}, {1, 500}});
  CHECK(bytes(Collective::all_reduce) == Bytes{{0, 1000}, {1, 1000}});
  CHECK(bytes(Collective::broadcast) == Bytes{{0, 1000}, {1, 1000}});
  CHECK(bytes(Collective::gather) == Bytes{{0, 500}, {1, 500}});
  CHECK(bytes(Collective::all_to_all) == Bytes{{0, 1000}, {1, 1000}});
  CHECK(bytes(Collective::send_recv) == Bytes{{0, 1000}, {1, 1000}});
  const std::vector<int> alternating{0, 1, 0, 1};
  CHECK(wire_bytes(Collective::send_recv, 1000, alternating, 0) == Bytes{{0, 2000}, {1, 2000}});
  CHECK(wire_bytes(Collective::all_gather, 1000, std::vector<int>{0, 0, 0}, 0).empty());
}

TEST_CASE("a host sends its part of a gather, or receives the rest, whichever is more") {
  for (const auto one : {Collective::all_gather, Collective::reduce_scatter}) {
    const auto bytes = wire_bytes(one, 900, std::vector<int>{0, 0, 1}, 0);
    CHECK(bytes.at(0) == Approx(600));
    CHECK(bytes.at(1) == Approx(600));
  }
  // The _v collectives give the four ranks 1, 2, 3 and 4 tenths of the data.
  for (const auto one : {Collective::all_gather_v, Collective::reduce_scatter_v}) {
    const auto bytes = wire_bytes(one, 1000, two_by_two, 0);
    CHECK(bytes.at(0) == Approx(700));
    CHECK(bytes.at(1) == Approx(700));
  }
}

TEST_CASE("on one CPU memory is the ceiling") {
  const Ceiling limit = ceiling(Collective::all_gather, 1e9, Place::out, 0, {{0, 1}},
                                std::vector<int>{0, 0}, {.memory_gbyte_s = 10});
  REQUIRE(limit.seconds);
  CHECK(*limit.seconds == Approx(0.2));
  CHECK(limit.by == "memory");
}

TEST_CASE("across hosts the slowest of links and memory is, and groups share the links") {
  const Rates rates{.memory_gbyte_s = 10, .host_gbyte_s = {1.0, 0.5}};
  const Ceiling alone =
      ceiling(Collective::all_gather, 1e9, Place::out, 0, {{0, 1, 2, 3}}, two_by_two, rates);
  REQUIRE(alone.seconds);
  // The slower host sends 0.5 GB at 0.5 GB/s, which takes 1 s.
  CHECK(*alone.seconds == Approx(1.0));
  CHECK(alone.by == "links");
  const Ceiling both =
      ceiling(Collective::all_gather, 1e9, Place::out, 0, {{0, 2}, {1, 3}}, two_by_two, rates);
  CHECK(both.seconds.value_or(0) == Approx(2.0));
  const Rates fast{.memory_gbyte_s = 1, .host_gbyte_s = {100.0, 100.0}};
  CHECK(ceiling(Collective::all_gather, 1e9, Place::out, 0, {{0, 1, 2, 3}}, two_by_two, fast).by ==
        "memory");
}

TEST_CASE("no ceiling is better than a wrong one") {
  const Rates rates{.memory_gbyte_s = 10, .host_gbyte_s = {1.0, std::nullopt}};
  const Ceiling limit =
      ceiling(Collective::all_reduce, 1e9, Place::out, 0, {{0, 1, 2, 3}}, two_by_two, rates);
  CHECK(!limit.seconds);
  CHECK(limit.by.find("not known") != std::string::npos);
  CHECK(!ceiling(Collective::all_reduce, 0, Place::out, 0, {{0, 1}}, std::vector<int>{0, 0}, rates)
             .seconds);
}

TEST_CASE("a given bus bandwidth") {
  const Ceiling limit = ceiling_of_busbw(Collective::all_reduce, 1e9, 4, 3);
  CHECK(limit.seconds.value_or(0) == Approx(0.5));
  CHECK(limit.by == "given");
  CHECK(!ceiling_of_busbw(Collective::all_reduce, 1e9, 1, 3).seconds);
}

TEST_CASE("GPUs are held against a ring where they go round one") {
  using atoll::DType;
  const auto of = [](Collective collective, Op op, DType dtype) {
    return ceiling_of_ring(collective, op, dtype, 1e9, 4, 3);
  };
  const Ceiling limit = of(Collective::all_reduce, Op::sum, DType::f32);
  CHECK(limit.seconds.value_or(0) == Approx(0.5));
  CHECK(limit.by == "ring");
  CHECK(of(Collective::all_gather, Op::none, DType::bf16).seconds.value_or(0) == Approx(0.25));
  CHECK(of(Collective::reduce_scatter, Op::avg, DType::i32).seconds);
  CHECK(!of(Collective::reduce_scatter, Op::avg, DType::f32).seconds);
  CHECK(!of(Collective::all_reduce, Op::max, DType::f16).seconds);
  for (const Collective one : all_collectives) {
    const bool has_ring = one == Collective::all_reduce || one == Collective::all_gather ||
                          one == Collective::reduce_scatter;
    CHECK(of(one, has_reduction(one) ? Op::sum : Op::none, DType::f32).seconds.has_value() ==
          has_ring);
  }
  CHECK(!ceiling_of_ring(Collective::all_reduce, Op::sum, DType::f32, 1e9, 1, 3).seconds);
  CHECK(!ceiling_of_ring(Collective::all_reduce, Op::sum, DType::f32, 1e9, 4, 0).seconds);
}

TEST_CASE("a host's NICs add up, those that are down or virtual do not count") {
  atoll::Topology topology = machines::cpus(2);  // hosts a and b
  for (const char* name : {"0", "1", "2", "3"})
    machines::add_nic(topology, "a", 8, name).adapter = name;
  topology.nics[2].state = "down";
  topology.nics.back().is_virtual = true;
  const auto one = atoll::usable_gbyte_s(topology)[0];
  REQUIRE(one);
  CHECK(host_gbyte_s(topology, "a").value_or(0) == Approx(2 * *one));
  CHECK(!host_gbyte_s(topology, "b"));
}
