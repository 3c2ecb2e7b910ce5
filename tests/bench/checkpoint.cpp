// Measures checkpoints of one rank with AdamW:
//   save    writes and syncs the files, with digests (median of 3)
//   load    reads a checkpoint from the page cache, alternately with digests, which it verifies,
//           and without digests (medians of 9)
//   limit   copies the bytes of the shard file once in memory, which every load must do
//   header  parses a safetensors header of 1,000,000 tensors from memory
//   index   parses and checks the index of a checkpoint of 1,000,000 parameters
// Exits with 1 if digests cost more than 10 % of a load, or if the header or the index takes 3 s or
// more.
#include <fmt/core.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "atoll/checkpoint.hpp"
#include "atoll/log.hpp"
#include "checkpoint/files.hpp"
#include "checkpoint/index.hpp"
#include "checkpoint/safetensors.hpp"
#include "thread_ranks.hpp"

namespace {

namespace fs = std::filesystem;
namespace fsdp = atoll::fsdp;

constexpr int repeats = 9;
constexpr double most_percent = 10, most_parse_s = 3;
constexpr std::size_t tensors = 1'000'000;  // number of tensors in the header and in the index

double seconds(const std::function<void()>& body) {
  const auto begin = std::chrono::steady_clock::now();
  body();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

double median(std::vector<double> times) {
  std::ranges::nth_element(times, times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2));
  return times[times.size() / 2];
}

// Converts the checkpoint to version 2 of the format, which has no digests.
void strip_digests(const fs::path& folder) {
  const fs::path shard = folder / "shard-00000-of-00001.safetensors";
  const fs::path plain = folder / "plain";
  {
    const auto file = fsdp::SafetensorsFile::open(shard);
    std::vector<fsdp::SafetensorsDeclaration> declared;
    for (const auto& entry : file.tensors())
      declared.push_back({entry.name, entry.data.dtype, entry.shape});
    fsdp::SafetensorsWriter writer(plain, declared);
    for (const auto& entry : file.tensors())
      writer.write({static_cast<const std::byte*>(entry.data.data), entry.data.bytes()});
    writer.close();
  }
  fs::rename(plain, shard);
  std::ifstream in(folder / "index.json");
  auto index = nlohmann::json::parse(in);
  for (const char* key : {"digest", "save", "files"}) index.erase(key);
  index["version"] = 2;
  fsdp::write_file(folder / "index.json", index.dump(1));
}

std::string header_text() {
  std::string text = "{";
  for (std::size_t i = 0; i < tensors; ++i)
    text += fmt::format(
        "{}\"model.layers.{}.self_attn.q_proj.weight\":{{\"dtype\":\"F32\",\"shape\":"
        "[1],\"data_offsets\":[{},{}]}}",
        i == 0 ? "" : ",", i, 4 * i, 4 * i + 4);
  text += "}";
  std::string file(8, '\0');
  const std::uint64_t length = text.size();
  std::memcpy(file.data(), &length, sizeof(length));
  file += text;
  file.resize(file.size() + 4 * tensors);
  return file;
}

std::string index_of_many() {
  constexpr std::size_t units = 1'000;
  nlohmann::json content{{"format", fsdp::checkpoint_format}, {"shards", 1}, {"steps", 0}};
  for (std::size_t u = 0; u < units; ++u) {
    nlohmann::json params = nlohmann::json::array();
    for (std::size_t p = 0; p < tensors / units; ++p)
      params.push_back({{"name", fmt::format("experts.{}.up_proj.weight", p)},
                        {"shape", {16, 16}},
                        {"bucket", 0},
                        {"offset", 256 * p}});
    content["units"].push_back(
        {{"name", fmt::format("layers.{}", u)},
         {"buckets",
          nlohmann::json::array({{{"name", "f32"}, {"elements", 256 * tensors / units}}})},
         {"params", std::move(params)}});
  }
  return fsdp::index_text(std::move(content), std::string(32, '0'),
                          {{.bytes = 8, .header = std::string(16, '0')}});
}

struct Times {
  double save, verified, plain, copy, header, index;
};

Times measure(std::size_t megabytes, const fs::path& folder) {
  auto world = atoll_test::single_rank();
  fsdp::Engine engine(atoll::Mesh::make(world, {1, 1}));
  // AdamW stores three f32 (12 bytes) for each parameter, and the model has 16 units.
  const auto elements = static_cast<std::int64_t>(megabytes * 1'000'000 / 12 / 16);
  std::vector<std::string> order;
  for (int u = 0; u < 16; ++u) {
    order.push_back(fmt::format("layers.{}", u));
    engine.add_unit(order.back(), {{"w", {elements}}, {"norm", {4096}}});
  }
  engine.seal(order);
  engine.initialize(1);
  fsdp::Optimizer optimizer(engine);
  std::vector<double> save, verified, plain, copy;
  for (int i = 0; i < 3; ++i)
    save.push_back(seconds([&] { fsdp::save(folder / "verified", engine, optimizer); }));
  fsdp::save(folder / "plain", engine, optimizer);
  strip_digests(folder / "plain");
  const auto file =
      fsdp::SafetensorsFile::open(folder / "verified" / "shard-00000-of-00001.safetensors");
  std::vector<std::byte> bytes(file.bytes().size());
  atoll::log::set_sink([](atoll::log::Level, std::string_view) {});  // hides warnings of version 2
  for (int i = 0; i <= repeats; ++i) {
    const double v = seconds([&] { fsdp::load(folder / "verified", engine, optimizer); });
    const double p = seconds([&] { fsdp::load(folder / "plain", engine, optimizer); });
    const double c = seconds([&] { std::ranges::copy(file.bytes(), bytes.begin()); });
    if (i == 0) continue;  // the first load fills the page cache
    verified.push_back(v);
    plain.push_back(p);
    copy.push_back(c);
  }
  const std::string header = header_text(), index = index_of_many();
  const double parse_header = seconds(
      [&] { fsdp::parse_safetensors(std::as_bytes(std::span(header)), "large.safetensors"); });
  const double parse_index = seconds([&] { fsdp::parse_index(index, "index.json"); });
  return {median(save), median(verified), median(plain), median(copy), parse_header, parse_index};
}

}  // namespace

