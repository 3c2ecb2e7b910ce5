// Runs the model on the FSDP engine: adds its units, and computes forward and backward of a micro
// batch with weights and gradients in the engine's buckets.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "atoll/fsdp.hpp"
#include "model/decoder.hpp"

namespace train {

// Adds the model's units and seals the engine. A tied embedding is both the first and the last
// unit, and its gradient is reduced after its last use. Parameters whose HF name matches one of the
// shell patterns `frozen` (with * ? [...]) are not trained. Throws Error(invalid_argument) for a
// pattern that matches nothing, or when no parameter is left to train, unless a pattern is "*":
// --evaluate trains none.
void add_units(atoll::fsdp::Engine& engine, const ModelConfig& model,
               const std::vector<std::string>& frozen = {});

// Number of elements of the model that `patterns` freeze. Throws like add_units().
std::uint64_t frozen_count(const ModelConfig& model, const std::vector<std::string>& patterns);
// Returns how many elements of the model the engine keeps in 8 bits (Adapters::int8_base).
std::uint64_t quantized_count(const ModelConfig& model);

// Called after the gradients of a unit have been enqueued, and before they are reduced. May enqueue
// work on the step's stream that reads them.
using ObserveGradients =
    std::function<void(const atoll::fsdp::Unit&, const atoll::fsdp::BackwardScope&)>;

// Enqueues forward and backward of one micro batch on the step's stream.
void train_micro_batch(atoll::fsdp::Engine& engine, atoll::fsdp::Pass pass, const Decoder& decoder,
                       const Step& step, const ObserveGradients& observe = {});

// Enqueues forward of one micro batch on the step's stream, and adds its loss to the total.
void evaluate_micro_batch(atoll::fsdp::Engine& engine, atoll::fsdp::Pass pass,
                          const Decoder& decoder, const Step& step);

}  // namespace train
