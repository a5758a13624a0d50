#include "tests/simulation/checker/checker.h"

#include <algorithm>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"

namespace sluice::simulation {

Checker::Checker(ToyModel* model, const v1::JobSpec& job, const v1::Layout& layout)
    : model_(*model), job_(job), layout_(layout), index_(model->table(), layout) {}

void Checker::Fail(std::string what) {
  if (failure_.empty()) failure_ = std::move(what);
}

uint32_t Checker::TensorOf(uint32_t partition, size_t place) const {
  return layout_.blocks(static_cast<int>(index_.BlocksOfPartition(partition)[place])).tensor();
}

bool Checker::IsSilent(const PartitionFacts& content) const {
  for (size_t i = 0; i < content.blocks.size(); ++i) {
    if (!model_.IsSilent(TensorOf(content.partition, i))) return false;
  }
  return true;
}

Checker::Tags Checker::TagsOf(const PartitionFacts& content) {
  Tags tags;
  for (const Elements3& block : content.blocks) tags.push_back(block[1]);
  return tags;
}

std::string Checker::Where(const ShardNow& now, const PartitionFacts& content) const {
  return absl::StrCat("partition ", content.partition, " on shard ", now.incarnation % 1000,
                      " in view ", ShortName(now.view), " at version ", content.version);
}

// ---- views and promises

void Checker::OnView(const v1::View& view) {
  const std::string bytes = view.SerializeAsString();
  const auto [it, added] = views_.emplace(Order(view.id()), bytes);
  if (!added && it->second != bytes) {
    Fail(absl::StrCat("two views with the id ", ShortName(view.id())));
  }
  known_views_[Order(view.id())] = view;
}

size_t Checker::MembersOf(const v1::ViewId& view) const {
  const auto known = known_views_.find(Order(view));
  return known == known_views_.end() ? 0 : static_cast<size_t>(known->second.workers_size());
}

void Checker::OnPauseReply(const ShardNow& now) {
  std::string state;
  for (const std::vector<PartitionFacts>* contents : {&now.partitions, &now.copies}) {
    for (const PartitionFacts& content : *contents) {
      absl::StrAppend(&state, content.partition, ":", content.version, ";");
      for (const Elements3& block : content.blocks) {
        absl::StrAppend(&state, block[0], ",", block[1], ";");
      }
    }
    absl::StrAppend(&state, "|");
  }
  promises_[now.incarnation] = {state, now.clocks};
}

void Checker::CheckPromise(const ShardNow& now) {
  auto it = promises_.find(now.incarnation);
  if (it == promises_.end()) return;
  const auto before = it->second;
  OnPauseReply(now);
  if (promises_[now.incarnation] != before) {
    Fail(absl::StrCat("shard ", now.incarnation % 1000,
                      " changed between its reply to a Pause and the Install (R2)"));
  }
}

void Checker::CheckOwner(const ShardNow& now, uint32_t partition) {
  const auto [it, added] =
      owners_.emplace(std::make_pair(Order(now.view), partition), now.incarnation);
  if (!added && it->second != now.incarnation) {
    Fail(absl::StrCat("partition ", partition, " has two owners in view ", ShortName(now.view)));
  }
}

bool Checker::IsLeftOut(const ShardNow& now) const {
  for (auto it = known_views_.rbegin(); it != known_views_.rend(); ++it) {
    if (std::get<0>(it->first) != now.view.attempt()) continue;
    const auto& shards = it->second.shards();
    return std::none_of(shards.begin(), shards.end(), [&](const v1::View::Shard& shard) {
      return shard.process().incarnation() == now.incarnation;
    });
  }
  return false;
}

void Checker::OnShard(const ShardNow& now) {
  CheckPromise(now);
  ForgetDropped(now);
  for (const PartitionFacts& copy : now.copies) {
    if (synchronous()) {
      CheckVersion(now, copy);
    } else {
      CheckUpdates(now, copy);
    }
  }
  for (const PartitionFacts& content : now.partitions) {
    CheckOwner(now, content.partition);
    if (synchronous()) {
      CheckVersion(now, content);
    } else {
      CheckUpdates(now, content);
    }
  }

  if (synchronous()) CheckCommitted(now);
  if (!synchronous() && last_view_[now.incarnation] != Order(now.view)) {
    // The first event in this view: the shard has just handled the Install.
    last_view_[now.incarnation] = Order(now.view);
    for (const PartitionFacts& content : now.partitions) CheckAtInstall(now, content);
    for (const PartitionFacts& copy : now.copies) CheckAtInstall(now, copy);
  }
}

// A copy that is dropped may be made again later.
void Checker::ForgetDropped(const ShardNow& now) {
  std::set<uint32_t> held;
  for (const auto* contents : {&now.partitions, &now.copies}) {
    for (const PartitionFacts& content : *contents) held.insert(content.partition);
  }
  for (uint32_t partition = 0; partition < index_.partitions(); ++partition) {
    if (held.count(partition) > 0) continue;
    applied_.erase({now.view.attempt(), now.incarnation, partition});
  }
}

// All partitions, and all copies that a view begins with, have the same updates.
void Checker::CheckAtInstall(const ShardNow& now, const PartitionFacts& content) {
  if (IsSilent(content)) return;
  const Applied& applied = applied_[{now.view.attempt(), now.incarnation, content.partition}];
  const auto [it, added] = at_install_.emplace(Order(now.view), applied.updates);
  if (added || it->second == applied.updates) return;
  Fail(absl::StrCat("at the Install of view ", ShortName(now.view), ", ", Where(now, content),
                    " has ", applied.updates.size(),
                    " updates, and another partition has a different set of ", it->second.size()));
}

// ---- readers

void Checker::OnSnapshot(const v1::Snapshot& snapshot, const std::vector<Elements3>& tensors) {
  if (synchronous() && !drops_stragglers()) {
    for (uint32_t tensor = 0; tensor < tensors.size(); ++tensor) {
      if (tensors[tensor][0] == model_.ExpectedSum(snapshot.version(), tensor)) continue;
      return Fail(absl::StrCat("a reader's snapshot is not version ", snapshot.version()));
    }
    return;
  }
  if (synchronous()) return OnEvaluate(tensors);

  std::optional<std::set<double>> updates;
  for (uint32_t partition = 0; partition < index_.partitions(); ++partition) {
    PartitionFacts content;
    content.partition = partition;
    for (uint32_t block : index_.BlocksOfPartition(partition)) {
      content.blocks.push_back(tensors[layout_.blocks(static_cast<int>(block)).tensor()]);
    }

    if (content.blocks.empty() || IsSilent(content)) continue;
    const std::optional<Applied> applied = Origin(content);
    if (!applied) return Fail("a reader's snapshot holds a content that never existed");
    if (updates && *updates != applied->updates) {
      return Fail("two partitions of a reader's snapshot have different updates");
    }
    updates = applied->updates;
  }
}

// ---- checkpoints, end of the job

void Checker::OnFile(const v1::CheckpointRef& ref, const PartitionFacts& content) {
  const RefKey key = {ref.attempt(), ref.step()};
  files_[key][content.partition] = content;
}

void Checker::OnCheckpointIndex(const v1::CheckpointIndex& checkpoint_index) {
  const RefKey key = {checkpoint_index.checkpoint().attempt(),
                      checkpoint_index.checkpoint().step()};
  const std::map<uint32_t, PartitionFacts>& files = files_[key];

  CheckLoss(checkpoint_index);
  for (uint32_t partition = 0; partition < index_.partitions(); ++partition) {
    if (index_.IsEmpty(partition)) continue;
    auto file = files.find(partition);
    if (file == files.end()) {
      return Fail(absl::StrCat("the checkpoint index of step ", key.second, " lacks partition ",
                               partition));
    }

    if (!synchronous()) {
      for (size_t i = 0; i < file->second.blocks.size(); ++i) {
        const uint32_t tensor = TensorOf(partition, i);
        if (model_.IsSilent(tensor)) continue;
        double expected = model_.Initial(tensor)[0];
        for (const v1::Range& range : checkpoint_index.ledger().applied()) {
          expected += model_.SumOf({range.begin(), range.end()}, tensor);
        }
        if (file->second.blocks[i][0] != expected) {
          return Fail(absl::StrCat("partition ", partition, " of the checkpoint of ", key.second,
                                   " updates does not have the samples of its ledger"));
        }
      }
      continue;
    }

    if (file->second.version != key.second) {
      return Fail(absl::StrCat("partition ", partition, " of the checkpoint of step ", key.second,
                               " has version ", file->second.version));
    }

    for (size_t i = 0; i < file->second.blocks.size() && !drops_stragglers(); ++i) {
      if (file->second.blocks[i][0] != model_.ExpectedSum(key.second, TensorOf(partition, i))) {
        return Fail(absl::StrCat("partition ", partition, " of the checkpoint of step ", key.second,
                                 " does not have the content of that version"));
      }
    }

    auto truth = truth_.find({key.first, partition, key.second});
    if (truth != truth_.end() && truth->second != TagsOf(file->second)) {
      return Fail(absl::StrCat("partition ", partition, " of the checkpoint of step ", key.second,
                               " is not the committed version"));
    }
  }
}

void Checker::CheckLoss(const v1::CheckpointIndex& checkpoint_index) {
  if (!synchronous() || drops_stragglers()) return;
  const uint64_t step = checkpoint_index.checkpoint().step();
  for (const v1::Metric& metric : checkpoint_index.metrics()) {
    if (metric.name() != "loss") continue;
    const double expected = model_.LossOf({model_.ExpectedSum(step, 0), 0, 0});
    if (metric.value() == expected) continue;
    Fail(absl::StrCat("the checkpoint of step ", step, " has the loss ", metric.value(),
                      " of its evaluation, not ", expected));
  }
}

void Checker::OnEnd(uint64_t total, const std::optional<v1::CheckpointIndex>& newest) {
  if (!newest) return Fail("the job ended without a checkpoint");
  if (synchronous()) {
    if (newest->checkpoint().step() != total) {
      Fail(absl::StrCat("the job ended with a checkpoint of step ", newest->checkpoint().step(),
                        " of ", total));
    }
    return;
  }
  IntervalSet wanted;
  wanted.Add(Interval{0, total});
  absl::StatusOr<IntervalSet> applied = IntervalSet::FromProtos(newest->ledger().applied());
  if (!applied.ok() || !(*applied == wanted)) {
    Fail(absl::StrCat("the job ended with ", applied.ok() ? applied->Count() : 0, " samples of ",
                      total));
  }
}

}  // namespace sluice::simulation
