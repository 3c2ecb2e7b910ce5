// Measures what verified checkpoints cost: loads one checkpoint from the page cache with and without
// digests, by turns, and saves it. For comparison, copies the bytes of its files once, which any load
// must do. Also parses a safetensors header of 1,000,000 tensors.
//   checkpoint [--mb N] [--json FILE]
// N is the size of the checkpoint; the default is 1,024. Each printed time is the median of 9 runs.
// Exits with 1 if digests cost more than 10 % of a load, or if the header takes 3 s or more.
#include <fmt/core.h>
#include <unistd.h>

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
#include "fsdp/files.hpp"
#include "fsdp/safetensors_header.hpp"
#include "thread_ranks.hpp"

namespace {

namespace fs = std::filesystem;
namespace fsdp = atoll::fsdp;

constexpr int repeats = 9;
constexpr double most_percent = 10, most_header_s = 3;
constexpr std::size_t header_tensors = 1'000'000;

double seconds(const std::function<void()>& body) {
  const auto begin = std::chrono::steady_clock::now();
  body();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

double median(std::vector<double> times) {
  std::ranges::nth_element(times, times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2));
  return times[times.size() / 2];
}

// Makes the checkpoint one of version 2, which has no digests.
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

std::string header_of(std::size_t tensors) {
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

struct Times {
  double save, verified, plain, copy, header;
};

Times measure(std::size_t megabytes, const fs::path& folder) {
  auto world = atoll_test::single_rank();
  fsdp::Engine engine(atoll::Mesh::make(world, {1, 1}));
  // AdamW stores three f32 for each parameter.
  const auto elements = static_cast<std::int64_t>(megabytes * 1'000'000 / 12 / 16);
  std::vector<std::string> order;
  for (int u = 0; u < 16; ++u) {
    order.push_back(fmt::format("layers.{}", u));
    engine.add_unit(order.back(), {{"w", {elements}}, {"norm", {4096}}});
  }
  engine.freeze(order);
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
  atoll::log::set_sink([](atoll::log::Level, std::string_view) {});  // warnings of version 2
  for (int i = 0; i <= repeats; ++i) {
    const double v = seconds([&] { fsdp::load(folder / "verified", engine, optimizer); });
    const double p = seconds([&] { fsdp::load(folder / "plain", engine, optimizer); });
    const double c = seconds([&] { std::ranges::copy(file.bytes(), bytes.begin()); });
    if (i == 0) continue;  // the first load fills the page cache
    verified.push_back(v);
    plain.push_back(p);
    copy.push_back(c);
  }
  const std::string header = header_of(header_tensors);
  const double parse = seconds(
      [&] { fsdp::parse_safetensors(std::as_bytes(std::span(header)), "large.safetensors"); });
  return {median(save), median(verified), median(plain), median(copy), parse};
}

}  // namespace

int main(int argc, char** argv) {
  std::size_t megabytes = 1024;
  const char* json = nullptr;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string_view flag = argv[i];
    if (flag == "--mb") megabytes = std::strtoull(argv[i + 1], nullptr, 10);
    if (flag == "--json") json = argv[i + 1];
  }
  if (argc % 2 == 0 || megabytes == 0) {
    fmt::print(stderr, "usage: checkpoint [--mb N] [--json FILE]\n");
    return 2;
  }
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
  const bool is_cheap = percent <= most_percent, is_linear = times.header < most_header_s;
  fmt::print("digests cost {:.1f} % of a load; at most {} %: {}\n", percent, most_percent,
             is_cheap ? "yes" : "NO");
  fmt::print("the header in {:.2f} s; under {} s: {}\n", times.header, most_header_s,
             is_linear ? "yes" : "NO");
  if (json)
    std::ofstream(json) << nlohmann::json{{"rows", rows}, {"digest_percent", percent}}.dump(1)
                        << '\n';
  return is_cheap && is_linear ? 0 : 1;
}
