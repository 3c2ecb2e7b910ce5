// Tests of the models of compute and links, and of clusters that are described by texts.
#include <doctest/doctest.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "atoll/error.hpp"
#include "atoll/planner.hpp"
#include "atoll/tooling/load.hpp"
#include "plan/cluster.hpp"
#include "plan/measure.hpp"
#include "plan/past_run.hpp"
#include "unit/damaged_json.hpp"
#include "unit/train/data_temporary.hpp"

namespace {

double rate(const atoll::ComputeModel& model, std::int64_t m, std::int64_t n, std::int64_t k) {
  const double flops =
      2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k);
  return flops / atoll::product_seconds(model, {.m = m, .n = n, .k = k, .bf16 = true});
}

using nlohmann::json;

const json machine = {{"schema", "atoll-machine-1"},
                      {"device", "CPU"},
                      {"kind", "host"},
                      {"ranks", 2},
                      {"memory_bytes", 1 << 30},
                      {"process_bytes", 1 << 20},
                      {"ops", {{"product 8x8x8 f32", 1e-6}}},
                      {"kernels", {{"copy", 10.0}, {"fill", 5.0}}},
                      {"peak_f32", 1e12},
                      {"peak_bf16", 2e12}};
const json curve = {{"schema", "atoll-curve-1"},
                    {"rows", json::array({{{"place", "out"},
                                           {"dtype", "f32"},
                                           {"collective", "all_gather"},
                                           {"ranks", 4},
                                           {"hosts", 1},
                                           {"bytes", 4096},
                                           {"time_us", 12.5}}})}};
const json host = {{"name", "a"}, {"ranks", {0, 1}}};
const json args = {{"model", "mistral-tiny"},
                   {"strategy", "full_shard"},
                   {"mesh", "1x2"},
                   {"dtype", "bf16"},
                   {"reduce_dtype", "f32"},
                   {"moments", "f32"},
                   {"recompute", "none"},
                   {"prefetch", 1},
                   {"seq", 64},
                   {"micro_batch", 1},
                   {"global_batch", 4},
                   {"world_size", 2},
                   {"islands", 0},
                   {"optimizer", "adamw"},
                   {"lora_rank", 0},
                   {"secondary_shards", 0},
                   {"fp8", false},
                   {"plan", {{"hosts", json::array({host})}}}};

// The error of reading a file; "" for none. Other exceptions than the library's end the test.
template <class Read>
std::string error_of(const Read& read) {
  try {
    (void)read();
    return "";
  } catch (const atoll::Error& error) {
    return error.what();
  }
}

}  // namespace

TEST_CASE("a damaged file is refused in one line that names it, its key and what is expected") {
  const train_test::TemporaryFolder folder;
  const auto check = [&](const json& whole, const std::string& name, const auto& read) {
    CHECK(error_of([&] { return read(folder.write(name, whole.dump())); }) == "");
    atoll_test::each_damage(whole, [&](const json& damaged, const std::string& how) {
      CAPTURE(how);
      const std::string what = error_of([&] { return read(folder.write(name, damaged.dump())); });
      CAPTURE(what);
      CHECK((what.empty() || what.find(name) != std::string::npos));
      CHECK(what.find("json.exception") == std::string::npos);
      CHECK(what.find('\n') == std::string::npos);
    });
  };
  const auto read_curve = [](const std::filesystem::path& file) {
    atoll::FabricModel fabric;
    plan::add_curve(fabric, file);
    return fabric;
  };
  folder.write("metrics.json", R"({"tokens_per_s": 10.0, "world_size": 2})");
  check(machine, "machine.json", plan::read_machine);
  check(curve, "curve.json", read_curve);
  check(args, "run_args.json", [&](const auto&) { return plan::read_run(folder.path()); });

  const auto error = [&](json whole, const char* place, const json& value, const auto& read) {
    whole[json::json_pointer(place)] = value;
    const auto file = folder.write("damaged.json", whole.dump());
    const std::string what = error_of([&] { return read(file); });
    REQUIRE(what.starts_with(file.string() + ": "));
    return what.substr(file.string().size() + 2);
  };
  CHECK(error(curve, "/rows/0/ranks", "4", read_curve) == R"("rows[0].ranks" is not an integer)");
  CHECK(error(curve, "/rows/0/ranks", nullptr, read_curve) ==
        R"("rows[0].ranks" is missing: it must be an integer)");
  CHECK(error(machine, "/kernels/copy", json::object(), plan::read_machine) ==
        R"("kernels.copy" is not a number)");
  CHECK(error(machine, "/ops", 3, plan::read_machine) == R"("ops" is not an object)");
  CHECK(error(machine, "/ranks", 0, plan::read_machine).starts_with(R"("ranks" is 0)"));
  CHECK(
      error(machine, "/kernels/copy", 0, plan::read_machine).starts_with(R"("kernels.copy" is 0)"));
}

