#include "documents.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string_view>

#include "atoll/error.hpp"
#include "atoll/version.hpp"
#include "html/document.hpp"

namespace busbw {
namespace {

using Json = nlohmann::ordered_json;

// Version of nccl-tests' JSON form that this file extends.
constexpr int nccl_tests_version = 3;
constexpr int curve_version = 1;

// Environment variables that affect the run, without the token, which is secret.
Json environment() {
  Json list = Json::array();
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    const bool steers = text.starts_with("ATOLL_") || text.starts_with("NCCL_TESTS_");
    if (steers && !text.starts_with("ATOLL_TOKEN=")) list.push_back(text);
  }
  return list;
}

// nccl-tests writes booleans as text.
std::string truth(bool value) { return value ? "true" : "false"; }

// Returns the algorithm that the configuration, such as "all_reduce:ring,all_gather:tree", names
// for the collective; "" when the backend chooses.
std::string algorithm_of(const Job& job, Collective collective) {
  std::string_view rest = job.world.config().algorithm;
  while (!rest.empty()) {
    const std::string_view choice = rest.substr(0, rest.find(','));
    const std::size_t colon = std::min(choice.find(':'), choice.size());
    if (choice.substr(0, colon) == name(collective) && colon < choice.size())
      return std::string(choice.substr(colon + 1));
    rest.remove_prefix(std::min(choice.size() + 1, rest.size()));
  }
  return "";
}

Json config_json(const Job& job, const Options& o) {
  Json config{{"nthreads", 1},
              {"ngpus", 1},
              {"minimum_bytes", o.min_bytes},
              {"maximum_bytes", o.max_bytes}};
  if (o.step_factor > 1)
    config["step_factor"] = o.step_factor;
  else
    config["step_bytes"] = o.step_bytes;
  config["warmup_iters"] = o.warmups;
  config["iterations"] = o.iterations;
  config["aggregated_iterations"] = o.batch;
  config["validation"] = o.checks;
  config["graph"] = 0;
  config["blocking_collectives"] = truth(o.blocking != Blocking::none);
  config["per_iter_timing"] = truth(o.layout.latency);
  config["per_iter_skip"] = o.latency_skip;
  config["parallel_init"] = truth(false);
  Json devices = Json::array();
  for (const atoll::Placement& one : job.world.placements()) {
    const UsedDevice& device = job.devices[static_cast<std::size_t>(one.rank)];
    devices.push_back({{"rank", one.rank},
                       {"group", job.group_of[static_cast<std::size_t>(one.rank)]},
                       {"pid", one.pid},
                       {"hostname", job.world.hosts()[static_cast<std::size_t>(one.host)].name},
                       {"device", std::stoi(device.number)},
                       {"device_hex", device.pci},
                       {"device_info", device.info}});
  }
  config["devices"] = devices;
  return config;
}

const char* name_of(atoll::ComputeUnits units) {
  constexpr std::array names{"any", "few", "none"};
  return names[static_cast<std::size_t>(units)];
}

Json atoll_json(const Job& job, const Options& o) {
  return {{"version", ATOLL_VERSION},
          {"backend", job.communicator->backend()},
          {"launcher", job.world.launcher()},
          {"algorithm", job.world.config().algorithm},
          {"axis", o.axis},
          {"mesh", job.mesh.to_string()},
          {"groups", job.groups},
          {"compute_units", name_of(o.compute_units)},
          {"memory", name(o.memory)}};
}

Json half_json(const Half& half, const Options& o) {
  Json json{
      {o.layout.cpu_time ? "cpu_time" : "time", o.layout.cpu_time ? half.cpu_us : half.time_us},
      {"alg_bw", half.algbw},
      {"bus_bw", half.busbw},
      {"nwrong", half.wrong ? Json(*half.wrong) : Json()}};
  const auto percent = half.percent();
  json["limit_percent"] = percent ? Json(*percent) : Json();
  json["limit_time"] = half.limit.seconds ? Json(*half.limit.seconds * 1e6) : Json();
  json["limit_by"] = half.limit.by;
  return json;
}

Json latency_json(const Half& half, const Options& o) {
  const LatencySummary& times = *half.latency;
  Json json{{"skipped_iterations", o.latency_skip},
            {"min_us", times.min},
            {"max_us", times.max},
            {"avg_us", times.mean},
            {"p50_us", times.p50},
            {"p95_us", times.p95},
            {"p99_us", times.p99},
            {"stdev_us", times.deviation},
            {"cv_pct", times.cv_percent()}};
  Json slowest = Json::array();
  for (std::size_t i = 0; !half.times_us.empty() && i < half.times_us.front().size(); ++i) {
    double most = 0;
    for (const auto& rank : half.times_us) most = std::max(most, rank[i]);
    slowest.push_back(most);
  }
  json["times_us"] = slowest;
  if (half.times_us.size() > 1) json["per_process_max_times_us"] = half.times_us;
  return json;
}

Json row_json(const Row& row, const Options& o) {
  Json json{{"size", row.bytes},
            {"count", row.count},
            {"type", column_name(row.dtype)},
            {"redop", name(row.op)},
            {"root", fmt::format("{:6}", row.root)},
            {"collective", name(row.collective)},
            {"ranks", row.ranks},
            {"out_of_place", half_json(row.out, o)}};
  if (row.out.latency) json["out_of_place_per_iter"] = latency_json(row.out, o);
  json["in_place"] = half_json(row.in, o);
  if (row.in.latency) json["in_place_per_iter"] = latency_json(row.in, o);
  json["actual_iterations"] = o.iterations;
  json["experiment_name"] = "";
  return json;
}

Json findings_json(std::span<const atoll::Finding> findings) {
  Json json = Json::array();
  for (const atoll::Finding& finding : findings)
    json.push_back({{"id", finding.id},
                    {"severity", name(finding.severity)},
                    {"subjects", finding.subjects},
                    {"evidence", finding.evidence},
                    {"consequence", finding.consequence},
                    {"fix", finding.fix}});
  return json;
}

Json head_json(const CommandLine& command, const Job& job, const Options& o) {
  return {{"version", nccl_tests_version}, {"start_time", command.start_time},
          {"args", command.arguments},     {"env", environment()},
          {"atoll", atoll_json(job, o)},   {"config", config_json(job, o)}};
}

// Calls visit(row, place, half) for each measured half.
void each_half(std::span<const Table> tables, const auto& visit) {
  for (const Table& table : tables) {
    for (const Row& row : table.rows) {
      visit(row, Place::out, row.out);
      if (has_in_place(row.collective)) visit(row, Place::in, row.in);
    }
  }
}

[[noreturn]] void refuse(const std::string& path) {
  throw atoll::Error(atoll::ErrorCode::io, fmt::format("{}: {}", path, std::strerror(errno)));
}

std::string text_of(const Json& json) { return json.dump(2) + '\n'; }

}  // namespace

