// Goes through sizes, element types, reductions and roots of one collective, measures, checks, and
// prints its table as it comes.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "atoll/device.hpp"
#include "job.hpp"
#include "memory_rate.hpp"
#include "operation.hpp"
#include "options.hpp"
#include "report.hpp"

namespace busbw {

// What one collective gave. The same on every rank.
struct Table {
  Collective collective = Collective::all_reduce;
  std::vector<Row> rows = {};
  std::vector<std::string> unsupported = {};  // what was left out, and why
  Verdict verdict = {};
  std::optional<Expectation> expectation = {};

  bool is_good() const noexcept;
};

class Sweep {
 public:
  // Allocates the buffers. Collective.
  Sweep(Job& job, const Options& options);
  // Collective.
  Table run(Collective collective);
  std::uint64_t buffer_bytes() const noexcept { return send_.bytes() + recv_.bytes(); }

 private:
  // Element type and reduction that a backend may lack together.
  struct Kind {
    atoll::DType dtype;
    Op op;
  };
  struct Timing {
    double seconds = 0;      // of one operation
    double cpu_seconds = 0;  // to enqueue one
  };

  std::vector<Kind> kinds_of(Collective collective) const;
  std::optional<std::string> why_unsupported(Collective collective, Kind kind);
  std::vector<int> roots_of(Collective collective) const;
  void tell_transports();
  void measure_rows(Kind kind, int root, const std::vector<std::uint64_t>& sizes, Table& table);
  Row measure_row(const Call& call);
  Half measure_half(const Call& call);
  void warm_up(const Call& call);
  Timing time_batches(const Call& call);
  std::vector<double> time_single(const Call& call);
  std::uint64_t check(const Call& call);
  Ceiling ceiling_of(const Call& call);
  void improve_limit(const Call& call);
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

// Text above the first table: what runs where.
std::string preamble(const Job& job, const Options& options, Collective collective);

}  // namespace busbw
