// Export and import of whole weights as safetensors, the format of Hugging Face.

#include <cstring>
#include <optional>
#include <vector>

#include "atoll/checkpoint.hpp"
#include "core/errors.hpp"
#include "device/host/kernels.hpp"
#include "fsdp/safetensors.hpp"
#include "fsdp/setup.hpp"
#include "fsdp/together.hpp"

namespace atoll_v1::atoll::fsdp {
namespace {

namespace fs = std::filesystem;

std::vector<std::uint64_t> file_shape(const ParamSpec& param) {
  return {param.shape.begin(), param.shape.end()};
}

bool is_float(DType dtype) {
  return dtype == DType::f32 || dtype == DType::bf16 || dtype == DType::f16;
}

// Returns the entry of a parameter from the first file that contains the parameter.
const SafetensorsEntry& find_entry(const std::vector<SafetensorsFile>& files,
                                   const std::string& tensor, const ParamSpec& param) {
  for (const SafetensorsFile& file : files) {
    const SafetensorsEntry* entry = file.find(tensor);
    if (!entry) continue;
    require(entry->shape == file_shape(param) && is_float(entry->data.dtype), ErrorCode::mismatch,
            "{}: tensor {} is {} with {} elements, but the model needs {} elements of f32, bf16 or "
            "f16 in the shape of its parameter",
            file.path().string(), tensor, name(entry->data.dtype), entry->data.count,
            param.count());
    return *entry;
  }
  throw make_error(ErrorCode::not_found, "{}: no tensor {}",
                   files.empty() ? "no weights file given" : files[0].path().string(), tensor);
}

}  // namespace

void export_weights(const fs::path& file, Engine& engine, DType dtype,
                    const ParamName& param_name) {
  EngineAccess::setup(engine).check_frozen("export_weights");
  require(is_float(dtype), "export_weights: cannot write {}: use f32, bf16 or f16", name(dtype));
  const RankSet& ranks = EngineAccess::setup(engine).ranks;
  const fs::path partial = file.string() + ".partial";
  std::optional<SafetensorsWriter> writer;
  together(ranks, [&] {
    if (!ranks.is_first()) return;
    std::vector<SafetensorsDeclaration> declared;
    for (const auto& unit : engine.units()) {
      for (const auto& param : unit->params()) {
        declared.push_back({param_name(*unit, param), dtype, file_shape(param)});
      }
    }
    if (file.has_parent_path()) fs::create_directories(file.parent_path());
    writer.emplace(partial, declared, std::map<std::string, std::string>{{"format", "pt"}});
  });
  // The first error; visit() continues after an error, because peers wait for its gathers.
  std::optional<Error> problem;
  std::vector<std::byte> bytes;
  engine.visit([&](const Unit&, const ParamSpec&, std::span<const float> values) {
    if (!writer || problem) return;
    try {
      bytes.resize(values.size() * size_of(dtype));
      host::cast({bytes.data(), values.size(), dtype}, values);
      writer->write(bytes);
    } catch (const Error& error) {
      problem = error;
    }
  });
  together(ranks, [&] {
    if (problem) throw *problem;
    if (!writer) return;
    writer->close();
    fs::rename(partial, file);
  });
}

void import_weights(const std::vector<fs::path>& paths, Engine& engine,
                    const ParamName& param_name) {
  EngineAccess::setup(engine).check_frozen("import_weights");
  const auto fill = [&] {
    std::vector<SafetensorsFile> files;
    for (const auto& path : paths) files.push_back(SafetensorsFile::open(path));
    std::vector<std::byte> aligned;
    engine.assign([&](const Segment& segment, std::span<float> out) {
      const std::string tensor = param_name(*segment.unit, *segment.param);
      const ConstView source =
          find_entry(files, tensor, *segment.param).data.part(segment.first, out.size());
      // Copied because the file format does not guarantee alignment.
      aligned.resize(source.bytes());
      std::memcpy(aligned.data(), source.data, source.bytes());
      host::cast(out, ConstView(aligned.data(), source.count, source.dtype));
    });
  };
  try {
    together(EngineAccess::setup(engine).ranks, fill);
  } catch (...) {
    // All ranks refresh: some master parameters may be newer than the copies that compute reads.
    engine.refresh();
    throw;
  }
}

}  // namespace atoll_v1::atoll::fsdp