std::string to_json(const CommandLine& command, const Job& job, const Options& options,
                    std::span<const Table> tables, std::span<const atoll::Finding> ports) {
  Json json = head_json(command, job, options);
  Json rows = Json::array(), unsupported = Json::array();
  int wrong = 0, below = 0;
  std::vector<Row> all;
  for (const Table& table : tables) {
    for (const Row& row : table.rows) rows.push_back(row_json(row, options));
    all.insert(all.end(), table.rows.begin(), table.rows.end());
    for (const std::string& what : table.unsupported) unsupported.push_back(what);
    wrong += table.verdict.wrong_rows;
    if (table.expectation) below += table.expectation->below;
  }
  const Verdict verdict = judge(all, options.wanted_busbw);
  json["results"] = rows;
  json["unsupported"] = unsupported;
  json["out_of_bounds"] = {{"count", wrong}, {"okay", truth(wrong == 0)}};
  json["average_bus_bandwidth"] = {
      {"bandwidth", verdict.average_busbw},
      {"okay", options.wanted_busbw ? truth(verdict.is_bandwidth_fine()) : "unchecked"}};
  if (options.expect) json["expect"] = {{"share", *options.expect}, {"below", below}};
  json["ports"] = findings_json(ports);
  json["errors"] = Json::array();
  json["end_time"] = local_time();
  return text_of(json);
}

std::string to_json(const CommandLine& command, const Job& job, const Options& options,
                    const PairReport& report, std::span<const atoll::Finding> ports) {
  Json json = head_json(command, job, options);
  Json findings = Json::array();
  for (const PairFinding& finding : report.verdict.findings)
    findings.push_back({{"subject", finding.subject}, {"text", finding.text}});
  json["pairs"] = {{"bytes", report.bytes},
                   {"gbyte_s", report.gbyte_s},
                   {"intra_gbyte_s", report.verdict.intra_gbyte_s},
                   {"between_gbyte_s", report.verdict.between_gbyte_s},
                   {"findings", findings}};
  json["ports"] = findings_json(ports);
  json["end_time"] = local_time();
  return text_of(json);
}

std::string to_curve(const Job& job, const Options& options, std::span<const Table> tables) {
  Json hosts = Json::array();
  for (const atoll::HostInfo& host : job.world.hosts())
    hosts.push_back({{"name", host.name}, {"ranks", host.ranks}});
  Json json{{"schema", "atoll-curve-1"},
            {"version", curve_version},
            {"atoll", ATOLL_VERSION},
            {"backend", job.communicator->backend()},
            {"placement",
             {{"ranks", job.world.size()},
              {"hosts", hosts},
              {"mesh", job.mesh.to_string()},
              {"axis", options.axis},
              {"groups", job.groups},
              {"memory", name(options.memory)}}}};
  Json rows = Json::array();
  each_half(tables, [&](const Row& row, Place place, const Half& half) {
    Json one{{"collective", name(row.collective)},
             {"dtype", name(row.dtype)},
             {"op", row.op == Op::none ? "" : name(row.op)},
             {"place", name(place)},
             {"bytes", row.bytes},
             {"ranks", row.ranks},
             {"hosts", job.hosts_of_group()},
             {"algorithm", algorithm_of(job, row.collective)},
             {"time_us", half.time_us}};
    if (half.latency) one["p50_us"] = half.latency->p50, one["p99_us"] = half.latency->p99;
    rows.push_back(std::move(one));
  });
  json["rows"] = rows;
  return text_of(json);
}

std::string to_page(std::span<const Table> tables, std::optional<double> target) {
  Json halves = Json::array();
  each_half(tables, [&](const Row& row, Place place, const Half& half) {
    if (row.bytes == 0) return;
    const auto percent = half.percent();
    halves.push_back({{"collective", name(row.collective)},
                      {"type", column_name(row.dtype)},
                      {"op", row.op == Op::none ? "" : name(row.op)},
                      {"root", row.root},
                      {"place", place == Place::out ? "out of place" : "in place"},
                      {"bytes", row.bytes},
                      {"ranks", row.ranks},
                      {"bus_bw", half.busbw},
                      {"limit_percent", percent ? Json(*percent) : Json()}});
  });
  return html::document({{"kind", "busbw"},
                         {"title", "atoll-busbw"},
                         {"expect", target ? Json(*target) : Json()},
                         {"halves", halves}});
}

void require_writable(const std::string& path) {
  if (!std::ofstream(path, std::ios::binary | std::ios::app)) refuse(path);
}

void write_file(const std::string& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary);
  if (!(file << text << std::flush)) refuse(path);
}

}  // namespace busbw
