// A look at a SentencePiece model's outer layout before the library parses it: the library says
// only "failed", on its own stream, where we owe a byte offset.
#pragma once

#include <string_view>

namespace train {

// A model is a protobuf message whose fields (1 pieces, 2 trainer_spec, 3 normalizer_spec,
// 4 self_test_data, 5 denormalizer_spec; sentencepiece_model.proto) are all length-delimited.
// Throws Error(bad_data) with `file` and offset when a field does not fit the bytes, is of another
// kind, or when the pieces, trainer_spec or normalizer_spec are missing.
void check_sentencepiece_file(std::string_view bytes, std::string_view file);

}  // namespace train
