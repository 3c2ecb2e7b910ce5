// The model on the engine: units added, and one micro batch taken through forward and backward with
// weights and gradients that live in the engine's buckets.
#pragma once

#include <string>
#include <vector>

#include "atoll/fsdp.hpp"
#include "model/decoder.hpp"

namespace train {

// Adds the model's units and freezes the engine. With a tied head the embedding stands at both ends
// of the order: its gradient is reduced after its last use. Parameters whose HF name is like one of
// the patterns (of a shell, with * ? [...]) `frozen` are not trained. Error(invalid_argument): a
// pattern that is like none, and patterns that leave nothing to train.
void add_units(atoll::fsdp::Engine& engine, const ModelConfig& model,
               const std::vector<std::string>& frozen = {});

// Parameters that these patterns freeze. The same errors.
std::uint64_t frozen_count(const ModelConfig& model, const std::vector<std::string>& patterns);

// Forward and backward of one micro batch, enqueued on the step's stream.
void train_micro_batch(atoll::fsdp::Engine& engine, atoll::fsdp::Pass pass, const Decoder& decoder,
                       const Step& step);

}  // namespace train
