// The table of flags: one row has all that atoll-train knows about a member of RunOptions.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "loop/options.hpp"

namespace train {

// The numbers that a flag takes, beside its default.
struct Numbers {
  bool (*have)(double value) = nullptr;
  std::string_view must{};  // completes the error "--flag: must ..."
};
// The words that a flag takes, beside its default. --help-all and the completion list them.
using Words = std::vector<std::string_view>;

// A condition on other flags without which a flag is refused. `text` completes "--flag: needs ...".
struct Needs {
  bool (*holds)(const RunOptions&) = nullptr;
  std::string_view text{};
};
// When a flag has no effect. `text` completes the warning "--flag has no effect ...".
struct Idle {
  bool (*holds)(const RunOptions&) = nullptr;
  std::string_view text{};
};

// The number in RunOptions for "the run chooses the value". Command lines write it as "auto".
struct Usual {
  double number = 0;
};

// How the command line and configuration files write a value.
enum class Form {
  plain,
  bytes,    // a number of bytes, such as "16G"
  repeated  // a list whose texts may have commas, so that the flag is repeated
};

struct Flag {
  using Member = std::variant<bool RunOptions::*, int RunOptions::*, std::int64_t RunOptions::*,
                              std::uint64_t RunOptions::*, double RunOptions::*,
                              std::string RunOptions::*, std::vector<std::string> RunOptions::*>;

  // `more` are the other members, in any order.
  template <class... More>
  Flag(std::string_view as_typed, Member what, std::string text, const More&... more)
      : names(as_typed), member(what), help(std::move(text)) {
    (set(more), ...);
  }

  // The first name, such as "--lora-rank".
  std::string_view name() const { return names.substr(0, names.find(',')); }
  // The key in JSON, such as "lora_rank".
  std::string key() const;
  nlohmann::json value(const RunOptions& options) const;
  bool has_default(const RunOptions& options) const;
  // Why the flag has no effect; nothing if it has one.
  const Idle* idle(const RunOptions& options) const;

  std::string_view names;  // all names, separated by commas, as CLI11 takes them
  Member member;
  std::string help;
  std::string_view group{};  // heading of the group of flags in --help-all
  Numbers numbers{};
  Words words{};
  std::optional<Usual> usual{};
  Form form = Form::plain;
  Needs needs{};
  std::vector<Idle> idles{};  // the first condition that holds says why the flag has no effect
  Use uses = Use::saved | Use::compared;

 private:
  void set(const Numbers& range) { numbers = range; }
  void set(const Words& known) { words = known; }
  void set(const Usual& chosen) { usual = chosen; }
  void set(Form written) { form = written; }
  void set(const Needs& condition) { needs = condition; }
  void set(const Idle& condition) { idles.push_back(condition); }
  void set(Use use) { uses = use; }
};

// All flags in the order of --help-all.
const std::vector<Flag>& flags();

}  // namespace train