int main(int argc, char** argv) {
  std::size_t megabytes = 1024;
  std::string json;
  CLI::App app("Measures saving and loading a checkpoint, and parsing its header and index");
  app.option_defaults()->always_capture_default();
  app.add_option("--mb", megabytes, "size of the checkpoint in MB")->check(CLI::PositiveNumber);
  app.add_option("--json", json, "file for all times");
  CLI11_PARSE(app, argc, argv);
  const fs::path folder =
      fs::temp_directory_path() / ("atoll-bench-checkpoint-" + std::to_string(::getpid()));
  Times times{};
  try {
    times = measure(megabytes, folder);
  } catch (const std::exception& error) {
    fmt::print(stderr, "checkpoint: {}\n", error.what());
    fs::remove_all(folder);
    return 2;
  }
  fs::remove_all(folder);
  const double percent = (times.verified / times.plain - 1) * 100;
  auto rows = nlohmann::json::array();
  const auto row = [&](const char* step, double time, bool has_rate) {
    const double rate = static_cast<double>(megabytes) / 1000 / time;
    fmt::print("{:<46} {:>9.1f} {:>9}\n", step, time * 1000,
               has_rate ? fmt::format("{:.2f}", rate) : "");
    rows.push_back({{"step", step}, {"ms", time * 1000}});
  };
  fmt::print("{:<46} {:>9} {:>9}\n", fmt::format("a checkpoint of {} MB", megabytes), "ms", "GB/s");
  row("save, with digests and syncs", times.save, true);
  row("load, verified", times.verified, true);
  row("load, without digests (version 2)", times.plain, true);
  row("limit: copying the bytes of the file", times.copy, true);
  row("safetensors header of 1,000,000 tensors", times.header, false);
  row("checkpoint index of 1,000,000 parameters", times.index, false);
  const double slowest = std::max(times.header, times.index);
  const bool is_cheap = percent <= most_percent, is_linear = slowest < most_parse_s;
  fmt::print("digests cost {:.1f} % of a load; at most {} %: {}\n", percent, most_percent,
             is_cheap ? "yes" : "NO");
  fmt::print("header and index in at most {:.2f} s; under {} s: {}\n", slowest, most_parse_s,
             is_linear ? "yes" : "NO");
  if (!json.empty())
    std::ofstream(json) << nlohmann::json{{"rows", rows}, {"digest_percent", percent}}.dump(1)
                        << '\n';
  return is_cheap && is_linear ? 0 : 1;
}
