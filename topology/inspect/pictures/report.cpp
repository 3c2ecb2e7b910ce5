// Prints a diagnosis for people: a summary in one line, findings by severity, and on request the
// checks that passed or could not run.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>

#include "atoll/tooling/inspection.hpp"
#include "inspect/derived.hpp"
#include "inspect/pictures/paint.hpp"
#include "wording.hpp"

namespace atoll_v1::atoll {
namespace {

bool is_number(std::string_view text) {
  return !text.empty() && text.find_first_not_of("0123456789") == std::string_view::npos;
}

// Removes the boot id and the namespace from an id: "node0/gpu0" for
// "node0/6f0e.../4026531840/gpu0".
std::string short_id(const std::string& id) {
  const auto boot = id.find('/');
  const auto space = boot == std::string::npos ? boot : id.find('/', boot + 1);
  if (space == std::string::npos) return id;
  const auto end = std::min(id.find('/', space + 1), id.size());
  if (!is_number(std::string_view(id).substr(space + 1, end - space - 1))) return id;
  return id.substr(0, boot) + id.substr(end);
}

// Shortens a list of subjects: "node0/gpu0-3, node1/gpu2 and 6 more".
std::string subjects_text(const std::vector<std::string>& subjects) {
  std::vector<std::string> ids;
  ids.reserve(subjects.size());
  for (const std::string& subject : subjects) ids.push_back(printable(short_id(subject)));
  return DisplayNames(Topology{}).gpus(ids, 6);
}

// Breaks lines at spaces and indents all lines but the first.
std::string wrapped(std::string_view text, std::size_t indent, std::size_t width) {
  std::string lines;
  std::size_t column = 0;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find(' '), text.size());
    const std::string_view word = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (column > 0 && column + 1 + word.size() > width) {
      lines += fmt::format("\n{:{}}", "", indent);
      column = 0;
    }
    if (column > 0) lines += ' ', ++column;
    lines += word;
    column += word.size();
  }
  return lines;
}

void append_finding(std::string& text, const Finding& finding, Colour colour) {
  constexpr std::size_t indent = 12, width = 86;
  text += fmt::format("  {}  {}", paint(colour, Ink::bold, printable(finding.id)),
                      wrapped(subjects_text(finding.subjects), indent, width));
  while (text.ends_with(' ')) text.pop_back();
  text += '\n';
  const std::array<std::pair<std::string_view, const std::string*>, 3> parts{
      {{"seen", &finding.evidence}, {"costs", &finding.consequence}, {"fix", &finding.fix}}};
  for (const auto& [label, part] : parts)
    if (!part->empty())
      text += fmt::format("    {}{:{}}{}\n", paint(colour, Ink::dim, label), "",
                          indent - 4 - label.size(), wrapped(printable(*part), indent, width));
}

std::size_t count(const Diagnosis& diagnosis, Severity severity) {
  return static_cast<std::size_t>(
      std::ranges::count(diagnosis.findings, severity, &Finding::severity));
}

std::size_t count(const Diagnosis& diagnosis, CheckStatus status) {
  return static_cast<std::size_t>(std::ranges::count(diagnosis.checks, status, &Check::status));
}

// Shortens the reason of a check that could not run. Leaves out the names of missing facts, which
// mean nothing outside the program.
std::string readable_reason(std::string_view reason) {
  constexpr std::string_view missing = "no source provides ";
  std::string known;
  for (std::string_view rest = reason; !rest.empty();) {
    const std::size_t end = std::min(rest.find("; "), rest.size());
    const std::string_view part = rest.substr(0, end);
    rest.remove_prefix(std::min(end + 2, rest.size()));
    if (!part.starts_with(missing)) known += fmt::format("{}{}", known.empty() ? "" : "; ", part);
  }
  return known.empty() ? "no source provides what a check needs" : printable(known);
}

