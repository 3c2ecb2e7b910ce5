#include "model/cuda/product_file.hpp"

#include <fstream>
#include <nlohmann/json.hpp>
#include <utility>

#include "fail.hpp"
#include "report/files.hpp"
#include "report/log.hpp"

namespace train::cuda {
namespace {

using nlohmann::json;
namespace fs = std::filesystem;

// The whole file: for each machine the choices by product. An absent file is empty. Throws
// json::exception for another form.
json read(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in.good()) return json::object();
  json all = json::parse(in);
  all.get_ref<const json::object_t&>();
  return all;
}

ProductFile::Choice choice_of(const json& entry) {
  return {.algorithm = entry.at("algorithm").get<std::array<std::uint64_t, 8>>(),
          .seconds = entry.at("seconds").get<double>(),
          .first_seconds = entry.at("first_seconds").get<double>()};
}

}  // namespace

ProductFile::ProductFile(fs::path path, std::string machine)
    : path_(std::move(path)), machine_(std::move(machine)) {
  if (path_.empty()) return;
  try {
    const json all = read(path_);
    const auto mine = all.find(machine_);
    if (mine == all.end()) return;
    Choices found;
    for (const auto& [product, entry] : mine->items()) found[product] = choice_of(entry);
    choices_ = std::move(found);
  } catch (const json::exception&) {
    log::warn("{}: not a file of --products, so products are timed again: name another file",
              path_.string());
    has_failed_ = true;  // the file may be something else, and is left alone
  }
}

const ProductFile::Choice* ProductFile::find(const std::string& product) const {
  const auto found = choices_.find(product);
  return found == choices_.end() ? nullptr : &found->second;
}

void ProductFile::add(const std::string& product, const Choice& choice) {
  choices_[product] = choice;
  if (path_.empty() || has_failed_) return;
  try {
    json all = read(path_);
    // All choices, because a process that wrote at the same moment may have replaced some of them.
    for (const auto& [name, mine] : choices_) {
      all[machine_][name] = {{"algorithm", mine.algorithm},
                             {"seconds", mine.seconds},
                             {"first_seconds", mine.first_seconds}};
    }
    make_directory(fs::absolute(path_).parent_path());
    write_json_atomic(path_, all);
  } catch (const std::exception& error) {
    has_failed_ = true;
    log::warn("cannot keep the fastest algorithms: {}", error.what());
  }
}

}  // namespace train::cuda