TEST_CASE("devices are found by what drivers and people call them") {
  CHECK(atoll::find_compute_model("H100").name == "H100");
  CHECK(atoll::find_compute_model("NVIDIA H200 141GB HBM3e").name == "H200");
  CHECK(atoll::find_compute_model("a100-40gb").name == "A100-40GB");
  CHECK(atoll::find_compute_model("NVIDIA H100 PCIe").name == "H100-PCIe");
  CHECK(atoll::find_compute_model("H100PCIe").name == "H100-PCIe");
  CHECK(atoll::find_compute_model("8xA100SXM4").name == "A100");
  CHECK(atoll::find_compute_model("NVIDIA A100-SXM4-80GB").name == "A100");
  CHECK(atoll::find_compute_model("NVIDIA A100-SXM4-40GB").name == "A100-40GB");
  for (const char* other : {"RTX A1000", "L400", "A10G", "RTX 4090", "H100X", "V100S", ""}) {
    CAPTURE(other);
    CHECK_THROWS_AS(atoll::find_compute_model(other), atoll::Error);
  }
  for (const std::string& name : atoll::compute_model_names()) {
    const auto& model = atoll::find_compute_model(name);
    CHECK(model.name == name);
    CHECK_FALSE(model.source.empty());
    CHECK(model.memory_bytes > 0);
  }
  CHECK(atoll::find_compute_model("NVIDIA GB200").name == "GB200");
  CHECK(atoll::find_compute_model("NVIDIA GH200 480GB").name == "GH200");
  CHECK(error_of([] {
          return atoll::find_compute_model("TPU");
        }).starts_with("unknown GPU \"TPU\"; known are V100, A100, "));
}

TEST_CASE("every GPU of the table has a peak, and every machine of the catalog can be planned") {
  for (const std::string& name : atoll::compute_model_names()) {
    CAPTURE(name);
    CHECK(atoll::find_compute_model(name).peak_bf16 > 0);
    CHECK(atoll::find_compute_model(name).peak_f32 > 0);
  }
  for (const auto& machine : atoll::catalog()) {
    CAPTURE(machine.name);
    const auto known = plan::cluster_of(plan::read_topology(machine.name));
    CHECK(known.unknown.empty());
    CHECK(known.cluster.fabric.intra_gbyte_s > 0);
    CHECK_FALSE(known.cluster.inside_source.empty());
  }
  // The hosts of a rack share one NVLink fabric.
  const auto racks = plan::read_topology("gb200-nvl72x2");
  CHECK(racks.hosts == 2);
  CHECK(racks.ranks_per_host == 72);
  CHECK(racks.inter == "72x400G");
}

TEST_CASE("published figures describe a GPU without a name, or replace those of the table") {
  const plan::ClusterText figures{.peak_tflops = 100, .memory_gib = 24, .memory_gbyte_s = 1000};
  const auto compute = plan::cluster_of(figures).cluster.compute;
  CHECK(compute.peak_bf16 == 100e12);
  CHECK(compute.peak_fp8 == doctest::Approx(200e12));
  CHECK(compute.memory_bytes == std::uint64_t{24} << 30);
  CHECK(compute.memory_gbyte_s == 900);
  CHECK(plan::cluster_of(figures).cluster.fabric.intra_gbyte_s == 22);  // PCIe
  const auto larger = plan::cluster_of({.gpu = "A100-40GB", .memory_gib = 64}).cluster.compute;
  CHECK(larger.memory_bytes == std::uint64_t{64} << 30);
  CHECK(larger.peak_bf16 == 312e12);
  CHECK(error_of([] {
          return plan::cluster_of({.gpu = "Abacus", .peak_tflops = 1});
        }).ends_with("any other GPU needs --peak, --memory and --bandwidth"));
}

