// The options as JSON, under the names of their flags. Flags that only name, show or plan a run are
// left out. run_args.json holds the result, and ranks compare it, and the
// results folder, with those of most ranks.
#include <nlohmann/json.hpp>

#include "loop/options.hpp"

namespace train {
namespace {

void put_data(nlohmann::json& json, const RunOptions& o) {
  json["tokenizer"] = o.tokenizer;
  json["data"] = o.data;
  json["data_type"] = o.data_type;
  json["train_on"] = o.train_on;
  json["samples"] = o.samples;
  json["eval_data"] = o.eval_data;
  json["eval_split"] = o.eval_split;
  json["eval_samples"] = o.eval_samples;
  json["eval_every"] = o.eval_every;
  json["seq"] = o.seq;
  json["global_batch"] = o.global_batch;
  json["micro_batch"] = o.micro_batch;
  json["pad_to"] = o.pad_to;
}

void put_model(nlohmann::json& json, const RunOptions& o) {
  json["model"] = o.model;
  json["init"] = o.init;
  json["freeze"] = o.freeze;
  json["lora_rank"] = o.lora_rank;
  json["lora_alpha"] = o.lora_alpha;
  json["lora_targets"] = o.lora_targets;
  json["lora_base"] = o.lora_base;
  json["lora_merge"] = o.lora_merge;
  json["dtype"] = o.dtype;
  json["fp8"] = o.fp8;
  json["recompute"] = o.recompute;
  json["head_rows"] = o.head_rows;
  json["products"] = o.products;
  json["seed"] = o.seed;
}

void put_optimizer(nlohmann::json& json, const RunOptions& o) {
  json["optimizer"] = o.optimizer;
  json["lr"] = o.lr;
  json["lr_schedule"] = o.lr_schedule;
  json["lr_warmup"] = o.lr_warmup;
  json["lr_min_ratio"] = o.lr_min_ratio;
  json["lr_decay_steps"] = o.lr_decay_steps;
  json["beta1"] = o.beta1;
  json["beta2"] = o.beta2;
  json["epsilon"] = o.epsilon;
  json["momentum"] = o.momentum;
  json["weight_decay"] = o.weight_decay;
  json["decay"] = o.decay;
  json["group"] = o.group;
  json["moments"] = o.moments;
  json["ema"] = o.ema;
  json["clip"] = o.clip;
  json["skip_nonfinite"] = o.skip_nonfinite;
  json["max_skipped"] = o.max_skipped;
}

void put_sharding(nlohmann::json& json, const RunOptions& o) {
  json["strategy"] = o.strategy;
  json["islands"] = o.islands;
  json["mesh"] = o.mesh;
  json["memory_limit"] = o.memory_limit;
  json["accumulate"] = o.accumulate;
  json["reduce_dtype"] = o.reduce_dtype;
  json["inner_shards"] = o.inner_shards;
  json["gather"] = o.gather;
  json["prefetch"] = o.prefetch;
  json["reduce_buffers"] = o.reduce_buffers;
}

void put_run(nlohmann::json& json, const RunOptions& o) {
  json["device"] = o.device;
  json["backend"] = o.backend;
  json["threads"] = o.threads;
  json["check_fabric"] = o.check_fabric;
  json["fabric_rate"] = o.fabric_rate;
  json["require_gdr"] = o.require_gdr;
  json["steps"] = o.steps;
  json["warmup_steps"] = o.warmup_steps;
  json["checkpoint"] = o.save_checkpoint;
  json["checkpoint_every"] = o.checkpoint_every;
  json["checkpoint_beside"] = o.checkpoint_beside;
  json["keep_last"] = o.keep_last;
  json["keep_every"] = o.keep_every;
  json["resume"] = o.resume;
  json["resume_with_changes"] = o.resume_with_changes;
  json["max_time"] = o.max_time;
  json["export"] = o.export_weights;
  json["export_dtype"] = o.export_dtype;
  json["trace"] = o.trace;
  json["trace_steps"] = o.trace_steps;
  json["min_mfu"] = o.min_mfu;
  json["max_memory"] = o.max_memory;
  json["log_norms"] = o.log_norms;
  json["metrics_port"] = o.metrics_port;
  json["metrics_address"] = o.metrics_address;
}

}  // namespace

nlohmann::json to_json(const RunOptions& options) {
  auto json = nlohmann::json::object();
  put_data(json, options);
  put_model(json, options);
  put_optimizer(json, options);
  put_sharding(json, options);
  put_run(json, options);
  return json;
}

}  // namespace train
