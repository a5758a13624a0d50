#include "services/ps/core/state/partition.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "services/common/check.h"
#include "services/common/status_macros.h"

namespace sluice::ps {
namespace {

std::string RangeName(const Interval& range) {
  return absl::StrCat("[", range.begin, ", ", range.end, ")");
}

std::string Text(const Partition::Contribution& contribution) {
  return absl::StrCat(contribution.samples, " samples in ", contribution.microbatches,
                      " microbatches of weight ", contribution.weight);
}

}  // namespace

Partition::Partition(std::shared_ptr<const ShardModel> model, uint32_t id, uint64_t version,
                     std::vector<BlockState> blocks)
    : model_(std::move(model)),
      id_(id),
      first_block_(model_->FirstBlock(id)),
      version_(version),
      blocks_(std::move(blocks)),
      row_versions_(blocks_.size()),
      sums_(blocks_.size()),
      received_(blocks_.size()) {
  SLUICE_CHECK(blocks_.size() == model_->BlockCount(id), "a partition is held whole");
}

const std::vector<BlockState>* Partition::At(uint64_t version) const {
  if (version == version_) return &blocks_;
  if (version + 1 == version_ && undo_.has_value()) return &*undo_;
  return nullptr;
}

std::shared_ptr<PartitionContent> Partition::Pin(uint64_t version) const {
  const std::vector<BlockState>* const blocks = At(version);
  if (blocks == nullptr) return nullptr;

  auto content = std::make_shared<PartitionContent>();
  content->model = model_;
  content->partition = id_;
  content->version = version;
  content->blocks = *blocks;
  return content;
}

void Partition::Reset(size_t members, bool selective) {
  for (GradientSum& sum : sums_) sum.Clear();
  selective_ = selective;
  sums_of_.clear();
  if (selective) sums_of_.assign(members, std::vector<GradientSum>(blocks_.size()));
  for (auto& received : received_) received.clear();
  members_.assign(members, Member());
  completions_ = 0;
}

absl::StatusOr<bool> Partition::IsNew(const Source& source, const ReceivedBlock& block) const {
  const size_t place = block.block - first_block_;
  SLUICE_DCHECK(place < blocks_.size(), "a block is added to its own partition");
  SLUICE_DCHECK(source.member < members_.size(), "contributions come from members");

  const BlockInfo& info = Info(place);
  if (info.kind == v1::COUNTER) {
    return absl::InvalidArgumentError(
        absl::StrCat("nothing can be pushed to counter '", model_->TensorName(info), "'"));
  }

  if (members_[source.member].dropped) return false;
  if (source.allow_repeats) return true;
  for (const Received& before : received_[place]) {
    if (before.member != source.member) continue;
    if (before.microbatches == source.microbatches) return false;
    if (before.microbatches.begin < source.microbatches.end &&
        source.microbatches.begin < before.microbatches.end) {
      return absl::InvalidArgumentError(absl::StrCat(
          "microbatches ", RangeName(source.microbatches), " of ", model_->BlockName(info),
          " overlap ", RangeName(before.microbatches), ", which arrived earlier"));
    }
  }

  if (members_[source.member].complete) {
    return absl::InvalidArgumentError(
        absl::StrCat(model_->BlockName(info), " arrives after the completion of partition ", id_));
  }
  return true;
}

absl::Status Partition::Add(const Source& source, const ReceivedBlock& block, BlockPool& pool) {
  const size_t place = block.block - first_block_;
  const BlockInfo& info = Info(place);
  SLUICE_DCHECK(source.allow_repeats || !members_[source.member].complete,
                "a member that is complete contributes nothing more");
  SLUICE_DCHECK(!members_[source.member].dropped, "a dropped member contributes nothing");

  GradientSum& sum = selective_ ? sums_of_[source.member][place] : sums_[place];
  RETURN_IF_ERROR(source.tree_node
                      ? sum.AddNode(info, block.codec, block.payload, source.microbatches.begin,
                                    source.microbatches.size(), pool)
                      : sum.Add(info, block.codec, block.payload, pool),
                  absl::Status(_.code(), absl::StrCat(model_->BlockName(info), ": ", _.message())));

  received_[place].push_back({source.member, source.microbatches});
  return absl::OkStatus();
}

absl::Status Partition::Complete(size_t member, const Contribution& contribution, bool by_set) {
  Member& m = members_[member];
  if (m.dropped) return absl::OkStatus();

  // A repetition must be equal to the first.
  if (m.complete && by_set) {
    const Contribution& first = m.contribution;
    if (first.samples == contribution.samples && first.microbatches == contribution.microbatches &&
        first.weight == contribution.weight) {
      return absl::OkStatus();
    }
    return absl::InvalidArgumentError(absl::StrCat("partition ", id_, " was complete with ",
                                                   Text(first), " and is now with ",
                                                   Text(contribution)));
  }

  m.complete = true;
  m.contribution = contribution;
  ++completions_;
  SLUICE_DCHECK(!by_set || completions_ <= members_.size(), "a member is complete once in a step");
  return absl::OkStatus();
}

bool Partition::IsComplete(bool by_set) const {
  if (members_.empty()) return false;
  if (!by_set) return completions_ >= members_.size();
  return std::all_of(members_.begin(), members_.end(), [](const Member& m) { return m.complete; });
}

bool Partition::IsComplete(const std::vector<size_t>& members) const {
  return std::all_of(members.begin(), members.end(),
                     [this](size_t member) { return members_[member].complete; });
}

absl::Status Partition::Select(const std::vector<size_t>& members, BlockPool& pool,
                               ParallelRunner& runner) {
  SLUICE_DCHECK(selective_, "members are chosen where contributions are kept apart");
  SLUICE_DCHECK(
      std::all_of(sums_.begin(), sums_.end(), [](const GradientSum& sum) { return sum.empty(); }),
      "the members of a step are chosen once");

  // Members that were not chosen start again with the next version.
  for (size_t member = 0; member < members_.size(); ++member) {
    if (std::find(members.begin(), members.end(), member) != members.end()) continue;
    members_[member] = Member();
    members_[member].dropped = true;
  }

  // The members' order is fixed, so that the sum has the same bits at every copy.
  std::vector<absl::Status> statuses(blocks_.size());
  runner.Run(blocks_.size(), [&](size_t place) {
    for (size_t member : members) {
      statuses[place] = sums_[place].Merge(Info(place), &sums_of_[member][place], pool);
      if (!statuses[place].ok()) return;
    }
  });

  sums_of_.assign(members_.size(), std::vector<GradientSum>(blocks_.size()));
  for (const absl::Status& status : statuses) {
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

Partition::Contribution Partition::total() const {
  Contribution total;
  for (const Member& member : members_) {
    total.samples += member.contribution.samples;
    total.microbatches += member.contribution.microbatches;
    total.weight += member.contribution.weight;
  }
  return total;
}

void Partition::DropGradients() {
  for (size_t place = 0; place < sums_.size(); ++place) {
    if (Info(place).kind == v1::PARAMETER) sums_[place].Clear();
  }
}

absl::Status Partition::MeasureSums(double gradient_scale, std::vector<GradientSum>* sums,
                                    BlockPool& pool, ParallelRunner& runner, GradientNorm* norm,
                                    std::optional<uint32_t>* offender) const {
  SLUICE_DCHECK(sums->size() == blocks_.size(), "a partition has one sum for each block");

  std::vector<GradientNorm> norms(sums->size());
  std::vector<absl::Status> statuses(sums->size());
  runner.Run(sums->size(), [&](size_t place) {
    GradientSum& gradient = (*sums)[place];
    if (gradient.empty()) return;

    Sum sum;
    absl::Status& status = statuses[place];
    status = gradient.Take(Info(place), pool, &sum);
    if (status.ok()) {
      status = MeasureGradient(Info(place), gradient_scale, &sum, pool, &norms[place]);
    }
    gradient.Put(std::move(sum));
  });

  *norm = GradientNorm();
  for (size_t place = 0; place < norms.size(); ++place) {
    if (!statuses[place].ok()) return statuses[place];
    norm->square_sum += norms[place].square_sum;
    if (norms[place].non_finite && !norm->non_finite) {
      norm->non_finite = true;
      *offender = first_block_ + static_cast<uint32_t>(place);
    }
  }
  return absl::OkStatus();
}

absl::Status Partition::Measure(double gradient_scale, BlockPool& pool, ParallelRunner& runner,
                                GradientNorm* norm, std::optional<uint32_t>* offender) {
  return MeasureSums(gradient_scale, &sums_, pool, runner, norm, offender);
}

void Partition::Begin(size_t place, Update* update) const {
  const BlockInfo& info = Info(place);
  const BlockState& now = blocks_[place];
  const RowVersions& versions = row_versions_[place];
  GradientSum& gradient = (*update->sums)[place];
  Writing& writing = update->writings[place];

  writing.touched = !gradient.empty();
  if (writing.touched) writing.status = gradient.Take(info, update->pool, &writing.sum);
  if (!writing.status.ok()) return;

  // Rows are written over an existing version if no reader refers to it. Finish does that, when
  // nothing can fail any more.
  if (writing.touched && versions.settled && MayUpdateRows(info, update->arguments, writing.sum)) {
    writing.rows = writing.sum.rows->parts;
    std::optional<WritableBlock> target;
    const size_t slots = model_->group(info).optimizer->slots().size();
    if (update->keep == Keep::kNothing) target = WritableIfOwned(now, slots);
    if (update->keep == Keep::kUndo && versions.earlier.has_value()) {
      target = WritableIfOwned(versions.earlier->state, slots);
    }
    if (target.has_value()) {
      SLUICE_DCHECK(update->keep == Keep::kNothing || target->parameters != now.parameters,
                    "the current version is not overwritten while it becomes the undo");
      writing.by_rows = true;
      writing.target = *std::move(target);
      writing.status = CheckRows(info, update->arguments, *writing.sum.rows);
      return;
    }
  }

  writing.status =
      UpdateBlock({*model_, info, update->arguments, now},
                  update->base != nullptr ? (*update->base)[place] : nullptr,
                  writing.touched ? &writing.sum : nullptr, update->pool, &writing.next);
}

absl::Status Partition::Write(Update* update) const {
  SLUICE_DCHECK(update->sums->size() == blocks_.size(), "a partition has one sum for each block");
  SLUICE_DCHECK(update->base == nullptr || update->base->size() == blocks_.size(),
                "a version that was pulled has every block");

  update->writings.resize(blocks_.size());
  update->runner.Run(blocks_.size(), [&](size_t place) { Begin(place, update); });

  for (size_t place = 0; place < blocks_.size(); ++place) {
    const absl::Status& status = update->writings[place].status;
    if (status.ok()) continue;
    return absl::Status(status.code(),
                        absl::StrCat(model_->BlockName(Info(place)), ": ", status.message()));
  }
  return absl::OkStatus();
}

std::vector<BlockState> Partition::Finish(Update* update) {
  update->runner.Run(blocks_.size(), [&](size_t place) {
    Writing& writing = update->writings[place];
    RowVersions& versions = row_versions_[place];
    if (writing.by_rows) {
      const bool in_place = update->keep == Keep::kNothing;
      writing.next = UpdateRows(
          {*model_, Info(place), update->arguments, blocks_[place]}, writing.target,
          in_place ? absl::Span<const RowPart>() : versions.earlier->behind, *writing.sum.rows);
    }

    // If the block does not change, the undo will be the same block.
    versions.changed.reset();
    if (!writing.touched) return;
    versions.settled = true;
    versions.earlier.reset();
    if (update->keep == Keep::kUndo) versions.changed = std::move(writing.rows);
  });

  std::vector<BlockState> next;
  next.reserve(blocks_.size());
  for (Writing& writing : update->writings) next.push_back(std::move(writing.next));
  return next;
}

void Partition::Advance(std::vector<BlockState> next) {
  SLUICE_DCHECK(next.size() == blocks_.size(), "a version has every block");
  undo_ = std::move(blocks_);
  blocks_ = std::move(next);
  ++version_;
  Reset(members_.size(), selective_);
}

absl::Status Partition::Settle(BlockPool& pool, ParallelRunner& runner) {
  std::vector<absl::Status> statuses(blocks_.size());
  runner.Run(blocks_.size(), [&](size_t place) {
    if (!sums_[place].empty()) statuses[place] = sums_[place].Settle(Info(place), pool);
  });

  for (absl::Status& status : statuses) {
    if (!status.ok()) return std::move(status);
  }
  return absl::OkStatus();
}

absl::Status Partition::Close(const UpdateArguments& arguments, BlockPool& pool,
                              ParallelRunner& runner) {
  return CloseWith(arguments, &sums_, pool, runner);
}

absl::Status Partition::CloseWith(const UpdateArguments& arguments, std::vector<GradientSum>* sums,
                                  BlockPool& pool, ParallelRunner& runner) {
  reserved_.clear();
  Update update{Keep::kUndo, arguments, /*base=*/nullptr, sums, pool, runner, /*writings=*/{}};
  RETURN_IF_ERROR(Write(&update));
  Advance(Finish(&update));
  return absl::OkStatus();
}

void Partition::CloseUnchanged() {
  for (RowVersions& versions : row_versions_) versions.changed.reset();
  Advance(blocks_);
}

absl::Status Partition::Apply(const UpdateArguments& arguments, const std::vector<BlockRef>* base,
                              std::vector<GradientSum>* sums, BlockPool& pool,
                              ParallelRunner& runner) {
  reserved_.clear();
  Update update{Keep::kNothing, arguments, base, sums, pool, runner, /*writings=*/{}};
  RETURN_IF_ERROR(Write(&update));
  blocks_ = Finish(&update);
  return absl::OkStatus();
}

void Partition::DropUndo() {
  if (!undo_.has_value()) return;
  SLUICE_DCHECK(undo_->size() == blocks_.size(), "a version has every block");

  // The record of changed rows makes the old version a target for the next update by rows.
  for (size_t place = 0; place < blocks_.size(); ++place) {
    RowVersions& versions = row_versions_[place];
    if (!versions.changed.has_value()) continue;
    versions.earlier = EarlierBlock{std::move((*undo_)[place]), *std::move(versions.changed)};
    versions.changed.reset();
  }

  undo_.reset();
}

void Partition::RollBack() {
  SLUICE_CHECK(undo_.has_value(), "a rollback needs the previous version");
  blocks_ = *std::move(undo_);
  undo_.reset();
  row_versions_.assign(blocks_.size(), RowVersions());
  --version_;
}

}  // namespace sluice::ps
