#include "services/ps/core/shard_state.h"

#include <algorithm>
#include <limits>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "services/common/check.h"
#include "services/common/status_macros.h"
#include "services/protocol/codec/codec.h"
#include "services/protocol/ids.h"
#include "services/protocol/job_length.h"

namespace sluice::ps {
namespace {

// The partitions of which the shard holds a whole copy from this Install on, ascending.
std::vector<uint32_t> WholeCopies(const InstalledView& view, const v1::Install& install,
                                  uint64_t self) {
  std::vector<uint32_t> numbers;
  const auto add = [&](const google::protobuf::RepeatedField<uint32_t>& whole,
                       const google::protobuf::RepeatedField<uint32_t>& list) {
    for (const uint32_t number : whole) {
      const uint32_t position = list[static_cast<int>(number)];
      const v1::View::Shard& shard = view.proto().shards(static_cast<int>(position) - 1);
      if (shard.process().incarnation() == self) numbers.push_back(number);
    }
  };
  add(install.whole_followers(), view.proto().follower());
  add(install.whole_targets(), view.proto().target());
  std::sort(numbers.begin(), numbers.end());
  return numbers;
}

}  // namespace

std::vector<uint32_t> OwnedPartitions(
    const google::protobuf::RepeatedPtrField<v1::View::Shard>& shards,
    const google::protobuf::RepeatedField<uint32_t>& owner, uint64_t self,
    const ShardModel& model) {
  std::vector<uint32_t> owned;
  for (uint32_t partition : model.filled()) {
    if (partition >= static_cast<uint32_t>(owner.size())) break;
    const uint32_t position = owner[static_cast<int>(partition)];
    if (position >= static_cast<uint32_t>(shards.size())) continue;
    if (shards[static_cast<int>(position)].process().incarnation() == self) {
      owned.push_back(partition);
    }
  }
  return owned;
}

InstalledView::InstalledView(v1::View view, uint64_t self, const ShardModel& model)
    : view_(std::move(view)) {
  for (const v1::View::Member& member : view_.workers()) {
    member_index_[member.process().incarnation()] = assigned_.size();
    IntervalSet assigned;
    for (const v1::Range& range : member.microbatches()) {
      assigned.Add(FromProto(range));
      microbatches_ = std::max(microbatches_, range.end());
    }
    assigned_.push_back(std::move(assigned));
  }
  SLUICE_DCHECK(member_index_.size() == assigned_.size(), "a member is listed once");
  owned_ = OwnedPartitions(view_.shards(), view_.owner(), self, model);
  is_arbiter_ = view_.owner_size() > 0 &&
                view_.owner(0) < static_cast<uint32_t>(view_.shards_size()) &&
                view_.shards(static_cast<int>(view_.owner(0))).process().incarnation() == self;
}

std::optional<size_t> InstalledView::MemberIndex(uint64_t incarnation) const {
  const auto found = member_index_.find(incarnation);
  if (found == member_index_.end()) return std::nullopt;
  return found->second;
}

bool InstalledView::Owns(uint32_t partition) const {
  return std::binary_search(owned_.begin(), owned_.end(), partition);
}

bool InstalledView::HasCopy(uint32_t partition, uint64_t shard) const {
  const auto names = [&](const google::protobuf::RepeatedField<uint32_t>& list) {
    if (partition >= static_cast<uint32_t>(list.size())) return false;
    const uint32_t position = list[static_cast<int>(partition)];
    return position > 0 &&
           view_.shards(static_cast<int>(position - 1)).process().incarnation() == shard;
  };
  return names(view_.follower()) || names(view_.target());
}

bool InstalledView::HasShard(uint64_t incarnation) const {
  return std::any_of(
      view_.shards().begin(), view_.shards().end(),
      [&](const v1::View::Shard& shard) { return shard.process().incarnation() == incarnation; });
}

ShardState::ShardState(ShardOptions given, ParallelRunner* runner, const ShardRules* kept)
    : options(std::move(given)),
      parallel(runner != nullptr ? *runner : calling_thread_),
      rules(kept != nullptr ? *kept : all_rules_),
      pool(BlockPool::Create(options.max_idle_bytes)) {}

uint64_t ShardState::LowestVersion() const {
  if (!view.has_value()) return 0;
  if (!view->synchronous()) return updates;
  uint64_t lowest = std::numeric_limits<uint64_t>::max();
  for (uint32_t p : view->owned()) {
    SLUICE_DCHECK(Find(p) != nullptr, "a shard holds the partitions that it owns");
    lowest = std::min(lowest, partitions[p]->version());
  }
  return view->owned().empty() ? view->proto().first_step() : lowest;
}

uint64_t ShardState::HighestVersion() const {
  if (!view.has_value()) return 0;
  if (!view->synchronous()) return updates;
  uint64_t highest = view->proto().first_step();
  for (uint32_t p : view->owned()) highest = std::max(highest, partitions[p]->version());
  return highest;
}

uint64_t ShardState::LowestHeld() const {
  uint64_t lowest = std::numeric_limits<uint64_t>::max();
  if (!view->owned().empty()) lowest = LowestVersion();
  for (const auto& [number, copy] : copies) lowest = std::min(lowest, copy->version());
  return lowest == std::numeric_limits<uint64_t>::max() ? view->proto().first_step() : lowest;
}

void ShardState::BeginDecisions(const v1::EvaluationDecisions& begun) {
  decisions = begun;
  learning_rate_factors = {
      {0, begun.learning_rate_factor() == 0 ? 1 : begun.learning_rate_factor()}};
}

void ShardState::AddDecisions(const v1::EvaluationDecisions& newer) {
  if (newer.step() <= decisions.step()) return;
  decisions = newer;
  const double factor = newer.learning_rate_factor() == 0 ? 1 : newer.learning_rate_factor();
  SLUICE_DCHECK(!learning_rate_factors.empty(), "a view has begun with decisions");
  if (factor != learning_rate_factors.back().second) {
    learning_rate_factors.emplace_back(newer.step(), factor);
  }
}

double ShardState::LearningRateFactorAt(uint64_t step) const {
  double factor = 1;
  for (const auto& [from, value] : learning_rate_factors) {
    if (from <= step) factor = value;
  }
  return factor;
}

uint64_t ShardState::LastStep() const { return TotalSteps(job.training(), plan); }

uint64_t ShardState::TotalSamples() const {
  return sluice::TotalSamples(job.training(), training_samples);
}

std::optional<std::string> ShardState::Adopt(const InstalledView& next,
                                             const v1::Install& install) {
  const std::vector<uint32_t> copied = WholeCopies(next, install, self());
  const auto holds = [&](uint32_t number) {
    return Find(number) != nullptr || copies.count(number) > 0;
  };
  for (const std::vector<uint32_t>* numbers : {&next.owned(), &copied}) {
    for (uint32_t number : *numbers) {
      if (holds(number)) continue;
      return absl::StrCat("view ", ShortName(next.id()), " gives partition ", number,
                          " to a shard that does not hold it");
    }
  }

  std::map<uint32_t, std::unique_ptr<Partition>> held = std::move(copies);
  copies.clear();
  for (std::unique_ptr<Partition>& partition : partitions) {
    if (partition != nullptr) held[partition->id()] = std::move(partition);
  }
  for (uint32_t number : next.owned()) partitions[number] = std::move(held[number]);
  for (uint32_t number : copied) copies[number] = std::move(held[number]);
  for (auto& [number, copy] : copies) copy->Reset(0);
  return std::nullopt;
}

bool ShardState::RollBackTo(uint64_t first_step) {
  const auto roll_back = [&](Partition& partition) {
    if (partition.version() == first_step + 1 && partition.has_undo()) partition.RollBack();
    if (partition.version() != first_step) {
      Fail(absl::StrCat("view ", ShortName(view->id()), " begins at step ", first_step,
                        ", partition ", partition.id(), " is at ", partition.version()));
      return false;
    }
    partition.DropUndo();
    return true;
  };
  for (uint32_t number : view->owned()) {
    if (!roll_back(*partitions[number])) return false;
  }
  return std::all_of(copies.begin(), copies.end(),
                     [&](const auto& copy) { return roll_back(*copy.second); });
}

void ShardState::RetainReferences() {
  if (options.references == nullptr || view->members() == 0) return;
  std::vector<v1::ProcessId> members;
  for (const v1::View::Member& worker : view->proto().workers()) {
    members.push_back(worker.process());
  }
  options.references->Retain(members);
}

v1::Header ShardState::NewHeader() const {
  v1::Header header;
  if (view.has_value()) *header.mutable_view() = view->id();
  return header;
}

void ShardState::Fail(std::string reason) {
  if (!failure.empty()) return;
  SLUICE_DCHECK(!reason.empty(), "a failure has a reason: a shard without one continues");
  failure = std::move(reason);
  ReportFailure();
}

void ShardState::ReportFailure() {
  v1::MemberMessage message;
  message.mutable_failure()->set_reason(failure);
  Report(std::move(message));
}

absl::Status SplitPayload(const ShardModel& model, uint32_t partition,
                          const google::protobuf::RepeatedPtrField<v1::BlockHeader>& headers,
                          const absl::Cord& payload, std::vector<ReceivedBlock>* blocks) {
  if (!headers.empty() && partition >= model.partitions()) {
    return absl::InvalidArgumentError(absl::StrCat("there is no partition ", partition));
  }
  blocks->reserve(headers.size());
  absl::flat_hash_set<uint32_t> seen;
  size_t at = 0;
  for (const v1::BlockHeader& header : headers) {
    if (header.block() < model.FirstBlock(partition) ||
        header.block() >= model.FirstBlock(partition + 1)) {
      return absl::InvalidArgumentError(
          absl::StrCat("block ", header.block(), " is not of partition ", partition));
    }
    const BlockInfo& info = model.block(header.block());
    const auto fail = [&](absl::string_view what) {
      return absl::InvalidArgumentError(absl::StrCat(model.BlockName(info), " ", what));
    };
    if (!seen.insert(header.block()).second) return fail("occurs twice in one frame");
    const uint64_t bytes = header.payload_bytes();
    if (header.codec() == v1::CODEC_RAW && bytes != info.bytes) {
      return fail(absl::StrCat("arrived with ", bytes, " bytes; it has ", info.bytes));
    }
    if (payload.size() - at < bytes) {
      return fail(absl::StrCat("ends after the payload's ", payload.size(), " bytes"));
    }
    blocks->push_back({header.block(), header.codec(), payload.Subcord(at, bytes)});
    at += bytes;
    if (header.codec() == v1::CODEC_RAW) continue;
    const absl::StatusOr<const Codec*> codec = FindCodec(header.codec());
    if (!codec.ok()) return fail(absl::StrCat("came with codec ", header.codec(), ": unknown"));
    RETURN_IF_ERROR((*codec)->Validate(blocks->back().payload, info.dtype, info.count),
                    fail(_.message()));
  }
  SLUICE_DCHECK(at <= payload.size(), "no block ends after the payload");
  if (at != payload.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("the payload has ", payload.size(), " bytes, its blocks are ", at));
  }
  return absl::OkStatus();
}