// Lists the checks that could not run, grouped by reason.
void append_not_checked(std::string& text, const Diagnosis& diagnosis, Colour colour) {
  constexpr std::size_t indent = 6, width = 92;
  std::map<std::string, std::vector<std::string>> by_reason;
  for (const Check& check : diagnosis.checks) {
    if (check.status == CheckStatus::not_checked)
      by_reason[readable_reason(check.reason)].push_back(check.id);
  }
  if (by_reason.empty()) return;
  text += fmt::format("{}\n", paint(colour, Ink::dim, "not checked"));
  for (const auto& [reason, ids] : by_reason)
    text +=
        fmt::format("    {}\n      {}\n", paint(colour, Ink::dim, wrapped(reason, indent, width)),
                    wrapped(fmt::format("{}", fmt::join(ids, ", ")), indent, width));
}

// Returns the first line: the number of findings, or that nothing would make the machine slow.
std::string verdict(const Diagnosis& diagnosis, Colour colour) {
  const std::size_t infos = count(diagnosis, Severity::info), all = diagnosis.findings.size();
  if (all > infos)
    return paint(colour, Ink::bold,
                 plural(all, "finding") + (all == 1 ? "" : ", the most severe first"));
  std::string text = "nothing found that would make it slow";
  if (infos > 0) text += fmt::format(" ({} info)", infos);
  const std::size_t checks = diagnosis.checks.size();
  const auto idle =
      static_cast<std::size_t>(std::ranges::count_if(diagnosis.checks, [](const Check& check) {
        return check.status == CheckStatus::not_checked && has_nothing_to_examine(check.reason);
      }));
  const std::size_t blind = count(diagnosis, CheckStatus::not_checked) - idle;
  if (idle + blind > 0)
    text +=
        fmt::format("; {} of {} made; not made:", checks - idle - blind, plural(checks, "check"));
  if (idle > 0) text += fmt::format(" {} (no GPUs, NICs, ranks or the like to examine)", idle);
  if (blind > 0) text += fmt::format("{} {} (facts are missing)", idle > 0 ? "," : "", blind);
  return paint(colour, Ink::bold, text);
}

std::string summary(const Diagnosis& diagnosis, Colour colour, bool are_listed) {
  const std::size_t errors = count(diagnosis, Severity::error),
                    warnings = count(diagnosis, Severity::warning),
                    ok = count(diagnosis, CheckStatus::ok),
                    not_checked = count(diagnosis, CheckStatus::not_checked);
  const auto shown = [&](Ink ink, std::size_t number, const std::string& words) {
    return number == 0 ? words : paint(colour, ink, words);
  };
  return fmt::format(
      "{}, {}, {} info; {}, {} not checked{}\n", shown(Ink::red, errors, plural(errors, "error")),
      shown(Ink::yellow, warnings, plural(warnings, "warning")), count(diagnosis, Severity::info),
      shown(Ink::green, ok, fmt::format("{} ok", plural(ok, "check"))), not_checked,
      are_listed || not_checked == 0 ? "" : " (-v says why)");
}

}  // namespace

std::string to_report(const Diagnosis& diagnosis, Colour colour, PassedChecks passed) {
  const bool are_listed = passed == PassedChecks::listed;
  std::string text = verdict(diagnosis, colour) + '\n';
  if (!diagnosis.findings.empty() || are_listed) text += '\n';
  for (const Severity severity : {Severity::error, Severity::warning, Severity::info}) {
    const std::size_t number = count(diagnosis, severity);
    if (number == 0) continue;
    std::string title(severity == Severity::info ? "information" : name(severity));
    if (severity != Severity::info && number > 1) title += 's';
    text += fmt::format("{}\n", paint(colour, ink_of(severity), title));
    for (const Finding& finding : diagnosis.findings)
      if (finding.severity == severity) append_finding(text, finding, colour);
    text += '\n';
  }
  if (are_listed && count(diagnosis, CheckStatus::ok) > 0) {
    text += fmt::format("{}\n", paint(colour, Ink::green, "ok"));
    for (const Check& check : diagnosis.checks)
      if (check.status == CheckStatus::ok)
        text += fmt::format("    {}: {}\n", printable(check.id), printable(check.title));
  }
  if (are_listed) append_not_checked(text, diagnosis, colour);
  return text + summary(diagnosis, colour, are_listed);
}

}  // namespace atoll_v1::atoll
