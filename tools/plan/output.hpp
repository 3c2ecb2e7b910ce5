// Prints and writes the results of a search.
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

// Warns on standard error if --machine has no time for an operation of a candidate in the table.
void warn_of_guesses(const std::vector<Candidate>& found, const Flags& flags);

// The assumptions behind the predictions of a job, under the keys that --json uses: GPU, links and
// their sources, rows, types of numbers, and which tokens the rate in tokens/s counts.
nlohmann::ordered_json assumptions(const Job& job, const Flags& flags);
// A line for each assumption.
std::string to_text(const nlohmann::ordered_json& assumptions);

// The result of a search. `candidates` is never empty. Each of `remarks` is a sentence without its
// full stop.
struct Findings {
  std::vector<Candidate> candidates{};
  Scaling scaling{};
  nlohmann::ordered_json assumptions{};
  std::vector<std::string> remarks{};
};

// Returns remarks_on(), the strategies that ignore --mesh, and the command lines that train with
// the first candidate and with one that has memory to spare. There is no command line if the
// candidate does not fit, for another framework, or if flags change the model.
std::vector<std::string> remarks(const std::vector<Candidate>& found, const Flags& flags);

// Prints the table, and what the flags ask for: the growth over hosts, hours and cost.
void print(const Findings& findings, const Flags& flags);

// Write --json and --html. Throw Error(io) if the file cannot be written.
void write_json(const Findings& findings, const Flags& flags);
void write_page(Findings findings, const Flags& flags);

// --- page.cpp: a page with the ranked candidates, one step of the best, its memory, and its growth
// ---

// Returns one HTML document that needs no other file.
std::string page(const Findings& findings);

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

// If the best candidate has another mesh than atoll-train plans, how much faster it is, why, and
// the bandwidth of a host below which it is not; "" otherwise. Simulates both on slower fabrics.
std::string other_mesh(const std::vector<Candidate>& found);

// Returns lines for a job that does not fit: changes that save memory, each with what it saves and
// what it costs, the cheapest first. If no single change makes the job fit, the last line has the
// changes that do so together, or the number of hosts on which the job fits.
std::vector<std::string> savings(const Job& job, const Prediction& prediction);

// Returns the results of the functions of advice.cpp as remarks, without empty ones.
std::vector<std::string> remarks_on(const std::vector<Candidate>& found);

// The candidate that needs the least memory, and the number of hosts on which it fits: the fewest
// of 1, 2, 4, ... and those of the job. "" if no candidate fits.
std::string least_memory(const std::vector<Candidate>& found);

// The fastest candidate that leaves a tenth of the memory free; nullptr if there is none.
const Candidate* with_spare_memory(const std::vector<Candidate>& found);

// Tells that the fastest candidate needs nearly all memory, and which needs less; "" otherwise.
std::string tight(const std::vector<Candidate>& found);

}  // namespace plan
