// Describes one measured row: a collective with one size. The driver and all rank programs share
// this header, so the header must not depend on atoll.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace atoll_bench {

enum class Collective : std::int32_t {
  all_gather,
  reduce_scatter,
  all_reduce
};

enum class Element : std::int32_t {
  f32,
  bf16
};

enum class Place : std::int32_t {
  out,
  in
};

// Largest size in bytes for which the atoll ranks wait for every operation, as MPI calls do. For
// larger sizes they wait for every 64th operation.
constexpr std::uint64_t waited_bytes = 1024;

struct Row {
  Collective collective = Collective::all_gather;
  Element element = Element::f32;
  Place place = Place::out;
  std::uint64_t bytes = 0;  // size S of the whole tensor; a slice has S / ranks bytes
};

constexpr std::string_view name(Collective collective) {
  switch (collective) {
    case Collective::all_gather:
      return "all_gather";
    case Collective::reduce_scatter:
      return "reduce_scatter";
    case Collective::all_reduce:
      return "all_reduce";
  }
  return "?";
}

constexpr std::string_view name(Element element) {
  switch (element) {
    case Element::f32:
      return "f32";
    case Element::bf16:
      return "bf16";
  }
  return "?";
}

constexpr std::string_view name(Place place) {
  switch (place) {
    case Place::out:
      return "out";
    case Place::in:
      return "in";
  }
  return "?";
}

constexpr std::size_t size_of(Element element) {
  switch (element) {
    case Element::f32:
      return 4;
    case Element::bf16:
      return 2;
  }
  return 0;
}

// Return the number of elements of the whole tensor, and of the slice of one rank.
constexpr std::uint64_t elements(const Row& row) { return row.bytes / size_of(row.element); }
constexpr std::uint64_t slice(const Row& row, int ranks) {
  return elements(row) / static_cast<std::uint64_t>(ranks);
}
constexpr std::uint64_t slice_bytes(const Row& row, int ranks) {
  return row.bytes / static_cast<std::uint64_t>(ranks);
}

// Returns the number of elements that a rank contributes: one slice for all_gather, otherwise a
// whole tensor.
constexpr std::uint64_t input_elements(const Row& row, int ranks) {
  return row.collective == Collective::all_gather ? slice(row, ranks) : elements(row);
}
// Returns the number of elements that a rank receives: one slice for reduce_scatter, otherwise a
// whole tensor.
constexpr std::uint64_t output_elements(const Row& row, int ranks) {
  return row.collective == Collective::reduce_scatter ? slice(row, ranks) : elements(row);
}

// Returns the factor by which S / time is multiplied to get the bus bandwidth as nccl-tests defines
// it.
constexpr double bus_factor(Collective collective, int ranks) {
  const double n = ranks;
  return (collective == Collective::all_reduce ? 2.0 : 1.0) * (n - 1) / n;
}

}  // namespace atoll_bench
