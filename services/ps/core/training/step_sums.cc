#include "services/ps/core/training/step_sums.h"

#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "services/common/check.h"
#include "services/common/status_macros.h"
#include "services/common/text/utf8.h"
#include "services/protocol/worker_limits.h"
#include "services/ps/core/base/check_errors.h"

namespace sluice::ps {
namespace {

std::vector<double> NumbersOf(const absl::Cord& payload) {
  std::vector<double> numbers(payload.size() / sizeof(double));
  char* to = reinterpret_cast<char*>(numbers.data());
  for (absl::string_view chunk : payload.Chunks()) {
    std::memcpy(to, chunk.data(), chunk.size());
    to += chunk.size();
  }
  return numbers;
}

absl::Cord PayloadOf(const std::vector<double>& numbers) {
  return absl::Cord(absl::string_view(reinterpret_cast<const char*>(numbers.data()),
                                      numbers.size() * sizeof(double)));
}

// "a sum of 64 numbers for batch norm 'bn1', forward"; no sum at all.
std::string Describe(const std::string& name, const absl::Cord& payload) {
  if (name.empty()) return "no further sum";
  return absl::StrCat("a sum of ", payload.size() / sizeof(double), " numbers for ",
                      CleanUtf8(name, kMaxSumNameBytes));
}

}  // namespace

void StepSums::Reset() {
  place_ = {};
  parts_.clear();
  finished_.reset();
}

bool StepSums::Computes(size_t member, uint64_t step) const {
  if (!state_.plan().has_value()) return false;
  for (const Interval& range : state_.view()->Assigned(member).Intervals()) {
    if (!state_.plan()->PositionsOf(step, {range.begin, range.end}).empty()) return true;
  }
  return false;
}

absl::Status StepSums::Check(size_t member, const v1::StepSum& part,
                             const absl::Cord& payload) const {
  if (state_.job().training().sync() != v1::TrainingSpec::BATCH_NORM) {
    return Invalid("a part of a sum in a job without `sync: BatchNorm`");
  }
  if (!state_.view()->is_arbiter()) return Invalid("this shard does not own partition 0");
  if (part.name().size() > kMaxSumNameBytes || payload.size() > kMaxSumBytes) {
    return Invalid("a part of a sum with a name of ", part.name().size(), " bytes and ",
                   payload.size(), " bytes of numbers; at most ", kMaxSumNameBytes, " and ",
                   kMaxSumBytes, " are allowed");
  }
  if (payload.size() % sizeof(double) != 0 || payload.empty() != part.name().empty()) {
    return Invalid("a part of a sum has ", payload.size(), " bytes and the name '",
                   CleanUtf8(part.name(), kMaxSumNameBytes), "'");
  }
  const uint64_t last = state_.LastStep();
  if (part.step() > state_.LowestVersion() || (last > 0 && part.step() >= last)) {
    return Invalid("a part of a sum of step ", part.step(), " in a job of ", last,
                   " steps, while a partition of this shard is at version ",
                   state_.LowestVersion());
  }
  if (!Computes(member, part.step())) {
    return Invalid("a part of a sum of step ", part.step(), ", in which the sender has no samples");
  }
  return absl::OkStatus();
}

absl::Status StepSums::OnPart(const Stream& stream, const v1::StepSum& part,
                              const absl::Cord& payload) {
  SLUICE_DCHECK(state_.MayChange(), "R2: a shard that keeps a promise takes no part of a sum");
  const size_t member = *state_.view()->MemberIndex(stream.incarnation());
  RETURN_IF_ERROR(Check(member, part, payload));

  const Place place{part.step(), part.number()};
  if (finished_.has_value() && place <= finished_->place) {
    if (place == finished_->place) Answer(stream);
    return absl::OkStatus();
  }
  if (!parts_.empty() && place < place_) return absl::OkStatus();

  const bool next = finished_.has_value() && finished_->place.first == part.step();
  const uint32_t expected = next ? finished_->place.second + 1 : 0;
  if (part.number() != expected) {
    return Invalid("a part of sum ", part.number(), " of step ", part.step(), " while sum ",
                   expected, " is the next one");
  }

  // Parts of an older step are those of members that were done with it.
  if (place_ != place) parts_.clear();
  place_ = place;
  Part received{part.name(), payload};
  if (parts_.count(member) > 0 || !Fits(member, received)) return absl::OkStatus();
  parts_[member] = std::move(received);
  Finish();
  return absl::OkStatus();
}

bool StepSums::Fits(size_t member, const Part& part) {
  if (parts_.empty()) return true;
  const auto& [other, first] = *parts_.begin();
  if (part.name == first.name && part.payload.size() == first.payload.size()) return true;
  const auto index = [this](size_t m) {
    return state_.view()->proto().workers(static_cast<int>(m)).process().index();
  };
  failure_.Fail(absl::StrCat(
      "`sync: BatchNorm`: in step ", place_.first, " worker ", index(other), " needs ",
      Describe(first.name, first.payload), ", and worker ", index(member), " needs ",
      Describe(part.name, part.payload),
      ": every worker must run the same batch norms in the same order in each step, whatever its "
      "samples are"));
  return false;
}

void StepSums::Finish() {
  for (size_t member = 0; member < state_.view()->members(); ++member) {
    if (Computes(member, place_.first) && parts_.count(member) == 0) return;
  }

  // In the order of members, so that the bits do not depend on the order of arrival.
  std::vector<double> sum = NumbersOf(parts_.begin()->second.payload);
  for (auto part = std::next(parts_.begin()); part != parts_.end(); ++part) {
    const std::vector<double> more = NumbersOf(part->second.payload);
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += more[i];
  }

  finished_ = Sum{place_, PayloadOf(sum)};
  for (const auto& [member, part] : std::exchange(parts_, {})) {
    const Stream* const stream =
        streams_.Find(v1::WORKER, state_.view()->MemberIncarnation(member));
    // A member without a stream asks again on its next one.
    if (stream != nullptr) Answer(*stream);
  }
}

void StepSums::Answer(const Stream& stream) const {
  if (finished_->payload.empty()) return;
  v1::Header header = state_.NewHeader();
  v1::StepSumAnswer& answer = *header.mutable_step_sum_answer();
  answer.set_step(finished_->place.first);
  answer.set_number(finished_->place.second);
  out_.Send(stream.id, std::move(header), finished_->payload);
}

}  // namespace sluice::ps