absl::Status SplitPush(const ShardState& state, uint64_t worker, const v1::Push& push,
                       const absl::Cord& payload, std::vector<ReceivedBlock>* blocks) {
  const ShardModel& model = *state.model;
  if (!state.ByReference()) {
    return SplitPayload(model, push.partition(), push.blocks(), payload, blocks);
  }
  google::protobuf::RepeatedPtrField<v1::BlockHeader> headers;
  absl::Cord contents;
  size_t at = 0;
  if (!push.blocks().empty() && push.partition() >= model.partitions()) {
    return absl::InvalidArgumentError(absl::StrCat("there is no partition ", push.partition()));
  }
  uint32_t next = 0;  // rejects a block that occurs twice
  for (const v1::BlockHeader& header : push.blocks()) {
    if (header.block() < std::max(next, model.FirstBlock(push.partition())) ||
        header.block() >= model.FirstBlock(push.partition() + 1)) {
      return absl::InvalidArgumentError(absl::StrCat("block ", header.block(),
                                                     " is not of partition ", push.partition(),
                                                     ", or not after the previous block"));
    }
    next = header.block() + 1;
    if (payload.size() - at < header.payload_bytes()) {
      return absl::InvalidArgumentError(
          absl::StrCat("a reference ends after the payload's ", payload.size(), " bytes"));
    }
    ASSIGN_OR_RETURN(absl::Cord content,
                     state.options.references->Find(worker, model, model.block(header.block()),
                                                    payload.Subcord(at, header.payload_bytes())));
    at += header.payload_bytes();
    v1::BlockHeader& found = *headers.Add();
    found.set_block(header.block());
    found.set_payload_bytes(content.size());
    contents.Append(std::move(content));
  }
  return SplitPayload(model, push.partition(), headers, contents, blocks);
}

}  // namespace sluice::ps
