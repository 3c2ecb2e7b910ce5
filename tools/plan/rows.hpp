// Predicts many jobs at once: a CSV file of jobs in, a JSON file of predictions out.
#pragma once

#include <filesystem>
#include <string>

namespace plan {

// Columns: id, params_B, layers, hidden, heads, kv_heads, ffn, vocab, gpu, gpu_mem_GB, gpus, nodes,
// intra, inter, strategy, framework, seq, micro_batch, grad_accum, global_batch, act_ckpt, compile,
// precision, attention. Others are ignored. The output is an array with an object for each row: id,
// tok_s_gpu, step_time_s, mfu_pct, mem_GB, exposed_pct, confidence and note. The confidence is
// "low" over TCP and for rows with assumptions, which the note names, otherwise "medium". A row
// that cannot be predicted has the reason in its note and null in the figures. Throws Error(io),
// and Error(bad_data) for a file that is not CSV or lacks a column.
void predict_rows(const std::filesystem::path& csv, const std::filesystem::path& json);

}  // namespace plan
