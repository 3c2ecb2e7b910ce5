// Tests of atoll-busbw: names of collectives, tensor shapes, bus bandwidth factors
// and groups of ranks.
#include <doctest/doctest.h>

#include <numeric>

#include "collective.hpp"

using namespace busbw;
using atoll::DType;

TEST_CASE("names go both ways") {
  for (const Collective one : all_collectives) CHECK(collective_from_name(name(one)) == one);
  for (const Op one : all_ops) CHECK(op_from_name(name(one)) == one);
  for (const DType one : all_dtypes) {
    CHECK(busbw::dtype_from_name(column_name(one)) == one);
    CHECK(busbw::dtype_from_name(atoll::name(one)) == one);
  }
  CHECK(!collective_from_name("allreduce"));
  CHECK(!op_from_name("none"));
  CHECK(busbw::dtype_from_name("float16") == atoll::DType::f16);
  CHECK(busbw::dtype_from_name("fp64") == atoll::DType::f64);
  CHECK(!busbw::dtype_from_name("f8e4m3"));
}

TEST_CASE("what no backend does is said with what there is instead") {
  for (const DType dtype : all_dtypes) {
    for (const Op op : {Op::none, Op::sum, Op::min, Op::max, Op::avg}) {
      CHECK(!why_undefined(op, dtype));
    }
  }
  CHECK(!why_undefined(Op::mulsum, DType::bf16));
  CHECK(why_undefined(Op::mulsum, DType::i32).value_or("") ==
        "mulsum supports floating-point types only: use sum for int32, or mulsum for half, float, "
        "double or bfloat16");
}

TEST_CASE("sizes of a sweep") {
  using Sizes = std::vector<std::uint64_t>;
  CHECK(sweep_sizes(8, 64, 1, 2) == Sizes{8, 16, 32, 64});
  CHECK(sweep_sizes(8, 70, 1, 3) == Sizes{8, 24});
  CHECK(sweep_sizes(10, 30, 10, 1) == Sizes{10, 20, 30});
  CHECK(sweep_sizes(10, 35, 10, 0) == Sizes{10, 20, 30});
  CHECK(sweep_sizes(0, 2, 1, 1) == Sizes{0, 1, 2});
  CHECK(sweep_sizes(5, 5, 0, 1) == Sizes{5});
  CHECK(sweep_sizes(0, 5, 0, 2) == Sizes{0});
  const std::uint64_t huge = std::uint64_t{1} << 63U;
  CHECK(sweep_sizes(huge, ~std::uint64_t{0}, 1, 2) == Sizes{huge});
}

TEST_CASE("shapes hold at most the bytes asked for, ranks in equal parts of 16 bytes") {
  const Shape reduce = shape_of(Collective::all_reduce, 1001, DType::f32, 3);
  CHECK(reduce.count == 250);
  CHECK(reduce.total == 250);
  const Shape gather = shape_of(Collective::all_gather, 1000, DType::f32, 3);
  // A third of 1,000 bytes, rounded down to a multiple of 16, holds 80 f32.
  CHECK(gather.count == 80);
  CHECK(gather.total == 240);
  CHECK(shape_of(Collective::all_to_all, 63, DType::f32, 4).total == 0);
  CHECK(shape_of(Collective::all_to_all, 64, DType::f32, 4).count == 4);
}

TEST_CASE("uneven shapes") {
  for (const int ranks : {1, 2, 3, 4, 7, 300}) {
    const Shape shape = shape_of(Collective::all_gather_v, 1 << 20, DType::bf16, ranks);
    REQUIRE(shape.counts.size() == static_cast<std::size_t>(ranks));
    CHECK(std::accumulate(shape.counts.begin(), shape.counts.end(), std::uint64_t{0}) ==
          shape.total);
    CHECK(shape.total * 2 <= 1 << 20);
    CHECK(shape.total * 2 > (1 << 20) * 9 / 10);
    for (const std::uint64_t count : shape.counts) CHECK(count % 8 == 0);
    if (ranks > 1) CHECK(shape.counts[1] > shape.counts[0]);
  }
}

TEST_CASE("bus factors are those of nccl-tests") {
  CHECK(bus_factor(Collective::all_reduce, 4) == doctest::Approx(1.5));
  for (const Collective one : {Collective::all_gather, Collective::reduce_scatter,
                               Collective::all_to_all, Collective::gather, Collective::scatter,
                               Collective::all_gather_v, Collective::reduce_scatter_v})
    CHECK(bus_factor(one, 4) == doctest::Approx(0.75));
  for (const Collective one : {Collective::broadcast, Collective::reduce, Collective::send_recv})
    CHECK(bus_factor(one, 4) == 1);
  CHECK(bus_factor(Collective::all_reduce, 1) == 0);
}

TEST_CASE("groups of the axes of a mesh") {
  using Groups = std::vector<std::vector<int>>;
  const std::vector<int> order{0, 2, 1, 3, 4, 5};
  CHECK(axis_groups(order, 3, "world") == Groups{order});
  CHECK(axis_groups(order, 3, "shard") == Groups{{0, 2, 1}, {3, 4, 5}});
  CHECK(axis_groups(order, 3, "replicate") == Groups{{0, 3}, {2, 4}, {1, 5}});
}
