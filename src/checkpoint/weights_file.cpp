// Export and import of whole weights as safetensors, the format of Hugging Face.

#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <map>
#include <optional>
#include <random>
#include <vector>

#include "atoll/checkpoint.hpp"
#include "atoll/rank_set.hpp"
#include "checkpoint/files.hpp"
#include "checkpoint/safetensors.hpp"
#include "checkpoint/together.hpp"
#include "core/errors.hpp"
#include "core/terminal_safe.hpp"
#include "device/cpu/kernels.hpp"
#include "fsdp/pass_state.hpp"
#include "fsdp/setup.hpp"

namespace atoll_v1::atoll::fsdp {
namespace {

namespace fs = std::filesystem;

std::vector<std::uint64_t> file_shape(const ParamSpec& param) {
  return {param.shape.begin(), param.shape.end()};
}

struct FoundTensor {
  const SafetensorsFile& file;
  ConstView data;
};

// Returns the tensor of a parameter in the first file that contains it.
FoundTensor find_tensor(const std::vector<SafetensorsFile>& files, const std::string& tensor,
                        const ParamSpec& param) {
  for (const SafetensorsFile& file : files) {
    const SafetensorsEntry* entry = file.find(tensor);
    if (!entry) continue;
    require(entry->shape == file_shape(param) && is_float(entry->data.dtype), ErrorCode::mismatch,
            "{}: tensor {} is {} of shape [{}], but the parameter needs f32, bf16 or f16 of shape "
            "[{}]",
            file.path().string(), tensor, name(entry->data.dtype), fmt::join(entry->shape, ", "),
            fmt::join(param.shape, ", "));
    return {file, entry->data};
  }
  std::string where = files.empty() ? "no weights file given" : files.front().path().string();
  if (files.size() > 1) where += fmt::format(" and {} other files", files.size() - 1);
  throw make_error(ErrorCode::not_found, "{}: no tensor {}", where, tensor);
}

// Returns a declaration for the name of each parameter in the weights file. An exception of `name`
// becomes Error(invalid_argument).
std::vector<Declaration> names_of(std::string_view call, const Engine& engine,
                                  const ParamName& name) {
  require(name != nullptr, "{}: `name` is empty: pass a function that returns a name", call);
  std::vector<Declaration> all;
  for (const auto& unit : engine.units()) {
    for (const auto& param : unit->params()) {
      const std::string subject =
          fmt::format("the name of parameter {} of unit {}", param.name, unit->name());
      try {
        all.push_back({subject, name(*unit, param)});
      } catch (const std::exception& error) {
        throw make_error(ErrorCode::invalid_argument, "{}: {}: `name` has thrown: {}", call,
                         subject, text_of(error));
      } catch (...) {
        throw make_error(ErrorCode::invalid_argument, "{}: {}: `name` has thrown: {}", call,
                         subject, foreign_exception);
      }
    }
  }
  return all;
}

// Throws Error(invalid_argument) for names that a file cannot have.
void check_unique(const std::vector<Declaration>& names) {
  std::map<std::string_view, std::string_view> subjects;
  for (const auto& [subject, name] : names) {
    if (name.empty()) continue;
    require(name != safetensors_metadata_key,
            "export_weights: {} is \"{}\", which safetensors reserves: return another name",
            subject, name);
    require(!invalid_utf8(name), "export_weights: {} is not valid UTF-8", subject);
    const auto [before, is_new] = subjects.emplace(name, subject);
    require(is_new,
            "export_weights: {} and {} are both \"{}\": each parameter needs a different name",
            before->second, subject, name);
  }
  require(!subjects.empty(),
          "export_weights: `name` returns \"\" for every parameter, so there is "
          "nothing to write");
}

// Throws for a path that the file must not replace. A link is replaced, unless it leads to a
// folder.
void check_target(const fs::path& file) {
  std::error_code ignored;  // a folder that cannot be examined fails when the file is written
  require(file.has_filename() && !fs::is_directory(file, ignored),
          "export_weights: \"{}\" does not name a file", terminal_safe(file.string()));
  const fs::file_status found = fs::symlink_status(file, ignored);
  require(!fs::exists(found) || fs::is_regular_file(found) || fs::is_symlink(found), ErrorCode::io,
          "export_weights: {}: is {}, and only a regular file may be replaced: pass another path",
          terminal_safe(file.string()),
          fs::is_fifo(found)     ? "a FIFO"
          : fs::is_socket(found) ? "a socket"
                                 : "a device");
}

// Returns a name beside `file` that no other engine and no other process uses, because two that
// write to one temporary file would tear it.
fs::path temporary_name(const fs::path& file) {
  std::random_device random;
  return fmt::format("{}.{:08x}{:08x}.partial", file.string(), random() & 0xffffffffu,
                     random() & 0xffffffffu);
}

}  // namespace

void export_weights(const fs::path& file, Engine& engine, DType dtype,
                    const ParamName& param_name) {
  EngineAccess::setup(engine).check_sealed("export_weights");
  const RankSet& ranks = EngineAccess::setup(engine).ranks;
  std::vector<Declaration> names;
  agree(ranks, "export_weights", [&] {
    EngineAccess::pass(engine).check_readable("export_weights");
    check_target(file);
    require(is_float(dtype), "export_weights: cannot write {}: use f32, bf16 or f16", name(dtype));
    names = names_of("export_weights", engine, param_name);
    check_unique(names);
    std::vector<Declaration> all{{"the file", fmt::format("\"{}\"", file.string())},
                                 {"the dtype", std::string(name(dtype))}};
    for (const auto& [subject, value] : names)
      all.push_back({subject, fmt::format("\"{}\"", value)});
    return all;
  });
  const fs::path partial = temporary_name(file);
  std::optional<SafetensorsWriter> writer;
  const auto start = [&] {
    if (!ranks.is_first()) return;
    std::vector<SafetensorsDeclaration> declared;
    auto next = names.begin();
    for (const auto& unit : engine.units()) {
      for (const auto& param : unit->params()) {
        const std::string& tensor = (next++)->value;
        if (!tensor.empty()) declared.push_back({tensor, dtype, file_shape(param)});
      }
    }
    filesystem([&] {
      if (file.has_parent_path()) fs::create_directories(file.parent_path());
    });
    writer.emplace(partial, declared, std::map<std::string, std::string>{{"format", "pt"}});
  };
  // The first error of the unit. After an error, the other parameters of the unit are still
  // visited.
  std::exception_ptr problem;
  std::vector<std::byte> bytes;
  auto name_of_next = names.begin();
  const auto write = [&](std::span<const float> values) {
    if ((name_of_next++)->value.empty() || !writer || problem) return;
    try {
      bytes.resize(values.size() * size_of(dtype));
      cpu::cast({bytes.data(), values.size(), dtype}, values);
      writer->write(bytes);
    } catch (...) {
      problem = std::current_exception();
    }
  };
  try {
    together(ranks, start);
    engine.visit([&](const Unit& unit, const ParamSpec& param, std::span<const float> values) {
      write(values);
      if (&param != &unit.params().back()) return;
      // The other ranks wait here, not in the gather of the next unit, until the disk has the data.
      together(ranks, [&] {
        if (problem) std::rethrow_exception(problem);
      });
    });
    together(ranks, [&] {
      if (!writer) return;
      writer->close();
      filesystem([&] { fs::rename(partial, file); });
      sync_parents(file);
    });
  } catch (...) {
    std::error_code ignored;
    if (ranks.is_first()) fs::remove(partial, ignored);  // the file may have filled the disk
    throw;
  }
}

void import_weights(const std::vector<fs::path>& paths, Engine& engine,
                    const ParamName& param_name) {
  EngineAccess::setup(engine).check_sealed("import_weights");
  agree(EngineAccess::setup(engine).ranks, "import_weights", [&] {
    EngineAccess::pass(engine).check_idle();
    auto names = names_of("import_weights", engine, param_name);
    const auto left_out = std::ranges::find(names, "", &Declaration::value);
    require(
        left_out == names.end() || EngineAccess::setup(engine).has_values,
        "import_weights: {} is \"\", but the parameters have no values that it could keep: call "
        "initialize() first",
        left_out == names.end() ? "" : left_out->subject);
    return names;
  });
  const auto fill = [&] {
    std::vector<SafetensorsFile> files;
    for (const auto& path : paths) {
      files.push_back(SafetensorsFile::open(path, FileReads::parts));
    }
    std::vector<std::byte> aligned;
    EngineAccess::assign(engine, [&](const Segment& segment, std::span<float> out) {
      const std::string tensor = param_name(*segment.unit, *segment.param);
      if (tensor.empty()) return false;
      const FoundTensor found = find_tensor(files, tensor, *segment.param);
      const ConstView source = found.data.part(segment.first, out.size());
      found.file.fetch({static_cast<const std::byte*>(source.data), source.bytes()});
      // Copied because the file format does not guarantee alignment.
      aligned.resize(source.bytes());
      std::memcpy(aligned.data(), source.data, source.bytes());
      cpu::cast(out, ConstView(aligned.data(), source.count, source.dtype));
      return true;
    });
  };
  try {
    together(EngineAccess::setup(engine).ranks, fill);
  } catch (...) {
    // All ranks refresh: some master parameters may be newer than the copies that compute reads.
    EngineAccess::refresh(engine);
    throw;
  }
  EngineAccess::setup(engine).has_values = true;
}

}  // namespace atoll_v1::atoll::fsdp
