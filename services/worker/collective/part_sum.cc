#include "services/worker/collective/part_sum.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <type_traits>
#include <utility>

#include "absl/strings/string_view.h"
#include "services/common/arithmetic/half.h"
#include "services/common/arithmetic/kernels.h"
#include "services/protocol/elements.h"

namespace sluice::worker {
namespace {

uint64_t PresenceBytes(const ReductionPlan& plan) { return (plan.tensors.size() + 7) / 8 * 8; }

// to (+)= the elements at `from`.
template <typename T>
void AddPiece(const char* from, uint64_t count, bool first, uint64_t* to) {
  using Sum = ComputeType<T>;
  const absl::Span<const T> values(reinterpret_cast<const T*>(from), count);
  const absl::Span<Sum> sum(reinterpret_cast<Sum*>(to), count);
  if (!first) {
    sluice::Add(values, sum);
  } else if constexpr (std::is_same_v<T, Sum>) {
    std::copy(values.begin(), values.end(), sum.begin());
  } else {
    Convert(values, sum);
  }
}

template <typename T>
absl::Cord Rounded(const uint64_t* from, uint64_t count,
                   const std::shared_ptr<std::vector<uint64_t>>& memory) {
  using Sum = ComputeType<T>;
  const absl::Span<const Sum> sum(reinterpret_cast<const Sum*>(from), count);
  if constexpr (std::is_same_v<T, Sum>) {
    return absl::MakeCordFromExternal(
        absl::string_view(reinterpret_cast<const char*>(from), count * sizeof(T)),
        [memory](absl::string_view) {});
  } else {
    auto values = std::make_shared<std::vector<T>>(count);
    Convert(sum, absl::MakeSpan(*values));
    return absl::MakeCordFromExternal(
        absl::string_view(reinterpret_cast<const char*>(values->data()), count * sizeof(T)),
        [values](absl::string_view) {});
  }
}

}  // namespace

uint64_t MessageBytes(const ReductionPlan& plan, const ReductionPlan::Part& part) {
  return PresenceBytes(plan) + part.bytes;
}

void WriteMessage(const ReductionPlan& plan, const ReductionPlan::Part& part,
                  const DenseGradients& gradients, absl::Span<char> to) {
  const uint64_t presence = PresenceBytes(plan);
  std::fill_n(to.begin(), presence, '\0');
  for (size_t i = 0; i < gradients.size(); ++i) to[i] = gradients[i].has_value() ? 1 : 0;

  for (const ReductionPlan::Piece& piece : part.pieces) {
    const std::optional<absl::Cord>& gradient = gradients[piece.place];
    if (!gradient) continue;

    const uint64_t element = ElementBytes(piece.dtype);
    char* at = to.data() + presence + piece.at;

    const absl::Cord values = gradient->Subcord(piece.offset * element, piece.count * element);
    for (absl::string_view chunk : values.Chunks()) {
      at = std::copy(chunk.begin(), chunk.end(), at);
    }
  }
}

PartSum::PartSum(const ReductionPlan* plan) : plan_(*plan) {
  for (const ReductionPlan::Piece& piece : plan_.own().pieces) {
    places_.push_back(size_);
    size_ += (piece.count * ElementBytes(ComputeDataType(piece.dtype)) + 7) / 8;
  }
}

void PartSum::Begin() {
  touched_.assign(plan_.own().pieces.size(), false);

  for (Memory& memory : memories_) {
    if (memory.use_count() != 1) continue;
    // Other references may have been dropped on other threads: dropping one more here orders their
    // reads before our writes.
    Memory(memory).reset();
    sum_ = memory;
    return;
  }

  // All are in use: one more.
  sum_ = std::make_shared<std::vector<uint64_t>>(size_);
  memories_.push_back(sum_);
}

void PartSum::Add(absl::Span<const char> message) {
  const uint64_t presence = PresenceBytes(plan_);
  const std::vector<ReductionPlan::Piece>& pieces = plan_.own().pieces;
  for (size_t i = 0; i < pieces.size(); ++i) {
    const ReductionPlan::Piece& piece = pieces[i];
    if (message[piece.place] == 0) continue;

    VisitFloatingPoint(piece.dtype, [&](auto tag) {
      using T = typename decltype(tag)::type;
      AddPiece<T>(message.data() + presence + piece.at, piece.count, !touched_[i],
                  sum_->data() + places_[i]);
    });
    touched_[i] = true;
  }
}

ReducedPart PartSum::Take() {
  const std::vector<ReductionPlan::Piece>& pieces = plan_.own().pieces;

  ReducedPart part(pieces.size());
  for (size_t i = 0; i < pieces.size(); ++i) {
    if (!touched_[i]) continue;
    VisitFloatingPoint(pieces[i].dtype, [&](auto tag) {
      using T = typename decltype(tag)::type;
      part[i] = Rounded<T>(sum_->data() + places_[i], pieces[i].count, sum_);
    });
  }

  sum_.reset();
  return part;
}

}  // namespace sluice::worker
