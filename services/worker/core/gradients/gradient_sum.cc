#include "services/worker/core/gradients/gradient_sum.h"

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "services/common/arithmetic/half.h"
#include "services/common/check.h"
#include "services/protocol/elements.h"
#include "services/protocol/layout.h"

namespace sluice::worker {
namespace {

float Sum(float a, float b) { return a + b; }
double Sum(double a, double b) { return a + b; }
BFloat16 Sum(BFloat16 a, BFloat16 b) { return ToBFloat16(ToFloat(a) + ToFloat(b)); }
Float16 Sum(Float16 a, Float16 b) { return ToFloat16(ToFloat(a) + ToFloat(b)); }

void CopyTo(const absl::Cord& from, char* to) {
  for (absl::string_view chunk : from.Chunks()) {
    std::memcpy(to, chunk.data(), chunk.size());
    to += chunk.size();
  }
}

template <typename T>
absl::Cord AddAs(const absl::Cord& left, const absl::Cord& right) {
  const size_t count = left.size() / sizeof(T);

  // Copies `left` to the sum, and `right` piece by piece to a scratch buffer that fits the cache,
  // because the chunks of the two may have different borders.
  auto sum = std::make_shared<std::vector<T>>(count);
  CopyTo(left, reinterpret_cast<char*>(sum->data()));

  constexpr size_t kPiece = 4096;
  std::vector<T> scratch(std::min(count, kPiece));
  absl::Cord::CharIterator at = right.char_begin();
  for (size_t begin = 0; begin < count; begin += kPiece) {
    const size_t size = std::min(kPiece, count - begin);
    CopyTo(absl::Cord::AdvanceAndRead(&at, size * sizeof(T)),
           reinterpret_cast<char*>(scratch.data()));
    for (size_t i = 0; i < size; ++i) (*sum)[begin + i] = Sum((*sum)[begin + i], scratch[i]);
  }
  SLUICE_DCHECK(at == right.char_end(), "both gradients are added to the end");

  const absl::string_view bytes(reinterpret_cast<const char*>(sum->data()), count * sizeof(T));
  return absl::MakeCordFromExternal(bytes, [sum](absl::string_view) {});
}

}  // namespace

absl::StatusOr<absl::Cord> AddGradients(v1::DataType dtype, const absl::Cord& left,
                                        const absl::Cord& right) {
  const uint64_t element = ElementBytes(dtype);
  if (element == 0 || left.size() != right.size() || left.size() % element != 0) {
    return absl::InvalidArgumentError(absl::StrCat("gradients of ", left.size(), " and ",
                                                   right.size(), " bytes of ",
                                                   v1::DataType_Name(dtype), " cannot be added"));
  }

  absl::Cord sum;
  const bool floating = VisitFloatingPoint(dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    sum = AddAs<T>(left, right);
  });
  if (!floating) {
    return absl::InvalidArgumentError(
        absl::StrCat("gradients of ", v1::DataType_Name(dtype), " cannot be added"));
  }
  return sum;
}

}  // namespace sluice::worker
