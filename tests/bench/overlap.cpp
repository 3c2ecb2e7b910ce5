// What a planted delay of 50 ms in one gather costs a step, with prefetch and without: the delay
// lies beside 60 ms of compute. Two ranks; the median of the steps, of the slower rank.
//   overlap [--json FILE]
// Exits with 1 when the delay is not hidden with prefetch, or not seen without.
#include <fmt/core.h>

#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>

#include "overlap_run.hpp"

int main(int argc, char** argv) {
  const char* file = argc == 3 && std::strcmp(argv[1], "--json") == 0 ? argv[2] : nullptr;
  if (argc != 1 && !file) {
    fmt::print(stderr, "usage: overlap [--json FILE]\n");
    return 2;
  }
  auto rows = nlohmann::json::array();
  bool hidden = false, exposed = false;
  fmt::print("{:>8} {:>11} {:>10} {:>14} {:>11}\n", "prefetch", "planted_ms", "step_ms",
             "lengthened_ms", "exposed_ms");
  for (const int prefetch : {1, 0}) {
    double undelayed = 0;
    for (const std::int64_t planted : {0, 50}) {
      atoll_test::OverlapRun run;
      run.prefetch = prefetch;
      run.planted_ms = planted;
      run.steps = 9;
      const auto figures = atoll_test::run_overlap(run);
      if (planted == 0) undelayed = figures.step_ms;
      const double lengthened = figures.step_ms - undelayed;
      if (planted > 0 && prefetch > 0) hidden = lengthened < 10.0;
      if (planted > 0 && prefetch == 0) exposed = lengthened > 45.0;
      fmt::print("{:>8} {:>11} {:>10.1f} {:>14.1f} {:>11.1f}\n", prefetch, planted, figures.step_ms,
                 lengthened, figures.exposed_ms);
      rows.push_back({{"prefetch", prefetch},
                      {"planted_ms", planted},
                      {"step_ms", figures.step_ms},
                      {"lengthened_ms", lengthened},
                      {"exposed_ms", figures.exposed_ms}});
    }
  }
  const double compute = 12 * 60.0;
  fmt::print("limit: {:.0f} ms of compute in a step\n", compute);
  fmt::print("with prefetch the delay costs less than 10 ms: {}; without, all of it: {}\n",
             hidden ? "yes" : "NO", exposed ? "yes" : "NO");
  if (file)
    std::ofstream(file) << nlohmann::json{{"rows", rows}, {"compute_ms", compute}}.dump(1) << '\n';
  return hidden && exposed ? 0 : 1;
}
