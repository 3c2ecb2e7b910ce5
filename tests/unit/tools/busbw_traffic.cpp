// Tests of the kernels that measure the memory limit. Correct results prove that the kernels skip
// no work.
#include <doctest/doctest.h>

#include <cstring>
#include <vector>

#include "atoll/view.hpp"
#include "traffic/kernels.hpp"

using traffic::Element;
using traffic::Stores;

namespace {

constexpr std::size_t line = 64;

// Rows of `bytes` each. Every row is aligned to a cache line.
struct Rows {
  Rows(std::size_t rows, std::size_t bytes)
      : stride((bytes + line - 1) / line * line), memory(rows * stride + line) {}
  std::byte* row(std::size_t i) {
    const auto base = reinterpret_cast<std::uintptr_t>(memory.data());
    return memory.data() + (line - base % line) % line + i * stride;
  }
  std::size_t stride;
  std::vector<std::byte> memory;
};

// Returns a small integer, so that sums are exact in both element types.
float value(std::size_t row, std::size_t i) { return static_cast<float>((row * 7 + i) % 13); }

float get(const std::byte* row, Element element, std::size_t i) {
  if (element == Element::f32) {
    float result = 0;
    std::memcpy(&result, row + 4 * i, 4);
    return result;
  }
  atoll::bfloat16 half{};
  std::memcpy(&half, row + 2 * i, 2);
  return atoll::to_float(half);
}

void set(std::byte* row, Element element, std::size_t i, float v) {
  if (element == Element::f32) {
    std::memcpy(row + 4 * i, &v, 4);
  } else {
    const atoll::bfloat16 half = atoll::to_bfloat16(v);
    std::memcpy(row + 2 * i, &half, 2);
  }
}

int wrong_sums(std::size_t inputs, std::size_t outputs, std::size_t count, Element element,
               Stores stores) {
  Rows from(inputs, 4 * count), to(outputs, 4 * count);
  std::vector<const std::byte*> sources;
  std::vector<std::byte*> targets;
  for (std::size_t r = 0; r < inputs; ++r) {
    for (std::size_t i = 0; i < count; ++i) set(from.row(r), element, i, value(r, i));
    sources.push_back(from.row(r));
  }
  for (std::size_t r = 0; r < outputs; ++r) targets.push_back(to.row(r));
  traffic::sum(targets, sources, count, element, stores);
  int wrong = 0;
  for (std::size_t i = 0; i < count; ++i) {
    float expected = 0;
    for (std::size_t r = 0; r < inputs; ++r) expected += value(r, i);
    for (const std::byte* target : targets) wrong += get(target, element, i) != expected;
  }
  return wrong;
}

}  // namespace

TEST_CASE("sums of the limit are sums, into every output") {
  for (const Element element : {Element::f32, Element::bf16}) {
    for (const Stores stores : {Stores::cached, Stores::streaming, Stores::library}) {
      for (const std::size_t inputs : {1U, 2U, 3U, 4U}) {
        for (const std::size_t count : {0U, 1U, 5U, 64U, 1000U}) {
          CHECK(wrong_sums(inputs, 1, count, element, stores) == 0);
          CHECK(wrong_sums(inputs, inputs, count, element, stores) == 0);
        }
      }
    }
  }
}

TEST_CASE("copies of the limit are copies") {
  for (const Stores stores : {Stores::cached, Stores::streaming, Stores::library}) {
    for (const std::size_t bytes : {0U, 1U, 63U, 64U, 1000U, 4096U}) {
      Rows rows(2, bytes);
      for (std::size_t i = 0; i < bytes; ++i) rows.row(0)[i] = static_cast<std::byte>(i % 251);
      traffic::copy(rows.row(1), rows.row(0), bytes, stores);
      CHECK(std::memcmp(rows.row(0), rows.row(1), bytes) == 0);
    }
  }
}
