#include "atoll/view.hpp"

#include <string>

#include "atoll/error.hpp"

namespace atoll_v1::atoll {

DType dtype_from_name(std::string_view name) {
  for (std::size_t dtype = 0; dtype < atoll_abi::dtypes.size(); ++dtype) {
    if (atoll_abi::dtypes[dtype].name == name) return static_cast<DType>(dtype);
  }
  std::string known;
  for (const auto& dtype : atoll_abi::dtypes) {
    if (!known.empty()) known += &dtype == &atoll_abi::dtypes.back() ? " or " : ", ";
    known += dtype.name;
  }
  throw Error(ErrorCode::invalid_argument,
              "dtype \"" + std::string(name) + "\": expected " + known);
}

}  // namespace atoll_v1::atoll
