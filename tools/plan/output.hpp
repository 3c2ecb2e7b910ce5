// Prints and writes the results of a search. `found` is never empty.
#pragma once

#include <string>
#include <vector>

#include "plan/flags.hpp"
#include "plan/page.hpp"
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

}  // namespace plan
