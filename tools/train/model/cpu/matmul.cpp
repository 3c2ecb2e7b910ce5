#include "model/cpu/matmul.hpp"

#include <omp.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>
#include <map>
#include <oneapi/dnnl/dnnl.hpp>

#include "fail.hpp"
#include "model/cpu/kernels.hpp"
#include "model/cpu/scratch.hpp"
#include "report/log.hpp"

namespace train::cpu {
namespace {

using atoll::DType;

// oneDNN uses OpenMP's thread count of the calling thread, both to create and to run a primitive.
// Sets that count and restores it afterwards.
class ThreadCount {
 public:
  explicit ThreadCount(int threads) : before_(omp_get_max_threads()) {
    if (threads != before_) omp_set_num_threads(threads);
  }
  ~ThreadCount() { omp_set_num_threads(before_); }
  ThreadCount(const ThreadCount&) = delete;
  ThreadCount& operator=(const ThreadCount&) = delete;

 private:
  int before_;
};

// Whether the user limits the instruction sets of oneDNN.
bool limited_by_user() {
  return std::getenv("ONEDNN_MAX_CPU_ISA") != nullptr || std::getenv("DNNL_MAX_CPU_ISA") != nullptr;
}

// Whether the processor has these instructions and oneDNN uses them.
bool uses(dnnl::cpu_isa instructions) {
  const auto needed = static_cast<unsigned>(instructions);
  return (static_cast<unsigned>(dnnl::get_effective_cpu_isa()) & needed) == needed;
}

bool native_bf16() { return uses(dnnl::cpu_isa::avx512_core_bf16); }

dnnl::memory::data_type to_dnnl(DType dtype) {
  return is_bf16(dtype) ? dnnl::memory::data_type::bf16 : dnnl::memory::data_type::f32;
}

dnnl::memory::desc matrix(std::int64_t rows, std::int64_t columns, Operand layout, DType dtype) {
  const dnnl::memory::dims strides =
      layout == Operand::plain ? dnnl::memory::dims{columns, 1} : dnnl::memory::dims{1, rows};
  return {{rows, columns}, to_dnnl(dtype), strides};
}

// A primitive and its three operands. Each call sets their addresses.
struct Prepared {
  dnnl::matmul primitive;
  dnnl::memory a, b, c;
};

// Measures products of one size, with the right operand in oneDNN's preferred layout.
class PeakProduct {
 public:
  PeakProduct(DType dtype, std::int64_t m, std::int64_t n, std::int64_t k)
      : operations_(2.0 * static_cast<double>(m) * static_cast<double>(n) *
                    static_cast<double>(k)) {
    const auto type = to_dnnl(dtype);
    const dnnl::memory::desc a({m, k}, type, dnnl::memory::format_tag::ab);
    const dnnl::memory::desc b({k, n}, type, dnnl::memory::format_tag::any);
    const dnnl::memory::desc c({m, n}, type, dnnl::memory::format_tag::ab);
    const dnnl::matmul::primitive_desc description(dnnl::matmul::desc(a, b, c), engine_);
    primitive_ = dnnl::matmul(description);
    const std::array descs{description.src_desc(), description.weights_desc(),
                           description.dst_desc()};
    for (std::size_t i = 0; i < descs.size(); ++i) {
      memories_[i] = dnnl::memory(descs[i], engine_);
      auto* bytes = static_cast<std::uint8_t*>(memories_[i].get_data_handle());
      // Bytes of 0x3c are a small number in f32 and in bf16.
      std::fill_n(bytes, descs[i].get_size(), std::uint8_t{0x3c});
    }
  }

  double flops_per_second() {
    const auto start = std::chrono::steady_clock::now();
    primitive_.execute(stream_, {{DNNL_ARG_SRC, memories_[0]},
                                 {DNNL_ARG_WEIGHTS, memories_[1]},
                                 {DNNL_ARG_DST, memories_[2]}});
    stream_.wait();
    const std::chrono::duration<double> time = std::chrono::steady_clock::now() - start;
    return operations_ / time.count();
  }

 private:
  double operations_;
  dnnl::engine engine_{dnnl::engine::kind::cpu, 0};
  dnnl::stream stream_{engine_};
  dnnl::matmul primitive_;
  std::array<dnnl::memory, 3> memories_;
};

}  // namespace

struct MatMul::Impl {
  int threads;
  Bf16Arithmetic bf16;
  bool native = native_bf16();
  bool told = false;
  dnnl::engine engine{dnnl::engine::kind::cpu, 0};
  dnnl::stream stream{engine};
  std::map<Product, Prepared> cache;
  std::array<Scratch, 3> scratch;

  Impl(int threads_, Bf16Arithmetic bf16_) : threads(threads_), bf16(bf16_) {}

  bool converts(const Product& product) {
    if (product.in != DType::bf16) return false;
    if (bf16 == Bf16Arithmetic::convert) return true;
    if (!native && !told) {
      told = true;
      log::warn("this processor lacks AVX512-BF16: bf16 matrix products run at f32 speed");
    }
    return !native;
  }

  // Limits the cache: batches of unequal length produce many shapes.
  static constexpr std::size_t most_shapes = 2048;

