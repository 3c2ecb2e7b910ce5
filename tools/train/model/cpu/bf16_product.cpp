#include "model/cpu/bf16_product.hpp"

#if defined(__x86_64__)

#include <cpuid.h>
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstring>

namespace train::cpu {
namespace {

// Adds two products to each of the 16 sums. In assembly, because the intrinsic crashes clang 16.
__attribute__((target("avx512f"))) inline void add_products(__m512& sum, __m512i left,
                                                            __m512i right) {
  asm("vdpbf16ps %2, %1, %0" : "+v"(sum) : "v"(left), "v"(right));
}

// Computes `rows` x 16 `vectors` elements of C with AVX512-BF16. Without the pragmas, GCC keeps the
// sums in memory.
template <std::size_t rows, std::size_t vectors>
__attribute__((target("avx512f"))) void avx512_block(const Bf16Product& product, std::size_t i,
                                                     std::size_t j) {
  const std::size_t a_row = product.a_row, b_row = product.b_row, c_row = product.c_row;
  float* c = product.c + i * c_row + j;
  __m512 sum[rows][vectors];
#pragma GCC unroll 16
  for (std::size_t r = 0; r < rows; ++r) {
#pragma GCC unroll 16
    for (std::size_t v = 0; v < vectors; ++v) {
      sum[r][v] =
          product.accumulate ? _mm512_loadu_ps(c + r * c_row + v * 16) : _mm512_setzero_ps();
    }
  }
  const std::uint16_t* a = product.a + i * a_row;
  const std::uint32_t* b = product.b + j;
  for (std::size_t k = product.k; k > 0; k -= 2, a += 2, b += b_row) {
    __m512i right[vectors];
#pragma GCC unroll 16
    for (std::size_t v = 0; v < vectors; ++v) right[v] = _mm512_loadu_si512(b + v * 16);
#pragma GCC unroll 16
    for (std::size_t r = 0; r < rows; ++r) {
      std::int32_t pair = 0;
      std::memcpy(&pair, a + r * a_row, sizeof pair);
      const __m512i left = _mm512_set1_epi32(pair);
#pragma GCC unroll 16
      for (std::size_t v = 0; v < vectors; ++v) add_products(sum[r][v], left, right[v]);
    }
  }
#pragma GCC unroll 16
  for (std::size_t r = 0; r < rows; ++r) {
#pragma GCC unroll 16
    for (std::size_t v = 0; v < vectors; ++v) _mm512_storeu_ps(c + r * c_row + v * 16, sum[r][v]);
  }
}

template <std::size_t rows, std::size_t vectors>
void avx512_columns(const Bf16Product& product, std::size_t j) {
  for (std::size_t i = 0; i < product.m; i += rows) avx512_block<rows, vectors>(product, i, j);
}

// A block occupies 16 of the 32 registers with its sums.
void avx512_product(const Bf16Product& product) {
  std::size_t j = 0;
  for (; j + 64 <= product.n; j += 64) avx512_columns<4, 4>(product, j);
  if (j < product.n) avx512_columns<8, 2>(product, j);
}

// The layout that LDTILECFG reads, by Intel's architecture manual.
struct TileConfiguration {
  std::uint8_t palette = 1;
  std::uint8_t start_row = 0;
  std::uint8_t reserved[14] = {};
  std::uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  std::uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};
static_assert(sizeof(TileConfiguration) == 64);

// Computes 32 x 32 elements of C in four tiles of 16 rows and 64 bytes.
__attribute__((target("amx-tile,amx-bf16"))) void amx_block(const Bf16Product& product,
                                                            std::size_t i, std::size_t j) {
  const auto a_stride = static_cast<long>(product.a_row * 2);
  const auto b_stride = static_cast<long>(product.b_row * 4);
  const auto c_stride = static_cast<long>(product.c_row * 4);
  float* top = product.c + i * product.c_row + j;
  float* bottom = top + 16 * product.c_row;
  if (product.accumulate) {
    _tile_loadd(0, top, c_stride);
    _tile_loadd(1, top + 16, c_stride);
    _tile_loadd(2, bottom, c_stride);
    _tile_loadd(3, bottom + 16, c_stride);
  } else {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
  }
  const std::uint16_t* a = product.a + i * product.a_row;
  const std::uint32_t* b = product.b + j;
  for (std::size_t k = 0; k < product.k; k += 32, a += 32, b += 16 * product.b_row) {
    _tile_loadd(4, a, a_stride);
    _tile_loadd(5, a + 16 * product.a_row, a_stride);
    _tile_loadd(6, b, b_stride);
    _tile_loadd(7, b + 16, b_stride);
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
  _tile_stored(0, top, c_stride);
  _tile_stored(1, top + 16, c_stride);
  _tile_stored(2, bottom, c_stride);
  _tile_stored(3, bottom + 16, c_stride);
}

__attribute__((target("amx-tile"))) void amx_product(const Bf16Product& product) {
  const TileConfiguration configuration;
  _tile_loadconfig(&configuration);
  for (std::size_t j = 0; j < product.n; j += 32) {
    for (std::size_t i = 0; i < product.m; i += 32) amx_block(product, i, j);
  }
  _tile_release();
}

// Linux saves the AMX tiles of a process only after the process has asked for permission.
bool amx_permitted() {
  constexpr long request_permission = 0x1023;  // ARCH_REQ_XCOMP_PERM
  constexpr long tile_data = 18;               // XFEATURE_XTILE_DATA
  unsigned a = 0, b = 0, c = 0, d = 0;
  constexpr unsigned needed = 1U << 24 | 1U << 22;  // CPUID bits of AMX-TILE and AMX-BF16
  return __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 && (d & needed) == needed &&
         syscall(SYS_arch_prctl, request_permission, tile_data) == 0;
}

}  // namespace

Bf16Instructions bf16_instructions() {
  static const Bf16Instructions best = [] {
    if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512bf16")) {
      return Bf16Instructions::none;
    }
    return amx_permitted() ? Bf16Instructions::amx : Bf16Instructions::avx512;
  }();
  return best;
}

bool avx512_bf16_is_fast() { return __builtin_cpu_is("amd"); }

void multiply(Bf16Instructions instructions, const Bf16Product& product) {
  instructions == Bf16Instructions::amx ? amx_product(product) : avx512_product(product);
}

__attribute__((target("avx512f"))) void round_to_bf16(const float* from, std::size_t count,
                                                      std::uint16_t* to) {
  for (std::size_t i = 0; i < count; i += 32) {
    const __m512 low = _mm512_loadu_ps(from + i), high = _mm512_loadu_ps(from + i + 16);
    __m512i rounded;
    asm("vcvtne2ps2bf16 %1, %2, %0" : "=v"(rounded) : "v"(low), "v"(high));
    _mm512_storeu_si512(to + i, rounded);
  }
}

}  // namespace train::cpu

#else

namespace train::cpu {

Bf16Instructions bf16_instructions() { return Bf16Instructions::none; }

bool avx512_bf16_is_fast() { return false; }

void multiply(Bf16Instructions, const Bf16Product&) {}

void round_to_bf16(const float*, std::size_t, std::uint16_t*) {}

}  // namespace train::cpu

#endif
