#include "plan/rows.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <initializer_list>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <regex>
#include <set>
#include <sstream>
#include <string_view>
#include <vector>

#include "atoll/error.hpp"
#include "fail.hpp"
#include "plan/cluster.hpp"
#include "plan/input.hpp"
#include "plan/simulate.hpp"

namespace plan {
namespace {

namespace fsdp = atoll::fsdp;
using nlohmann::json;
using train::fail;
using train::require;
using Record = std::map<std::string, std::string>;

// The columns that are read, and those of tests/planner/rows.csv that only people read.
constexpr std::string_view known_columns[] = {
    "id",       "params_B",  "layers",     "hidden",      "heads",      "kv_heads",     "ffn",
    "vocab",    "gpu",       "gpu_mem_GB", "gpus",        "nodes",      "intra",        "inter",
    "strategy", "framework", "seq",        "micro_batch", "grad_accum", "global_batch", "act_ckpt",
    "compile",  "precision", "attention",  "tok_s_gpu",   "mem_GB",     "excluded",     "source"};

template <class... Args>
void need(bool holds, atoll::ErrorCode code, fmt::format_string<Args...> format, Args&&... args) {
  if (!holds) fail(code, format, std::forward<Args>(args)...);
}

std::vector<std::vector<std::string>> read_csv(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  need(in.good(), atoll::ErrorCode::io, "{}: cannot be opened", path.string());
  std::stringstream file;
  file << in.rdbuf();
  std::vector<std::vector<std::string>> lines(1, std::vector<std::string>(1));
  bool quoted = false;
  // Spreadsheets begin a file in UTF-8 with a mark.
  constexpr std::string_view mark = "\xef\xbb\xbf";
  if (file.str().starts_with(mark)) file.ignore(static_cast<std::streamsize>(mark.size()));
  for (char c = 0; file.get(c);) {
    std::string& field = lines.back().back();
    if (quoted) {
      if (c != '"') {
        field += c;
      } else if (file.peek() == '"') {
        field += static_cast<char>(file.get());
      } else {
        quoted = false;
      }
    } else if (c == '"') {
      quoted = true;
    } else if (c == ',') {
      lines.back().emplace_back();
    } else if (c == '\n') {
      lines.emplace_back(1);
    } else if (c != '\r') {
      field += c;
    }
  }
  need(!quoted, atoll::ErrorCode::bad_data, "{}: a quoted field does not end", path.string());
  std::erase_if(lines, [](const auto& line) { return line.size() == 1 && line.front().empty(); });
  return lines;
}

std::vector<Record> read_records(const std::filesystem::path& path) {
  const auto lines = read_csv(path);
  need(!lines.empty(), atoll::ErrorCode::bad_data, "{}: the file has no rows", path.string());
  const auto& names = lines.front();
  const bool has_semicolons = names.size() == 1 && names[0].find(';') != std::string::npos;
  need(std::ranges::find(names, "id") != names.end(), atoll::ErrorCode::bad_data,
       "{}: the first line has no column \"id\"{}", path.string(),
       has_semicolons ? ": separate columns by commas, not semicolons" : "");
  need(lines.size() > 1, atoll::ErrorCode::bad_data, "{}: no row below the first line",
       path.string());
  for (const std::string& name : names) {
    if (std::ranges::find(known_columns, name) != std::end(known_columns)) continue;
    fmt::print(stderr, "atoll-plan: warning: {}: the column \"{}\" is not read\n", path.string(),
               name);
  }
  std::vector<Record> records;
  std::set<std::string> ids;
  for (std::size_t i = 1; i < lines.size(); ++i) {
    need(lines[i].size() == names.size(), atoll::ErrorCode::bad_data,
         "{}: line {} has {} fields instead of {}", path.string(), i + 1, lines[i].size(),
         names.size());
    Record& record = records.emplace_back();
    for (std::size_t c = 0; c < names.size(); ++c) record[names[c]] = lines[i][c];
    need(ids.insert(record["id"]).second, atoll::ErrorCode::bad_data,
         "{}: line {}: the id \"{}\" is that of an earlier row", path.string(), i + 1,
         record["id"]);
  }
  return records;
}

// A row as texts, and what was assumed where a text is missing or unknown.
struct Row {
  const Record& record;
  std::vector<std::string> assumed{};

