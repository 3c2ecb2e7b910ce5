// Plots bus bandwidth over size as a page for a browser.
#pragma once

#include <nlohmann/json.hpp>
#include <span>

#include "sweep.hpp"

namespace busbw {

// The data of the page: one curve for each collective, type, reduction and place (in place or out of
// place), and its limit where that is known. Pure function.
nlohmann::json plot_of(std::span<const Table> tables);

}  // namespace busbw
