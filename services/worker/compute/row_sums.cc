#include "services/worker/compute/row_sums.h"

#include <algorithm>
#include <memory>

#include "services/common/arithmetic/half.h"
#include "services/protocol/elements.h"
#include "services/protocol/row_selection.h"

namespace sluice {
namespace {

void Accumulate(float value, float* sum) { *sum += value; }
void Accumulate(double value, double* sum) { *sum += value; }
// Rounded at each addition, as LibTorch does on a CPU.
void Accumulate(BFloat16 value, BFloat16* sum) {
  *sum = ToBFloat16(ToFloat(*sum) + ToFloat(value));
}
void Accumulate(Float16 value, Float16* sum) { *sum = ToFloat16(ToFloat(*sum) + ToFloat(value)); }

}  // namespace

RowSums SumRows(v1::DataType dtype, absl::Span<const int64_t> named, const void* values,
                uint64_t row_elements) {
  RowSums result;
  result.rows.assign(named.begin(), named.end());
  SortRows(&result.rows);

  VisitFloatingPoint(dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const size_t elements = result.rows.size() * row_elements;
    auto sums = std::make_shared<std::vector<T>>(elements, T{});

    const T* from = static_cast<const T*>(values);
    for (int64_t row : named) {
      const auto place =
          std::lower_bound(result.rows.begin(), result.rows.end(), static_cast<uint64_t>(row)) -
          result.rows.begin();
      T* to = sums->data() + static_cast<uint64_t>(place) * row_elements;
      for (uint64_t i = 0; i < row_elements; ++i) Accumulate(from[i], to + i);
      from += row_elements;
    }

    const absl::string_view bytes(reinterpret_cast<const char*>(sums->data()),
                                  elements * sizeof(T));
    result.values = absl::MakeCordFromExternal(bytes, [sums](absl::string_view) {});
  });
  return result;
}

}  // namespace sluice
