// The parameter groups of --group.
#pragma once

#include <string>
#include <vector>

#include "atoll/fsdp.hpp"
#include "atoll/optimizer.hpp"

namespace train {

// Reads "PATTERN:SETTING=NUMBER,...", such as "*norm.weight:lr_scale=0.1,weight_decay=0". Settings
// are lr_scale, weight_decay, beta1 and beta2. The pattern of the result matches Hugging Face
// names. Throws Error(invalid_argument) that names the flag and its wrong part.
atoll::fsdp::ParamGroup parse_group(const std::string& text);

// Returns the groups with the library's names of parameters: a group for each trainable parameter
// that a pattern matches. The first pattern that matches a parameter applies. Throws
// Error(invalid_argument) for a pattern that matches no trainable parameter, or only parameters
// that earlier patterns match.
std::vector<atoll::fsdp::ParamGroup> param_groups(const atoll::fsdp::Engine& engine,
                                                  const std::vector<std::string>& texts);

// Excludes the embedding from weight decay (--decay matrices-no-embeddings), unless one of `groups`
// sets its weight decay. Does nothing for a frozen embedding.
void spare_embedding(const atoll::fsdp::Engine& engine,
                     std::vector<atoll::fsdp::ParamGroup>& groups);

}  // namespace train
