// Tests which backends the plugin loader accepts and which it refuses.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>

#include "atoll/communicator.hpp"
#include "atoll/error.hpp"
#include "comm/registry/registry.hpp"

namespace {

using atoll::ErrorCode;

// Folder of the test backends. CMake defines ATOLL_FAKES.
const std::filesystem::path fakes = ATOLL_FAKES;
const std::filesystem::path other_fakes = ATOLL_OTHER_FAKES;

std::filesystem::path fake(const std::string& name) { return fakes / ("libatoll-" + name + ".so"); }

// Checks that loading `file` fails with `code` and a one-line text that names the file. Returns the
// text.
std::string refusal(const std::filesystem::path& file, ErrorCode code) {
  try {
    (void)atoll::load_plugin(file);
  } catch (const atoll::Error& error) {
    const std::string text = error.what();
    CHECK(error.code() == code);
    CHECK(text.find(file.filename().string()) != std::string::npos);
    CHECK(text.find('\n') == std::string::npos);
    return text;
  }
  FAIL("was accepted: " << file);
  return {};
}

template <class Function>
bool exists(Function* slot) {
  return slot != nullptr;
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("a table of this version is accepted with all its members") {
  const atoll::Plugin& plugin = atoll::load_plugin(fake("exact"));
  CHECK(plugin.name == "exact");
  CHECK(plugin.table.size == sizeof(atoll_backend));
  CHECK(exists(plugin.table.async_error));
  CHECK_FALSE(exists(plugin.table.split));
  CHECK(atoll::last_error(plugin, nullptr) == "the fake has no wires");
}

TEST_CASE("a file is loaded once, even through different spellings of its path") {
  const auto& first = atoll::load_plugin(fake("exact"));
  const auto& second = atoll::load_plugin(fakes / "." / "libatoll-exact.so");
  CHECK(&first == &second);
}

TEST_CASE("the missing members of a shorter table are NULL") {
  const auto& plugin = atoll::load_plugin(fake("shorter"));
  CHECK(exists(plugin.table.shutdown));
  // The table is followed by another pointer in memory, which must not be taken for this member.
  CHECK_FALSE(exists(plugin.table.async_error));
  CHECK_FALSE(exists(plugin.table.deregister_memory));
}

TEST_CASE("a larger table is accepted, and its unknown members are ignored") {
  const auto& plugin = atoll::load_plugin(fake("larger"));
  CHECK(plugin.name == "larger");
  CHECK(exists(plugin.table.async_error));
}

TEST_CASE("another major version is refused, with both versions") {
  CHECK(contains(refusal(fake("older_major"), ErrorCode::mismatch),
                 "was built for plugin ABI 2, but this library has ABI 3: rebuild the backend"));
  CHECK(contains(refusal(fake("newer_major"), ErrorCode::mismatch),
                 "was built for plugin ABI 4, but this library has ABI 3: rebuild the backend"));
}

TEST_CASE("a table without required members is refused") {
  refusal(fake("too_short"), ErrorCode::mismatch);
}

TEST_CASE("a shared object that is not a backend is refused") {
  CHECK(contains(refusal(fake("no_entry"), ErrorCode::mismatch), "atoll_backend_entry_v1"));
  refusal(fake("without_table"), ErrorCode::mismatch);
}

TEST_CASE("a missing file and a file that is not a shared object are reported as not found") {
  refusal(fake("never_built"), ErrorCode::not_found);
  const auto text = std::filesystem::path(ATOLL_SCRATCH) / "libatoll-text.so";
  std::ofstream(text) << "not a shared object\n";
  refusal(text, ErrorCode::not_found);
  std::filesystem::remove(text);
}

TEST_CASE("a refused file is refused again") {
  refusal(fake("older_major"), ErrorCode::mismatch);
  refusal(fake("older_major"), ErrorCode::mismatch);
}

TEST_CASE("the folders of the plugin path are searched in order") {
  atoll::Config config;
  config.plugin_path = other_fakes.string() + "::" + fakes.string() + ":/nonexistent";
  const auto files = atoll::find_plugins(config);
  const auto count = [&](const std::filesystem::path& file) {
    return std::count_if(files.begin(), files.end(), [&](const auto& found) {
      return std::filesystem::equivalent(found, file);
    });
  };
  CHECK(count(other_fakes / "libatoll-exact.so") == 1);
  // The plugin of this name in the other folder comes first in the path and is used instead.
  CHECK(count(fakes / "libatoll-exact.so") == 0);
  CHECK(count(fakes / "libatoll-shorter.so") == 1);
  CHECK(std::all_of(files.begin(), files.end(), [](const auto& file) {
    return file.filename().string().starts_with("libatoll-") && file.extension() == ".so";
  }));
}

TEST_CASE("every backend in the plugin path is listed, unusable backends with the reason") {
  atoll::Config config;
  config.plugin_path = fakes.string();
  auto world = atoll::World::single(config);
  const auto found = atoll::available_backends(world);
  const auto info = [&](const std::string& name) {
    for (const auto& one : found) {
      if (one.name == name || one.name == "libatoll-" + name + ".so") return one;
    }
    FAIL("not listed: " << name);
    return atoll::BackendInfo{};
  };
  CHECK(info("exact").unusable.empty());
  CHECK(info("exact").preference == 1);
  CHECK(contains(info("exact").file, "libatoll-exact.so"));
  CHECK(info("unwilling").unusable == "the fake has no wires");
  CHECK(info("unwilling").preference == 0);
  CHECK(contains(info("older_major").unusable, "ABI"));
  CHECK_FALSE(info("too_short").unusable.empty());
  CHECK_FALSE(info("no_entry").unusable.empty());
}

TEST_CASE("requesting an unusable backend fails with the backend's reason") {
  atoll::Config config;
  config.plugin_path = fakes.string();
  auto world = atoll::World::single(config);
  const auto mesh = atoll::Mesh::make(world, {.replicate = 1, .shard = 1});
  try {
    (void)atoll::Communicator::open(mesh.axis("shard"), {.name = "", .backend = "unwilling"});
    FAIL("was opened");
  } catch (const atoll::Error& error) {
    CHECK(error.code() == ErrorCode::unsupported);
    CHECK(contains(error.what(), "the fake has no wires"));
  }
}

TEST_CASE("the error text of a backend's open() reaches the caller") {
  atoll::Config config;
  config.plugin_path = fakes.string();
  auto world = atoll::World::single(config);
  const auto mesh = atoll::Mesh::make(world, {.replicate = 1, .shard = 1});
  try {
    (void)atoll::Communicator::open(mesh.axis("shard"), {.name = "", .backend = "exact"});
    FAIL("was opened");
  } catch (const atoll::Error& error) {
    CHECK(error.code() == ErrorCode::unsupported);
    CHECK(contains(error.what(), "exact"));
    CHECK(contains(error.what(), "the fake has no wires"));
  }
}
