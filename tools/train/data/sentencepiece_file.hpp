// Checks the outer layout of a SentencePiece model before the library parses it, because the
// library reports no byte offset.
#pragma once

#include <string_view>

namespace train {

// A model is a protobuf message with only length-delimited fields (1 pieces, 2 trainer_spec,
// 3 normalizer_spec, 4 self_test_data, 5 denormalizer_spec; see sentencepiece_model.proto). Throws
// Error(bad_data) with `file` and offset for a field that is cut off or of another kind, and when
// field 1, 2 or 3 is missing.
void check_sentencepiece_file(std::string_view bytes, std::string_view file);

}  // namespace train
