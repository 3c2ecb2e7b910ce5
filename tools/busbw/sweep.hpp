// Measures one collective over sizes, element types, reductions and roots, checks the results, and
// prints the table as it grows.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "atoll/device.hpp"
#include "job.hpp"
#include "memory_rate.hpp"
#include "operation.hpp"
#include "options.hpp"
#include "report.hpp"

namespace busbw {

// Results of one collective, equal on every rank.
struct Table {
  Collective collective = Collective::all_reduce;
  std::vector<Row> rows = {};
  // Combinations of type and reduction that were left out, each with the reason.
  std::vector<std::string> unsupported = {};
  Verdict verdict = {};
  std::optional<Expectation> expectation = {};

  bool is_good() const noexcept;
};

class Sweep {
 public:
  // Allocates the buffers. Collective.
  Sweep(Job& job, const Options& options);
  // Measures and prints. Collective.
  Table run(Collective collective);
  std::uint64_t buffer_bytes() const noexcept { return send_.bytes() + recv_.bytes(); }

 private:
  // An element type and a reduction. A backend may lack the combination.
  struct Kind {
    atoll::DType dtype;
    Op op;
  };
  struct Timing {
    double seconds = 0;      // time of one operation
    double cpu_seconds = 0;  // time to enqueue one operation
  };

  std::vector<Kind> kinds_of(Collective collective) const;
  std::optional<std::string> why_unsupported(Collective collective, Kind kind);
  std::vector<int> roots_of(Collective collective) const;
  void log_transports();
  void measure_rows(Kind kind, int root, const std::vector<std::uint64_t>& sizes, Table& table);
  Row measure_row(const Call& call);
  Half measure_half(const Call& call);
  void warm_up(const Call& call);
  Timing time_batches(const Call& call);
  std::vector<double> time_single(const Call& call);
  std::uint64_t check(const Call& call);
  Ceiling ceiling_of(const Call& call, MemoryRate::Known known = MemoryRate::Known::keep);
  Memory memory_at(const Call& call, int iteration) const;
  std::vector<Memory> slots_of(const Call& call) const;
  std::uint64_t stride_of(const Call& call) const;
  double by_time_of(const std::vector<std::vector<double>>& all, std::size_t entry) const;
  Half gather(const Call& call, const std::vector<double>& mine);
  void show_progress(const Call& call);
  void print(const std::string& text) const;

  Job& job_;
  const Options& options_;
  MemoryRate memory_rate_;
  Rates rates_;
  atoll::Buffer send_, recv_;
  std::uint64_t seed_ = 0;
  std::size_t rows_done_ = 0, rows_planned_ = 0;
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
};

// First line of every report: version, backend and launcher.
std::string title_line(const Job& job);
// Text above the first table: what runs where.
std::string preamble(const Job& job, const Options& options, Collective collective);

}  // namespace busbw
