#include "loop/odd_one_out.hpp"

#include <map>
#include <string_view>

namespace train {

OddOneOut odd_one_out(const std::vector<std::string>& texts) {
  std::map<std::string_view, int> counts;
  for (const std::string& text : texts) ++counts[text];
  std::size_t usual = 0;
  for (std::size_t rank = 0; rank < texts.size(); ++rank) {
    if (counts[texts[rank]] > counts[texts[usual]]) usual = rank;
  }
  OddOneOut result{-1, static_cast<int>(usual), 0};
  for (std::size_t rank = 0; rank < texts.size(); ++rank) {
    if (texts[rank] == texts[usual]) continue;
    if (result.odd < 0) {
      result.odd = static_cast<int>(rank);
    } else {
      ++result.others;
    }
  }
  return result;
}

}  // namespace train