  Prepared& prepared(const Product& product) {
    if (const auto found = cache.find(product); found != cache.end()) return found->second;
    if (cache.size() >= most_shapes) cache.clear();
    const auto a = matrix(product.m, product.k, product.a, product.in);
    const auto b = matrix(product.k, product.n, product.b, product.in);
    const auto c = matrix(product.m, product.n, Operand::plain, product.out);
    dnnl::primitive_attr attributes;
    if (product.mode == WriteMode::accumulate) {
      dnnl::post_ops sum;
      sum.append_sum(1.0F);
      attributes.set_post_ops(sum);
    }
    const dnnl::matmul::primitive_desc description(dnnl::matmul::desc(a, b, c), attributes, engine);
    Prepared made{dnnl::matmul(description), dnnl::memory(a, engine, DNNL_MEMORY_NONE),
                  dnnl::memory(b, engine, DNNL_MEMORY_NONE),
                  dnnl::memory(c, engine, DNNL_MEMORY_NONE)};
    return cache.emplace(product, std::move(made)).first->second;
  }

  void execute(const Product& product, const void* a, const void* b, void* c) {
    Prepared& entry = prepared(product);
    entry.a.set_data_handle(const_cast<void*>(a));
    entry.b.set_data_handle(const_cast<void*>(b));
    entry.c.set_data_handle(c);
    // The C function accepts an array; the C++ one would build a hash map.
    const std::array<dnnl_exec_arg_t, 3> arguments{{{DNNL_ARG_SRC, entry.a.get()},
                                                    {DNNL_ARG_WEIGHTS, entry.b.get()},
                                                    {DNNL_ARG_DST, entry.c.get()}}};
    const dnnl_status_t status = dnnl_primitive_execute(
        entry.primitive.get(), stream.get(), static_cast<int>(arguments.size()), arguments.data());
    if (status != dnnl_success) {
      fail(ErrorCode::backend, "oneDNN: matrix product {} x {} x {} failed with status {}",
           product.m, product.n, product.k, static_cast<int>(status));
    }
  }

  void cast(atoll::ConstView from, atoll::View to) const {
    const auto parts = static_cast<std::int64_t>(threads);
    const std::int64_t count = static_cast<std::int64_t>(from.count);
#pragma omp parallel for num_threads(threads) schedule(static)
    for (std::int64_t part = 0; part < parts; ++part) {
      convert(from, to, {to_size(count * part / parts), to_size(count * (part + 1) / parts)});
    }
  }

  // Computes the product on f32 copies.
  void execute_converted(const Product& product, const void* a, const void* b, void* c) {
    const std::size_t a_count = to_size(product.m * product.k);
    const std::size_t b_count = to_size(product.k * product.n);
    const std::size_t c_count = to_size(product.m * product.n);
    const atoll::View a32(scratch[0].reserve(a_count), a_count, DType::f32);
    const atoll::View b32(scratch[1].reserve(b_count), b_count, DType::f32);
    cast({a, a_count, DType::bf16}, a32);
    cast({b, b_count, DType::bf16}, b32);
    Product wide = product;
    wide.in = wide.out = DType::f32;
    if (product.out == DType::f32) return execute(wide, a32.data, b32.data, c);
    const atoll::View low(c, c_count, DType::bf16);
    const atoll::View c32(scratch[2].reserve(c_count), c_count, DType::f32);
    if (product.mode == WriteMode::accumulate) cast(low, c32);
    execute(wide, a32.data, b32.data, c32.data);
    cast(c32, low);
  }
};

MatMul::MatMul(int threads, Bf16Arithmetic bf16) : impl_(std::make_unique<Impl>(threads, bf16)) {}

MatMul::~MatMul() = default;

void MatMul::run(const Product& product, const void* a, const void* b, void* c) {
  const ThreadCount count(impl_->threads);
  try {
    if (impl_->converts(product)) {
      impl_->execute_converted(product, a, b, c);
    } else {
      impl_->execute(product, a, b, c);
    }
  } catch (const dnnl::error& error) {
    fail(ErrorCode::backend, "oneDNN: matrix product {} x {} x {}: {}", product.m, product.n,
         product.k, error.what());
  }
}

Bf16Instructions MatMul::instructions() const {
  if (impl_->bf16 == Bf16Arithmetic::convert || !impl_->native) return Bf16Instructions::none;
  if (impl_->bf16 == Bf16Arithmetic::avx512) {
    return std::min(bf16_instructions(), Bf16Instructions::avx512);
  }
  const bool amx = !limited_by_user() || uses(dnnl::cpu_isa::avx512_core_amx);
  const Bf16Instructions best =
      std::min(bf16_instructions(), amx ? Bf16Instructions::amx : Bf16Instructions::avx512);
  return best == Bf16Instructions::avx512 && !avx512_bf16_is_fast() ? Bf16Instructions::none : best;
}

void leave_out_amx() {
  static const bool once = [] {
    return limited_by_user() ||
           dnnl::set_max_cpu_isa(dnnl::cpu_isa::avx512_core_bf16) == dnnl::status::success;
  }();
  if (!once) log::warn("oneDNN was already in use, so its results may depend on the threads");
}

bool bits_depend_on_threads(DType dtype) {
  return !uses(dnnl::cpu_isa::avx512_core) ||
         (dtype == DType::bf16 && uses(dnnl::cpu_isa::avx512_core_amx));
}

double matrix_peak_flops(DType dtype, int threads, double seconds) {
  const ThreadCount count(threads);
  const DType measured = dtype == DType::bf16 && !native_bf16() ? DType::f32 : dtype;
  std::array<PeakProduct, 2> products{PeakProduct(measured, 512, 512, 512),
                                      PeakProduct(measured, 1024, 1024, 1024)};
  double best = 0;
  const auto start = std::chrono::steady_clock::now();
  const std::chrono::duration<double> limit(seconds);
  // Always runs the small product; on a very slow machine it alone takes all the time.
  for (std::size_t i = 0; i == 0 || std::chrono::steady_clock::now() - start < limit; ++i) {
    best = std::max(best, products[i % products.size()].flops_per_second());
  }
  return best;
}

}  // namespace train::cpu
