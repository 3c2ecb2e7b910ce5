// The names that other programs give to flags and values, with the names here, and the reading of
// numbers with units.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cctype>
#include <charconv>
#include <string>
#include <vector>

#include "plan/flags.hpp"

namespace plan {
namespace {

constexpr cli::ForeignName flags_of_others[] = {
    {"--hosts", "nodes nnodes num-nodes"},
    {"--hosts and --gpus-per-host", "ranks world-size num-processes nproc"},
    {"--gpus-per-host (of one host)",
     "gpus ngpus num-gpus n-gpus gpus-per-node nproc-per-node ranks-per-host"},
    {"--global-batch", "train-batch-size global-batch-size gbs"},
    {"--micro-batch", "batch-size micro-batch-size per-device-train-batch-size mbs"},
    {"--micro-batches", "gradient-accumulation-steps"},
    {"--seq", "seq-len seq-length max-length max-seq-length context-length"},
    {"--recompute", "activation-checkpoint ac"},
    {"--recompute full", "gradient-checkpointing activation-checkpointing"},
    {"--model", "model-name-or-path"},
    {"--model (or --layers --hidden --heads --kv-heads --ffn)", "params parameters model-size"},
    {"--gpu", "gpu-type device-type"},
    {"--growth (tokens/s by hosts)",
     "target-tokens-per-s target-throughput tokens-per-second tokens-per-s throughput"},
    {"--strategy", "zero-stage zero fsdp fsdp-sharding-strategy sharding-strategy"},
    {"--dtype", "precision mixed-precision torch-dtype"},
    {"--dtype bf16", "bf16 fp16"},
    {"--lora-rank", "lora lora-r use-peft"},
    {"--mesh", "dp-replicate dp-shard"},
    {"nothing in its place: atoll has no tensor or pipeline parallelism",
     "tp tensor-parallel tensor-parallel-size tensor-model-parallel-size pp "
     "pipeline-parallel-size"},
};

struct WordRow {
  std::string_view flag, ours, theirs;  // `theirs` as in ForeignName, with "_" between words
};
constexpr WordRow words_of_others[] = {
    {"--dtype", "bf16", "bfloat16 torch.bfloat16 fp16 float16"},
    {"--dtype", "f32", "fp32 float32 torch.float32 float"},
    {"--dtype", "--fp8, beside --dtype bf16", "fp8 float8"},
    {"--strategy", "no_shard", "0 zero0 ddp"},
    {"--strategy", "shard_optimizer", "1 zero1"},
    {"--strategy", "shard_grad", "2 zero2 shard_grad_op"},
    {"--strategy", "full_shard", "3 zero3 fsdp fsdp2"},
    {"--strategy", "hybrid_shard", "hsdp"},
};

std::string lower(std::string text) {
  std::ranges::transform(text, text.begin(), [](unsigned char c) { return std::tolower(c); });
  return text;
}

}  // namespace

std::span<const cli::ForeignName> foreign_flags() { return flags_of_others; }

cli::Check own_words(std::string_view flag) {
  return [flag](const std::string& word) -> std::string {
    for (const WordRow& row : words_of_others) {
      std::string name = lower(word);
      std::ranges::replace(name, '-', '_');
      if (row.flag == flag && cli::has_word(row.theirs, name))
        return fmt::format("{}: use {}", word, row.ours);
    }
    return {};
  };
}

std::function<std::string(std::string)> with_units(std::vector<Unit> units) {
  return [units = std::move(units)](const std::string& text) {
    double number = 0;
    const auto [behind, error] = std::from_chars(text.data(), text.data() + text.size(), number);
    std::string unit = lower({behind, text.data() + text.size()});
    unit.erase(0, std::min(unit.find_first_not_of(' '), unit.size()));
    const auto known = std::ranges::find(units, unit, &Unit::name);
    if (error == std::errc() && unit.empty()) return text;
    if (error == std::errc() && known != units.end())
      return fmt::format("{}", number * known->factor);
    std::string names;
    for (const Unit& one : units) names += fmt::format("{}{}", names.empty() ? "" : ", ", one.name);
    throw CLI::ValidationError(
        fmt::format("{} is not a number, or has another unit than {}", text, names));
  };
}

std::string file_name(const std::string& word) {
  return word.starts_with("--") ? fmt::format("needs a file, but {} follows", word) : "";
}

}  // namespace plan
