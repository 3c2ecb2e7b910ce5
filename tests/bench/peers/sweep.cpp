#include "sweep.hpp"

#include <fmt/format.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <optional>
#include <stdexcept>
#include <thread>
#include <tuple>

#include "job.hpp"

namespace atoll_bench {

namespace {

namespace fs = std::filesystem;

// An implementation that is timed, in one of its variants. The two limits have several variants.
struct Contender {
  Impl impl;
  Variant variant;
};

constexpr Contender contenders[] = {{Impl::atoll, Variant::usual},
                                    {Impl::atoll_plain, Variant::plain_memory},
                                    {Impl::atoll_waited, Variant::waited},
                                    {Impl::openmpi, Variant::usual},
                                    {Impl::gloo, Variant::usual},
                                    {Impl::limit, Variant::usual},
                                    {Impl::limit, Variant::streaming},
                                    {Impl::limit_in_turns, Variant::in_turns},
                                    {Impl::limit_in_turns, Variant::streaming_in_turns},
                                    {Impl::limit, Variant::library},
                                    {Impl::limit_in_turns, Variant::library_in_turns}};

// True for the variants that use memcpy. They can copy but not sum.
bool only_copies(Variant variant) {
  return variant == Variant::library || variant == Variant::library_in_turns;
}

// Number of rounds and of batches per round for one row. Rows with large sizes get fewer, because
// their batches take long and their buffers are expensive to allocate.
struct Effort {
  int rounds;
  int batches;
};
Effort effort(std::uint64_t bytes, int rounds) {
  if (bytes < large) return {rounds, 2};
  if (bytes < 64 * large) return {rounds, 3};
  if (bytes < 256 * large) return {std::max(1, rounds * 2 / 3), 2};
  return {std::max(1, rounds / 3), 3};
}

// True for the libraries that atoll is compared with. A wrong result of such a library does not end
// the bench, because Gloo's reduce_scatter moves its result over data that it has not sent yet, and
// so is sometimes wrong.
bool is_peer(Impl impl) { return impl == Impl::openmpi || impl == Impl::gloo; }

// Returns false for combinations that are not measured. For example, MPI and Gloo have no sums of
// bf16, and non-temporal stores cannot win if all data stays in the caches.
bool takes_part(const Contender& contender, const Row& row, int ranks) {
  if (contender.variant == Variant::streaming && row.bytes < large) return false;
  if (only_copies(contender.variant) && row.collective != Collective::all_gather) return false;
  if (contender.impl == Impl::atoll_waited) return row.bytes > waited_bytes && row.bytes < large;
  if (contender.impl == Impl::limit_in_turns) {
    return row.bytes >= large && ranks > static_cast<int>(std::thread::hardware_concurrency());
  }
  return !is_peer(contender.impl) || row.element == Element::f32 ||
         row.collective == Collective::all_gather;
}

// Returns the seconds per operation of the median batch.
double seconds_of_operation(const Answer& answer) {
  std::vector<double> values(answer.seconds.begin(), answer.seconds.begin() + answer.batches);
  std::sort(values.begin(), values.end());
  const std::size_t middle = values.size() / 2;
  const double median =
      values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
  return median / static_cast<double>(answer.operations);
}

// The running jobs for one number of ranks, one job per implementation. A job that fails is left
// out of all later rows.
class Field {
 public:
  Field(const Sweep& sweep, int ranks, Result& result)
      : sweep_(sweep), ranks_(ranks), result_(result) {
    std::string pattern = fs::temp_directory_path() / "bench_collectives_XXXXXX";
    if (!::mkdtemp(pattern.data())) throw std::runtime_error("cannot make a temporary folder");
    folder_ = pattern;
    for (const Impl impl : sweep.impls) start(impl);
    for (const Impl impl : sweep.impls) await(impl);
  }
  ~Field() {
    jobs_.clear();
    std::error_code ignored;
    fs::remove_all(folder_, ignored);
  }
  Field(const Field&) = delete;
  Field& operator=(const Field&) = delete;

  Times measure(const Row& row) {
    const Effort plan = effort(row.bytes, sweep_.rounds);
    std::vector<std::vector<double>> times(std::size(contenders));
    std::vector<std::int64_t> operations(std::size(contenders), 0);
    for (int round = 0; round < plan.rounds; ++round) {
      for (std::size_t turn = 0; turn < std::size(contenders); ++turn) {
        // Each round begins with a different implementation, so that no implementation always runs
        // right after the same other implementation.
        const std::size_t i = (turn + static_cast<std::size_t>(round)) % std::size(contenders);
        const std::optional<Answer> answer =
            visit(contenders[i], row, {operations[i], plan.batches});
        if (!answer) continue;
        operations[i] = answer->operations;
        times[i].push_back(seconds_of_operation(*answer));
      }
    }
    Times result;
    for (std::size_t i = 0; i < std::size(contenders); ++i) {
      if (times[i].empty()) continue;
      const double seconds = *std::min_element(times[i].begin(), times[i].end());
      const auto [known, fresh] = result.emplace(contenders[i].impl, seconds);
      if (!fresh) known->second = std::min(known->second, seconds);
    }
    return result;
  }

 private:
  struct Batches {
    std::int64_t operations;
    int batches;
  };

  void leave_out(Impl impl, const std::string& why) {
    const std::string line = fmt::format("{}, {} ranks: {}", name(impl), ranks_, why);
    result_.absent.push_back(line);
    result_.sound = false;  // targets that compare with this implementation cannot be judged
    fmt::print(stderr, "{}\n", line);
  }