  std::string text(const std::string& column) const {
    const auto found = record.find(column);
    return found == record.end() ? "" : found->second;
  }
  std::optional<double> number(const std::string& column) const {
    const std::string value = text(column);
    if (value.empty()) return std::nullopt;
    std::size_t used = 0;
    double number = 0;
    try {
      number = std::stod(value, &used);
    } catch (const std::exception&) {
      used = 0;
    }
    require(used == value.size() && std::isfinite(number), "{} \"{}\" is not a number", column,
            value);
    require(std::abs(number) <= 1e9, "{} {} is too large", column, value);
    return number;
  }
  std::int64_t whole(const std::string& column, std::int64_t usual) {
    const auto value = number(column);
    if (!value) assumed.push_back(fmt::format("{} {}", column, usual));
    require(!value || *value == std::floor(*value), "{} {} is not a whole number", column,
            value.value_or(0));
    const auto result = value ? static_cast<std::int64_t>(*value) : usual;
    require(result >= 1, "{} is {}: it must be at least 1", column, result);
    return result;
  }
};

// Returns the feed-forward width that gives the model its number of parameters.
std::int64_t width_of(const train::ModelConfig& model, double parameters) {
  train::ModelConfig narrow = model;
  narrow.ffn = 1;
  const double rest = static_cast<double>(train::parameter_count(narrow));
  const auto of_layers = static_cast<double>(3 * model.hidden * model.layers);
  const double width = (parameters - rest) / of_layers;
  return std::max<std::int64_t>(64, std::llround(width / 64) * 64);
}

// Layers and width that published dense models of about this size have (GPT-3, Llama, MPT).
struct UsualShape {
  double billions;
  std::int64_t layers, hidden;
};

UsualShape usual_shape(double billions) {
  constexpr UsualShape shapes[] = {
      {0.125, 12, 768}, {0.35, 24, 1024}, {1.3, 24, 2048}, {2.7, 32, 2560},  {6.7, 32, 4096},
      {13, 40, 5120},   {32, 60, 6656},   {68, 80, 8192},  {175, 96, 12288}, {405, 126, 16384}};
  const auto distance = [&](const UsualShape& shape) {
    return std::abs(std::log(billions / shape.billions));
  };
  return *std::ranges::min_element(shapes, {}, distance);
}

train::ModelConfig model_of(Row& row) {
  train::ModelConfig model;
  model.name = row.text("id");
  const auto parameters = row.number("params_B");
  const UsualShape usual = usual_shape(parameters.value_or(7));
  model.layers = row.whole("layers", usual.layers);
  model.hidden = row.whole("hidden", usual.hidden);
  model.heads = row.whole("heads", std::max<std::int64_t>(1, model.hidden / 128));
  model.kv_heads = row.whole("kv_heads", model.heads);
  model.head_dim = std::max<std::int64_t>(2, model.hidden / model.heads / 2 * 2);
  model.vocab = row.whole("vocab", 32000);
  model.max_seq = row.whole("seq", 2048);
  if (row.number("ffn")) {
    model.ffn = row.whole("ffn", 1);
  } else {
    model.ffn = parameters ? width_of(model, *parameters * 1e9) : 4 * model.hidden;
    row.assumed.push_back(fmt::format("ffn {}", model.ffn));
  }
  if (parameters) {
    // A model whose head shares the embedding has that many parameters less.
    const auto count = [&] { return static_cast<double>(train::parameter_count(model)); };
    const double untied = std::abs(count() - *parameters * 1e9);
    model.tied = true;
    if (std::abs(count() - *parameters * 1e9) > untied) model.tied = false;
    const double off = count() / (*parameters * 1e9) - 1;
    if (std::abs(off) > 0.05) {
      row.assumed.push_back(fmt::format("the shape has {:.2f} B parameters", count() / 1e9));
    }
  }
  train::validate(model);
  return model;
}

fsdp::Strategy strategy_of(Row& row, const Job& job) {
  const std::string text = lower(row.text("strategy"));
  const auto has = [&](std::string_view word) { return text.find(word) != std::string::npos; };
  for (const fsdp::Strategy strategy : fsdp::every_strategy()) {
    if (text == fsdp::name(strategy)) return strategy;
  }
  if (has("hsdp") || has("hybrid")) return fsdp::Strategy::hybrid_shard;
  if (has("zero-1") || has("zero1")) return fsdp::Strategy::shard_optimizer;
  if (has("zero-2") || has("zero2") || has("grad_op") || has("shard_grad"))
    return fsdp::Strategy::shard_grad;
  const bool is_full = has("fsdp") || has("full") || has("zero");
  if (!is_full && (has("ddp") || has("no_shard") || has("data parallel")))
    return fsdp::Strategy::no_shard;
  if (!is_full) {
    row.assumed.push_back(fmt::format("strategy \"{}\" read as full_shard", row.text("strategy")));
  }
  return job.ranks() == 1 ? fsdp::Strategy::no_shard : fsdp::Strategy::full_shard;
}

bool is_one_of(const std::string& text, std::initializer_list<std::string_view> words) {
  return std::ranges::find(words, std::string_view(text)) != words.end();
}

bool is_yes(const std::string& text) {
  // The last three are modes of torch.compile.
  return is_one_of(lower(text),
                   {"1", "yes", "true", "on", "default", "max-autotune", "reduce-overhead"});
}

bool is_no(const std::string& text) {
  return is_one_of(lower(text), {"", "0", "no", "none", "false", "off"});
}

// Whether the text has the word, between other characters than letters.
bool has_word(const std::string& text, const std::string& word) {
  return std::regex_search(text, std::regex("(^|[^a-z])" + word + "[0-9]*($|[^a-z0-9])"));
}

void set_framework(Row& row, Job& job) {
  using train::simulated::Framework;
  const std::string text = lower(row.text("framework"));
  const bool compiled = is_yes(row.text("compile")) || text.find("compile") != std::string::npos;
  if (text.empty()) row.assumed.push_back("framework pytorch-eager");
  if (text.find("atoll") != std::string::npos) {
    job.framework = Framework::atoll;
  } else {
    job.framework = compiled ? Framework::pytorch_compiled : Framework::pytorch_eager;
  }
}

void set_recompute(Row& row, Job& job) {
  const std::string text = lower(row.text("act_ckpt"));
  if (is_no(text)) {
    job.recompute = train::Recompute::none;
  } else if (text.find("select") != std::string::npos) {
    job.recompute = train::Recompute::selective;
  } else {
    job.recompute = train::Recompute::full;
  }
}

Cluster cluster_of_row(Row& row) {
  const auto gpus = static_cast<int>(row.whole("gpus", 8));
  if (!row.number("nodes")) row.assumed.push_back(fmt::format("nodes {}", (gpus + 7) / 8));
  const double hosts = row.number("nodes").value_or((gpus + 7) / 8);
  require(hosts == std::floor(hosts), "nodes {} is not a whole number", hosts);
  const auto nodes = static_cast<int>(hosts);
  if (nodes > 1 && row.text("inter").empty()) row.assumed.push_back("inter 8x400G");
  require(nodes >= 1 && gpus % nodes == 0, "{} GPUs cannot be divided equally among {} nodes", gpus,
          nodes);
  const std::string gpu = row.text("gpu").empty() ? "H100" : row.text("gpu");
  if (row.text("gpu").empty()) row.assumed.push_back("gpu H100");
  const auto known = cluster_of({.gpu = gpu,
                                 .gpu_memory_gb = row.number("gpu_mem_GB").value_or(0),
                                 .hosts = nodes,
                                 .ranks_per_host = gpus / nodes,
                                 .intra = row.text("intra"),
                                 .inter = nodes > 1 ? row.text("inter") : ""});
  for (const std::string& text : known.unknown)
    row.assumed.push_back(text + " is unknown; the default is assumed");
  return known.cluster;
}

// Notes what the texts of a row say that is not modelled, or that no rule knows.
void note_unread(Row& row) {
  const auto text = [&](const char* column) { return lower(row.text(column)); };
  const auto says = [&](const char* column, std::initializer_list<const char*> words) {
    const std::string whole = text(column);
    return std::ranges::any_of(
        words, [&](const char* word) { return whole.find(word) != std::string::npos; });
  };
  const auto note = [&](const char* column, const char* read_as) {
    row.assumed.push_back(fmt::format("{} \"{}\" read as {}", column, row.text(column), read_as));
  };
  if (text("precision").empty()) {
    row.assumed.push_back("precision bf16");
  } else if (says("precision", {"tf32"})) {
    row.assumed.push_back("tf32 is read as f32 without tensor cores");
  } else if (says("precision", {"fp8", "float8"})) {
    row.assumed.push_back("fp8 is read as bf16");
  } else if (!says("precision", {"bf16", "bfloat16", "32"})) {
    note("precision", "bf16");
  }
  if (says("attention", {"eager", "math"})) {
    row.assumed.push_back("memory of the stored scores is not counted");
  } else if (!text("attention").empty() &&
             !says("attention", {"flash", "fa2", "fa3", "sdpa", "cudnn", "fused", "flex"})) {
    note("attention", "fused");
  }
  if (!is_yes(row.text("compile")) && !is_no(row.text("compile"))) note("compile", "no");
  const std::string strategy = text("strategy");
  const auto is_in = [&](const char* word) { return has_word(strategy, word); };
  if (is_in("tp") || is_in("pp") || is_in("cp") || is_in("ep") ||
      says("strategy", {"tensor", "pipeline", "expert", "context"}))
    row.assumed.push_back("only data parallelism is modelled, and no other of the strategy");
  if (says("strategy", {"offload", "infinity"}))
    row.assumed.push_back("offloading to the host is not modelled");
  if (!text("framework").empty() && !says("framework", {"pytorch", "torch", "atoll", "fsdp"}))
    note("framework", "PyTorch");
  if (text("act_ckpt").empty()) {
    row.assumed.push_back("act_ckpt none");
  } else if (!is_no(row.text("act_ckpt")) && !is_yes(row.text("act_ckpt")) &&
             !is_one_of(text("act_ckpt"), {"full", "select", "selective"})) {
    note("act_ckpt", says("act_ckpt", {"select"}) ? "selective" : "full");
  }
}

// The number of micro batches, from the column or from the global batch.
void set_micro_batches(Row& row, Job& job) {
  constexpr std::int64_t most = 1 << 20;
  const std::int64_t once = job.micro_batch * job.ranks();
  const bool has_batch = row.number("global_batch").has_value();
  const std::int64_t batch = has_batch ? row.whole("global_batch", 1) : 0;
  if (row.number("grad_accum")) {
    const std::int64_t count = row.whole("grad_accum", 1);
    require(count <= most, "grad_accum {} is more than {}", count, most);
    job.micro_batches = static_cast<int>(count);
    if (has_batch && batch != once * job.micro_batches) {
      row.assumed.push_back(
          fmt::format("global_batch {} is not used: it differs from micro_batch {} x {} GPUs x "
                      "grad_accum {}",
                      batch, job.micro_batch, job.ranks(), job.micro_batches));
    }
  } else if (has_batch) {
    require(batch % once == 0, "global_batch {} is not a multiple of micro_batch {} x {} GPUs",
            batch, job.micro_batch, job.ranks());
    job.micro_batches = micro_batches_of(batch, once);
  } else {
    row.assumed.push_back("grad_accum 1");
  }
}

Job job_of(Row& row) {
  note_unread(row);
  Job job;
  job.cluster = cluster_of_row(row);
  job.model = model_of(row);
  job.strategy = strategy_of(row, job);
  const bool hybrid = job.strategy == fsdp::Strategy::hybrid_shard ||
                      job.strategy == fsdp::Strategy::hybrid_shard_grad;
  job.mesh = {hybrid ? job.cluster.hosts : 1, hybrid ? job.cluster.ranks_per_host : job.ranks()};
  job.seq = row.whole("seq", 2048);
  job.micro_batch = row.whole("micro_batch", 1);
  set_micro_batches(row, job);
  // "bf16, reduce fp32": the type of computation, and that of the reduction.
  const std::string precision = lower(row.text("precision"));
  const std::size_t reduces = precision.find("reduce");
  const std::string computes = precision.substr(0, reduces);
  job.dtype = computes.find("32") != std::string::npos && computes.find("16") == std::string::npos
                  ? atoll::DType::f32
                  : atoll::DType::bf16;
  job.eager_attention = has_word(lower(row.text("attention")), "eager") ||
                        has_word(lower(row.text("attention")), "math");
  set_framework(row, job);
  // FSDP before PyTorch 2.15 reduces in the type that it computes in, unless its policy names
  // another (torch/distributed/fsdp/_fully_shard/_fsdp_api.py, MixedPrecisionPolicy).
  const bool names_f32 =
      reduces != std::string::npos && precision.find("32", reduces) != std::string::npos;
  if (job.framework != train::simulated::Framework::atoll && !names_f32)
    job.reduce_dtype = job.dtype;
  set_recompute(row, job);
  return job;
}

json predict(const Record& record) {
  Row row{record};
  json result = {{"id", row.text("id")},   {"tok_s_gpu", nullptr},
                 {"step_time_s", nullptr}, {"mfu_pct", nullptr},
                 {"mem_GB", nullptr},      {"exposed_pct", nullptr},
                 {"confidence", "low"},    {"note", ""}};
  try {
    const Job job = job_of(row);
    const Prediction p = simulate(job);
    result["tok_s_gpu"] = p.tokens_per_s / job.ranks();
    result["step_time_s"] = p.step_s;
    result["mfu_pct"] = 100 * p.mfu;
    result["mem_GB"] = static_cast<double>(p.bytes) / 1e9;
    result["exposed_pct"] = 100 * p.exposed_s / p.step_s;
    if (!p.fits) row.assumed.push_back("does not fit in the memory of the GPU");
    // tests/planner prints the errors of published runs.
    const bool over_tcp = job.cluster.hosts > 1 && job.cluster.fabric.fabric == atoll::Fabric::tcp;
    result["confidence"] = row.assumed.empty() && !over_tcp ? "medium" : "low";
    result["note"] = fmt::format("{}", fmt::join(row.assumed, "; "));
  } catch (const atoll::Error& error) {
    result["note"] = error.what();
  }
  return result;
}

}  // namespace

void predict_rows(const std::filesystem::path& csv, const std::filesystem::path& out) {
  json all = json::array();
  for (const Record& record : read_records(csv)) all.push_back(predict(record));
  std::ofstream file(out);
  file << all.dump(1) << '\n';
  need(file.flush().good(), atoll::ErrorCode::io, "{}: cannot be written", out.string());
}

}  // namespace plan
