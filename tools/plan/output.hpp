// Prints and writes the results of a search. `found` is never empty.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "plan/flags.hpp"
#include "plan/search.hpp"

namespace plan {

// Warns on standard error of curves that no collective of a candidate uses.
void warn_of_curves(const std::vector<std::string>& curves, const std::vector<Candidate>& found);

// Warns on standard error of operations that --machine has no time for, in the lines of the table.
void warn_of_guesses(const std::vector<Candidate>& found, const Flags& flags);

// Prints the table, and what the flags ask for: the growth over hosts, hours and cost.
void print(const std::vector<Candidate>& found, const Scaling& scaling, const Flags& flags);

// Write --json and --html. Throw Error(io) if the file cannot be written.
void write_json(const std::vector<Candidate>& found, const Flags& flags);
void write_page(const std::vector<Candidate>& found, const Scaling& scaling, const Flags& flags);

// --- page.cpp: a page with the ranked candidates, one step of the best, its memory, and its growth
// ---

// Returns one HTML document that needs no other file. `found` has at least one candidate; `remarks`
// are sentences without a full stop, shown below the figures.
std::string page(const std::vector<Candidate>& found, const Scaling& scaling,
                 const std::vector<std::string>& remarks);

// A candidate for --json and for the page, where `first` is the best one.
nlohmann::json entry_of(const Candidate& candidate, const Candidate& first);

// A part of the memory of a rank.
struct MemoryPart {
  const char* key;  // name of the member of fsdp::MemoryPlan
  const char* name;
  std::uint64_t bytes;
};
std::vector<MemoryPart> memory_parts(const Job& job, const Prediction& prediction);

// --- advice.cpp: why the best candidate wins, and what makes a job fit ---

// Why the first candidate is faster than the best one of another strategy. "" if there is no other.
std::string reason(const std::vector<Candidate>& found);

// Returns lines for a job that does not fit: changes that save memory, each with what it saves and
// what it costs, the cheapest first. If no single change makes the job fit, the last line has the
// changes that do so together, or the number of hosts on which the job fits.
std::vector<std::string> savings(const Job& job, const Prediction& prediction);

// Tells that the fastest candidate needs nearly all memory, and which needs less; "" otherwise.
std::string tight(const std::vector<Candidate>& found);

}  // namespace plan
