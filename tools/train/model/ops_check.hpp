// Checks of shapes and dtypes that every implementation of Ops makes at enqueue. Each throws
// Error(invalid_argument) that names the operation, the argument and both numbers.
#pragma once

#include "model/ops.hpp"

namespace train {

void check(const RmsNormForward& args);
void check(const RmsNormBackward& args);
void check_rope_table(atoll::ConstView table, std::int64_t head_dim);
void check(const Rope& args);
void check(const AttentionForward& args);
void check(const AttentionBackward& args);
void check_swiglu_forward(atoll::ConstView gate, atoll::ConstView up, atoll::ConstView out);
void check(const SwigluBackward& args);
void check_embedding_forward(atoll::ConstView tokens, atoll::ConstView table, atoll::ConstView out,
                             std::int64_t width);
void check(const EmbeddingBackward& args);
void check(const CrossEntropy& args);

}  // namespace train