  // Returns the implementation in whose job `impl` is measured. The variants of atoll share one
  // job; `limit` and `limit_in_turns` share another.
  static Impl job_of(Impl impl) {
    if (impl == Impl::atoll_plain || impl == Impl::atoll_waited) return Impl::atoll;
    return impl == Impl::limit_in_turns ? Impl::limit : impl;
  }

  void start(Impl impl) {
    const Impl job = job_of(impl);
    if (jobs_.contains(job)) return;
    const std::string program = sweep_.programs + "/bench_peer_" + std::string(name(job));
    if (!fs::exists(program)) {
      return leave_out(
          impl, "not built, because its library is missing; tools/packages bench installs it");
    }
    jobs_[job] = std::make_unique<Job>(launch(job, program));
  }

  void await(Impl impl) {
    const auto job = jobs_.find(job_of(impl));
    if (job == jobs_.end()) return;
    try {
      job->second->await_ranks();
    } catch (const std::exception& error) {
      leave_out(impl, error.what());
      jobs_.erase(job);
    }
  }

  Launch launch(Impl impl, const std::string& program) const {
    const std::string ranks = std::to_string(ranks_);
    switch (impl) {
      case Impl::openmpi:
        return {{"mpirun.openmpi", "-n", ranks, "--oversubscribe", "--bind-to", "none", program},
                {{"OMPI_ALLOW_RUN_AS_ROOT", "1"}, {"OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"}}};
      case Impl::limit:
      case Impl::limit_in_turns: {
        const auto most = std::max_element(sweep_.sizes.begin(), sweep_.sizes.end());
        return {{program, ranks, std::to_string(*most)}, {}};
      }
      case Impl::atoll:
      case Impl::atoll_plain:
      case Impl::atoll_waited:
      case Impl::gloo:
        break;
    }
    return {{sweep_.run_ranks, "-n", ranks, "--timeout", "7200", program},
            {{"BENCH_STORE", folder_}, {"ATOLL_LOG", "warn"}}};
  }

  std::optional<Answer> visit(const Contender& contender, const Row& row, const Batches& batches) {
    const bool wanted =
        std::find(sweep_.impls.begin(), sweep_.impls.end(), contender.impl) != sweep_.impls.end();
    const auto job = jobs_.find(job_of(contender.impl));
    if (!wanted || job == jobs_.end() || !takes_part(contender, row, ranks_)) {
      return {};
    }
    Request request;
    request.order = Order::measure;
    request.variant = contender.variant;
    request.row = row;
    request.operations = batches.operations;
    request.batches = batches.batches;
    try {
      const Answer answer = job->second->measure(request);
      const std::string difference = job->second->difference();
      if (!difference.empty() && !is_peer(contender.impl)) throw std::runtime_error(difference);
      if (!difference.empty()) {
        result_.wrong.push_back(
            fmt::format("{}, {} ranks: {}", name(contender.impl), ranks_, difference));
      }
      return answer;
    } catch (const std::exception& error) {
      leave_out(contender.impl, error.what());
      jobs_.erase(job);
      return {};
    }
  }

  const Sweep& sweep_;
  int ranks_;
  Result& result_;
  std::string folder_;
  std::map<Impl, std::unique_ptr<Job>> jobs_;
};

void measure_size(Field& field, const Sweep& sweep, Key key, Result& result) {
  for (const Element element : sweep.elements) {
    for (const Collective collective : sweep.collectives) {
      for (const Place place : {Place::out, Place::in}) {
        key.row.element = element;
        key.row.collective = collective;
        key.row.place = place;
        const auto ranks = static_cast<std::uint64_t>(key.ranks);
        if (elements(key.row) < ranks || elements(key.row) % ranks != 0) continue;
        result.rows[key] = field.measure(key.row);
      }
    }
  }
}

}  // namespace

std::string_view name(Impl impl) {
  switch (impl) {
    case Impl::atoll:
      return "atoll";
    case Impl::atoll_plain:
      return "atoll_plain";
    case Impl::atoll_waited:
      return "atoll_waited";
    case Impl::openmpi:
      return "openmpi";
    case Impl::gloo:
      return "gloo";
    case Impl::limit:
      return "limit";
    case Impl::limit_in_turns:
      return "limit_in_turns";
  }
  return "?";
}

std::vector<std::uint64_t> usual_sizes() {
  std::vector<std::uint64_t> sizes{8, 64, 512, 1024};
  for (std::uint64_t kib = 8; kib <= 512; kib *= 2) sizes.push_back(kib << 10);
  for (std::uint64_t mib = 1; mib <= 256; mib *= 4) sizes.push_back(mib << 20);
  return sizes;
}

std::vector<std::uint64_t> quick_sizes() { return {8, 1 << 10, 64 << 10, 4 << 20, 16 << 20}; }

bool operator<(const Key& a, const Key& b) {
  const auto tie = [](const Key& k) {
    return std::tuple(k.ranks, k.row.element, k.row.collective, k.row.place, k.row.bytes);
  };
  return tie(a) < tie(b);
}

Result measure(const Sweep& sweep) {
  Result result;
  const bool terminal = ::isatty(STDERR_FILENO) != 0;
  for (const int ranks : sweep.ranks) {
    Field field(sweep, ranks, result);
    for (const std::uint64_t bytes : sweep.sizes) {
      if (terminal) fmt::print(stderr, "\r{} ranks, {} bytes ...          ", ranks, bytes);
      Key key;
      key.ranks = ranks;
      key.row.bytes = bytes;
      measure_size(field, sweep, key, result);
    }
    if (terminal) fmt::print(stderr, "\r{:40}\r", "");
  }
  return result;
}

}  // namespace atoll_bench