TEST_CASE("data sheets: GPUs by the names that CUDA reports") {
  const auto bf16 = [](std::string_view gpu) { return atoll::peak_rates(gpu).bf16 / 1e12; };
  CHECK(bf16("cuda:0 (NVIDIA H100 80GB HBM3)") == doctest::Approx(989));
  CHECK(atoll::peak_rates("NVIDIA H100 80GB HBM3").f32 == doctest::Approx(67e12));
  CHECK(bf16("NVIDIA H100 PCIe") == doctest::Approx(756));
  CHECK(bf16("NVIDIA H200") == doctest::Approx(989));
  CHECK(bf16("NVIDIA GH200 480GB") == doctest::Approx(989));
  CHECK(bf16("NVIDIA A100-SXM4-80GB") == doctest::Approx(312));
  CHECK(bf16("NVIDIA B200") == doctest::Approx(2250));
  CHECK(bf16("NVIDIA L40S") == doctest::Approx(362));
  CHECK(bf16("cuda:1 (NVIDIA L4)") == doctest::Approx(121));
  for (const char* unknown :
       {"NVIDIA A100-SXM4-40GB MIG 1g.5gb", "NVIDIA H1000", "NVIDIA A10G", "Host", ""}) {
    CAPTURE(unknown);
    CHECK(bf16(unknown) == 0);
  }
}

TEST_CASE("a product is fastest when its tiles fill the waves") {
  const auto& model = atoll::find_compute_model("H100");
  const double best = model.peak_bf16 * model.best_product;
  CHECK(rate(model, 8192, 8192, 8192) <= best);
  CHECK(rate(model, 8192, 8192, 8192) > 0.9 * best);
  CHECK(rate(model, 128, 128, 4096) < 0.05 * best);  // one tile occupies one of 132 SMs
  CHECK(rate(model, 4096, 4096, 64) < rate(model, 4096, 4096, 4096));
  // A product with a vector is limited by the memory.
  const double seconds = atoll::product_seconds(
      model, {.m = 1, .n = 8192, .k = 8192, .bf16 = true, .moved_bytes = 8192 * 8192 * 2});
  CHECK(seconds >= 8192.0 * 8192 * 2 / (model.memory_gbyte_s * 1e9));
  CHECK(atoll::moving_seconds(model, 0) == model.kernel_s);
}

TEST_CASE("attention gains from length") {
  const auto& model = atoll::find_compute_model("H100");
  const auto seconds = [&](std::int64_t seq, bool flash_2) {
    return atoll::attention_seconds(model,
                                    {.flops = 1e12, .seq = seq, .flash_attention_2 = flash_2});
  };
  CHECK(seconds(16384, false) < seconds(1024, false));
  CHECK(seconds(65536, false) == doctest::Approx(1e12 / (model.peak_bf16 * model.best_attention)));
  // Published rates of forward on Hopper, in TFLOP/s; the model has one rate for both passes.
  CHECK(1 / seconds(16384, true) == doctest::Approx(335).epsilon(0.04));
  CHECK(1 / seconds(1024, true) == doctest::Approx(260).epsilon(0.06));
  CHECK(1 / seconds(16384, false) == doctest::Approx(539).epsilon(0.04));
  CHECK(1 / seconds(1024, false) == doctest::Approx(410).epsilon(0.06));
}

