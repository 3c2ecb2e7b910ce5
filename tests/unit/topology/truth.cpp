// Compares the recorded topologies of real machines with ../shared/topologies/truth.csv, which has
// one row for each recorded file. Fields that cannot be known from the file alone are blank and are
// not compared.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "atoll/tooling/inspection.hpp"
#include "atoll/tooling/load.hpp"
#include "unit/topology/machines.hpp"

using atoll::Inspection;
using atoll::Island;
using atoll::Topology;
using machines::contains;

namespace {

namespace fs = std::filesystem;

const fs::path folder = fs::path(ATOLL_TEST_SHARED_DIR) / "topologies";

// Runs before the first test and skips the whole program when the recorded topologies are absent.
[[maybe_unused]] const bool present = [] {
  if (fs::exists(folder / "truth.csv")) return true;
  std::printf("skipped: %s is not there\n", (folder / "truth.csv").c_str());
  std::exit(77);
}();

std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  std::stringstream stream(text);
  for (std::string part; std::getline(stream, part, separator);) parts.push_back(part);
  return parts;
}

using Row = std::map<std::string, std::string>;

std::vector<Row> read_truth() {
  std::ifstream file(folder / "truth.csv");
  std::string line;
  std::getline(file, line);
  const auto columns = split(line, ',');
  std::vector<Row> rows;
  while (std::getline(file, line)) {
    const auto cells = split(line, ',');
    Row row;
    for (std::size_t i = 0; i < columns.size(); ++i)
      row[columns[i]] = i < cells.size() ? cells[i] : "";
    rows.push_back(row);
  }
  return rows;
}

// Maps the id of each GPU to the number that truth.csv uses for the GPU, which is the number in the
// recorded file.
std::map<std::string, int> numbers_of(const Topology& topology) {
  std::map<std::string, int> numbers;
  for (const auto& gpu : topology.gpus) numbers[gpu.id] = gpu.index;
  return numbers;
}

void check_islands(const Row& truth, const Inspection& inspection) {
  std::vector<std::string> sizes;
  for (const Island& island : inspection.islands)
    if (!island.gpus.empty()) sizes.push_back(std::to_string(island.gpus.size()));
  auto expected = split(truth.at("islands"), '+');
  std::ranges::sort(sizes);
  std::ranges::sort(expected);
  CHECK(sizes == expected);
  if (truth.at("members").empty()) return;
  const auto numbers = numbers_of(inspection.topology);
  std::set<std::set<std::string>> members, expected_members;
  for (const Island& island : inspection.islands) {
    std::set<std::string> one;
    for (const std::string& gpu : island.gpus) one.insert(std::to_string(numbers.at(gpu)));
    members.insert(one);
  }
  for (const std::string& island : split(truth.at("members"), '+')) {
    const auto gpus = split(island, '.');
    expected_members.insert({gpus.begin(), gpus.end()});
  }
  CHECK(members == expected_members);
}

void check_rates(const Row& truth, const Inspection& inspection) {
  for (const Island& island : inspection.islands) {
    if (island.gpus.empty()) continue;
    if (!truth.at("state").empty()) CHECK(name(island.state) == truth.at("state"));
    if (truth.at("state") == "unknown") {
      CHECK_FALSE(island.gpu_gbyte_s);
      CHECK_FALSE(island.pair_gbyte_s);
    }
    if (const auto& text = truth.at("gpu_gbyte_s"); !text.empty())
      CHECK(island.gpu_gbyte_s == std::stod(text));
    if (const auto& text = truth.at("pair_gbyte_s"); !text.empty())
      CHECK(island.pair_gbyte_s == std::stod(text));
  }
}

// Parses the nearest NICs of each GPU, such as "0=mlx5_0|mlx5_1;1=mlx5_2", and compares them with
// the inspection.
void check_nearest(const Row& truth, const Inspection& inspection) {
  std::map<std::string, std::set<std::string>> found;
  const auto numbers = numbers_of(inspection.topology);
  std::map<std::string, std::string> nic_names;
  for (const auto& nic : inspection.topology.nics) nic_names[nic.id] = nic.name;
  for (const auto& affinity : inspection.affinity)
    for (const std::string& nic : affinity.nearest)
      found[std::to_string(numbers.at(affinity.gpu))].insert(nic_names.at(nic));
  for (const std::string& entry : split(truth.at("nearest"), ';')) {
    const auto equals = entry.find('=');
    REQUIRE(equals != std::string::npos);
    const auto nics = split(entry.substr(equals + 1), '|');
    CHECK_MESSAGE(found[entry.substr(0, equals)] == std::set(nics.begin(), nics.end()), entry);
  }
}

}  // namespace

TEST_CASE("truth: every row of the table") {
  const auto rows = read_truth();
  REQUIRE(rows.size() >= 30);
  std::size_t nearest = 0;
  for (const Row& truth : rows) {
    const std::string file = truth.at("file");
    CAPTURE(file);
    if (file == "nccl_aws_p5_nics_only.xml") {  // lists devices, but not what they are
      CHECK_THROWS_AS(atoll::load_topology((folder / file).string()), atoll::Error);
      continue;
    }
    const Inspection inspection = atoll::inspect(atoll::load_topology((folder / file).string()));
    CHECK(std::to_string(inspection.topology.gpus.size()) == truth.at("gpus"));
    CHECK(inspection.topology.hosts.size() == 1);
    check_islands(truth, inspection);
    check_rates(truth, inspection);
    check_nearest(truth, inspection);
    nearest += split(truth.at("nearest"), ';').size();
  }
  CHECK(nearest >= 40);
}

TEST_CASE("truth: two views of one machine agree, and complete each other") {
  const auto at = [](const char* file) { return (folder / file).string(); };
  const Topology perlmutter = atoll::load_topology("nid1=" + at("nccl_perlmutter_4xa100.xml") +
                                                   ',' + at("topo_perlmutter_4xa100.txt"));
  CHECK(perlmutter.gpus.size() == 4);
  CHECK(perlmutter.hosts[0].name == "nid1");
  for (const auto& conflict : perlmutter.conflicts) CHECK_MESSAGE(false, conflict.subject);

  const Inspection h200 = atoll::inspect(atoll::load_topology(
      "h200=" + at("nccl_hgx_h200_vastai.xml") + ',' + at("topo_hgx_h200_vastai.txt")));
  REQUIRE(h200.islands.size() == 1);
  CHECK(h200.islands[0].gpu_gbyte_s == 450);
  for (int i = 0; i < 8; ++i)
    CHECK(h200.affinity[static_cast<std::size_t>(i)].use ==
          std::vector{"h200/mlx5_" + std::to_string(i)});
}
