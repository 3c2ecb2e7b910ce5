// Which rank of a job differs from the others.
#pragma once

#include <string>
#include <vector>

namespace train {

struct OddOneOut {
  int odd = -1;    // the first rank whose text is not the usual one; -1 if all are equal
  int usual = 0;   // the first rank with the usual text
  int others = 0;  // ranks after `odd` that also differ from the usual text
};

// The usual text is the most frequent one; of several that are equally frequent, that of the lowest
// rank.
OddOneOut odd_one_out(const std::vector<std::string>& texts);

}  // namespace train