TEST_CASE("clusters by their texts") {
  using plan::cluster_of;
  const auto fabric = [](const plan::ClusterText& texts) {
    const auto known = cluster_of(texts);
    CHECK(known.unknown.empty());
    return known.cluster.fabric;
  };
  CHECK(fabric({.gpu = "H100", .hosts = 2, .intra = "NVSwitch"}).intra_gbyte_s == 361);
  CHECK(fabric({.gpu = "V100", .hosts = 4, .intra = "PCIe"}).intra_gbyte_s == 10);

  struct Network {
    const char *gpu, *inter;
    double gbyte_s;  // of a host
    int nics;
    atoll::Fabric kind = atoll::Fabric::rdma;
  };
  const Network networks[] = {
      {"A100", "4xHDR", 100, 4},
      {"A100", "4xHDR100", 50, 4},
      {"V100", "TCP 100G", 12.5, 1, atoll::Fabric::tcp},
      {"A100", "100GbE", 12.5, 1, atoll::Fabric::tcp},
      // A host of 3.2 Tbit/s gives its 8 GPUs the same, whatever the number of its NICs is.
      {"H100", "8x400G", 400, 8},
      {"H100", "EFA 3.2T", 400, 8},
      {"H100", "32x100G", 400, 8},
      {"H100", "16x200G", 400, 8},
      {"H100", "8\u00d7400G", 400, 8},
      {"H100", "8*400G", 400, 8},
      {"H100", "8 x 400 Gb/s", 400, 8},
      {"B200", "8 XDR", 800, 8},
      {"B200", "8xXDR", 800, 8},
      {"B200", "8x800G", 800, 8}};
  for (const auto& [gpu, inter, gbyte_s, nics, kind] : networks) {
    CAPTURE(inter);
    const auto found = fabric({.gpu = gpu, .hosts = 2, .inter = inter});
    CHECK(found.inter_gbyte_s == gbyte_s);
    CHECK(found.nics == nics);
    CHECK(found.fabric == kind);
  }
  // NICs of one GPU count as one up to the 400 Gbit/s of a PCIe slot: eight of 100 Gbit/s are two.
  CHECK(fabric({.gpu = "H100", .ranks_per_host = 1, .inter = "8x400G"}).nics == 8);
  CHECK(fabric({.gpu = "H100", .ranks_per_host = 1, .inter = "8x100G"}).nics == 2);
  CHECK(fabric({.gpu = "H100", .ranks_per_host = 8, .inter = "4x400G"}).nics == 4);
  CHECK(fabric({.gpu = "H100", .hosts = 2, .inter = "8x400G", .busbw = 46}).most_gbyte_s == 46);

  // With half of the NVLinks, GPUs have half of the rate and no NVSwitch.
  const auto half = fabric({.gpu = "H100", .intra = "NVLink", .links_gbyte_s = 225});
  CHECK(half.intra_gbyte_s == doctest::Approx(180.5));
  CHECK(half.nvls_gbyte_s == 0);
  CHECK(fabric({.gpu = "H100", .intra = "300.5 GB/s"}).intra_gbyte_s == 300.5);
  // NVLinks of H100 NVL join only pairs of GPUs.
  CHECK(fabric({.gpu = "H100-NVL"}).intra_gbyte_s == 22);
  CHECK(fabric({.gpu = "H100-NVL"}).nvls_gbyte_s == 0);
  for (const char* intra : {"", "NVLink bridge"}) {
    CHECK(fabric({.gpu = "H100-NVL", .ranks_per_host = 2, .intra = intra}).intra_gbyte_s == 240);
  }

  const auto memory = [](const char* gpu) {
    return cluster_of({.gpu = gpu}).cluster.compute.memory_bytes;
  };
  CHECK(memory("NVIDIA A100-SXM4-40GB") == doctest::Approx(39.5 * (1 << 30)).epsilon(0.01));
  CHECK(memory("NVIDIA H100 80GB HBM3") == atoll::find_compute_model("H100").memory_bytes);
  CHECK(cluster_of({.gpu = "H100 NVL"}).cluster.compute.name == "H100-NVL");

  CHECK(cluster_of({.gpu = "A100", .intra = "no NVLink"}).unknown.size() == 1);
  for (const char* inter :
       {"1000x400G", "99999999999x400G", "-8x400G", "99x400G", "0x400G", "8x400Q"}) {
    CAPTURE(inter);
    CHECK(cluster_of({.gpu = "H100", .hosts = 2, .inter = inter}).unknown.size() == 1);
    CHECK(cluster_of({.gpu = "H100", .inter = inter}).unknown.size() == 1);
  }

  CHECK(
      cluster_of({.gpu = "H100", .hosts = 2, .intra = "wet string", .inter = "pigeons"}).unknown ==
      std::vector<std::string>{"intra \"wet string\"", "inter \"pigeons\""});
}
