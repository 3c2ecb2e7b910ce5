// The local cache of the Hugging Face Hub, read without a network. Its layout is documented by the
// Hub ("Understand caching" in the guide of huggingface_hub).
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

namespace train {

// Whether `text` is the name of a model on the Hub: ORG/NAME or ORG/NAME@REVISION, of letters,
// digits, '.', '_' and '-'.
bool is_hub_name(std::string_view text);

// HF_HUB_CACHE, otherwise HF_HOME/hub, otherwise XDG_CACHE_HOME/huggingface/hub, otherwise
// ~/.cache/huggingface/hub.
std::filesystem::path hub_cache();

// Returns the folder of a model's snapshot in hub_cache(). A revision is a branch, a tag or a
// commit; without one it is "main". Throws Error(not_found) that names the folder and the command
// which downloads the model.
std::filesystem::path cached_model(const std::string& name);

}  // namespace train
