// The checks of synchronous training: versions, the set of contributions of each step, and commits.
#include <algorithm>
#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/simulation/checker/checker.h"

namespace sluice::simulation {

void Checker::CheckVersion(const ShardNow& now, const PartitionFacts& content) {
  if (drops_stragglers()) {
    CheckSet(now, content);
  } else {
    CheckElements(now, content);
  }
  if (sums_over_steps()) CheckMarks(now, content);
  if (failed()) return;

  const Tags tags = TagsOf(content);
  const uint64_t attempt = now.view.attempt();
  CheckLineage(Order(now.view), content.partition, content.version, tags,
               absl::StrCat("shard ", now.incarnation % 1000));
  if (!IsLeftOut(now)) last_[{attempt, content.partition, content.version}] = tags;

  // A shard that a newer view leaves out may still close a step that this view has taken back, but
  // never commits it.
  const bool counts = content.version <= now.committed || !IsLeftOut(now);
  auto truth = truth_.find({attempt, content.partition, content.version});
  if (truth != truth_.end() && truth->second != tags && counts) {
    Fail(absl::StrCat(Where(now, content), ": a committed version has changed"));
  }

  auto committed = committed_.find(attempt);
  if (committed != committed_.end() && content.version < committed->second && !IsLeftOut(now)) {
    Fail(absl::StrCat(Where(now, content), ": rolled back below the committed version ",
                      committed->second));
  }
}

void Checker::CheckElements(const ShardNow& now, const PartitionFacts& content) {
  for (size_t i = 0; i < content.blocks.size(); ++i) {
    const uint32_t tensor = TensorOf(content.partition, i);
    const Elements3& block = content.blocks[i];
    if (block[0] != model_.ExpectedSum(content.version, tensor)) {
      return Fail(absl::StrCat(Where(now, content), ": tensor ", tensor,
                               " is not the sum of its samples, each counted once"));
    }
    if (block[2] != model_.ExpectedReal(content.version, tensor)) {
      return Fail(absl::StrCat(Where(now, content), ": tensor ", tensor,
                               " does not have the bits of the fixed tree"));
    }
    if (model_.IsSilent(tensor) && block[1] != 0) {
      return Fail(absl::StrCat(Where(now, content), ": tensor ", tensor,
                               " has no gradient but has changed"));
    }
  }
}

void Checker::OnContribution(double tag, uint64_t step, const PositionRange& positions) {
  contributions_[step][tag] = positions;
}

const std::vector<PositionRange>* Checker::SetOf(uint64_t step, double tags) {
  const auto [it, added] = found_sets_.try_emplace({step, tags});
  if (!added) return it->second ? &*it->second : nullptr;

  // Splits the contributions in two halves. For each sum of the second half, looks for the
  // remainder among the sums of the first half.
  std::vector<std::pair<double, PositionRange>> all(contributions_[step].begin(),
                                                    contributions_[step].end());
  if (all.size() > 36) Fail("the checker cannot handle this many contributions to one step");
  const size_t half = all.size() / 2;

  const auto sum_of = [&](size_t from, uint64_t chosen) {
    double sum = 0;
    for (size_t i = from; chosen != 0; ++i, chosen >>= 1) {
      if ((chosen & 1) != 0) sum += all[i].first;
    }
    return sum;
  };

  std::map<double, uint64_t> sums;
  for (uint64_t chosen = 0; chosen < uint64_t{1} << half; ++chosen)
    sums[sum_of(0, chosen)] = chosen;

  for (uint64_t chosen = 0; chosen < uint64_t{1} << (all.size() - half); ++chosen) {
    const auto rest = sums.find(tags - sum_of(half, chosen));
    if (rest == sums.end()) continue;
    it->second.emplace();
    for (size_t i = 0; i < all.size(); ++i) {
      const bool in = i < half ? (rest->second >> i & 1) != 0 : (chosen >> (i - half) & 1) != 0;
      if (in) it->second->push_back(all[i].second);
    }
    return &*it->second;
  }
  return nullptr;
}

void Checker::CheckSet(const ShardNow& now, const PartitionFacts& content) {
  const uint64_t attempt = now.view.attempt();
  const uint64_t version = content.version;
  std::vector<Elements3>& known = contents_[{attempt, content.partition, version}];
  if (known == content.blocks) return;
  known = content.blocks;
  if (version == 0) return CheckElements(now, content);

  const auto before = contents_.find({attempt, content.partition, version - 1});
  if (before == contents_.end()) return;  // restored
  const uint64_t step = version - 1;
  for (size_t i = 0; i < content.blocks.size(); ++i) {
    const uint32_t tensor = TensorOf(content.partition, i);
    const double tags = content.blocks[i][1] - before->second[i][1];
    const double sum = content.blocks[i][0] - before->second[i][0];
    if (model_.IsSilent(tensor)) {
      if (tags != 0 || sum != 0) {
        Fail(absl::StrCat(Where(now, content), ": tensor ", tensor,
                          " has no gradient but has changed"));
      }
      continue;
    }

    const auto [set, first] = sets_.emplace(std::make_pair(Order(now.view), step), tags);
    if (!first && set->second != tags) {
      return Fail(absl::StrCat(Where(now, content), ": another partition closed step ", step,
                               " with a different set of contributions"));
    }

    const std::vector<PositionRange>* const ranges = SetOf(step, tags);
    if (ranges == nullptr) {
      return Fail(absl::StrCat(Where(now, content),
                               ": the change is not a sum of contributions to step ", step));
    }

    double expected = 0;
    IntervalSet samples;
    for (const PositionRange& range : *ranges) {
      if (samples.Intersects({range.begin, range.end})) {
        return Fail(
            absl::StrCat(Where(now, content), ": samples of step ", step, " are applied twice"));
      }
      samples.Add(Interval{range.begin, range.end});
      expected += model_.SumOf(range, tensor);
    }

    if (sum != expected) {
      return Fail(absl::StrCat(Where(now, content), ": tensor ", tensor,
                               " is not the sum of the participants' samples"));
    }
  }
}

void Checker::OnSum(const v1::ViewId& view, uint64_t step, uint32_t number, const Elements3& sum) {
  const PositionRange all =
      model_.plan().PositionsOf(step, {0, model_.plan().MicrobatchesPerStep()});
  const auto samples = static_cast<double>(all.size());
  if (sum[0] != samples || sum[1] != model_.SumOf(all, 0)) {
    return Fail(absl::StrCat("sum ", number, " of step ", step,
                             " is not that of the step's samples, each counted once"));
  }
  const auto [known, first] =
      step_sums_.try_emplace(std::make_tuple(Order(view), step, number), sum);
  if (!first && known->second != sum) {
    return Fail(absl::StrCat("members received different sums ", number, " of step ", step));
  }
  marks_[step].insert(sum[2] * samples);
}

// A step consists of gradients that were computed with the same sums.
void Checker::CheckMarks(const ShardNow& now, const PartitionFacts& content) {
  const uint64_t attempt = now.view.attempt();
  const bool is_new =
      histories_[{attempt, content.partition, content.version}].insert(content.blocks).second;
  if (!is_new || content.version == 0) return;
  // A version that was taken back has several contents.
  const auto before = histories_.find({attempt, content.partition, content.version - 1});
  if (before == histories_.end()) return;  // restored
  const double divisor = model_.DivisorOf(content.version - 1);
  if (divisor == 0) return;
  const std::set<double>& marks = marks_[content.version - 1];
  const auto follows = [&](const std::vector<Elements3>& blocks) {
    for (size_t i = 0; i < blocks.size(); ++i) {
      if (model_.IsSilent(TensorOf(content.partition, i))) continue;
      if (marks.count((content.blocks[i][1] - blocks[i][1]) * divisor) == 0) return false;
    }
    return true;
  };
  if (std::none_of(before->second.begin(), before->second.end(), follows)) {
    Fail(absl::StrCat(Where(now, content), ": gradients of step ", content.version - 1,
                      " were computed with the sums of different views"));
  }
}

bool Checker::IsVersionOfOneHistory(const std::vector<Elements3>& tensors) const {
  for (const auto& [key, tags] : last_) {
    const auto& [attempt, first, version] = key;
    bool same = true;
    for (uint32_t partition = 0; partition < index_.partitions() && same; ++partition) {
      if (index_.IsEmpty(partition)) continue;
      PartitionFacts content;
      for (uint32_t block : index_.BlocksOfPartition(partition)) {
        content.blocks.push_back(tensors[layout_.blocks(static_cast<int>(block)).tensor()]);
      }
      const auto there = last_.find({attempt, partition, version});
      same = there != last_.end() && there->second == TagsOf(content);
    }
    if (same) return true;
  }
  return false;
}

void Checker::CheckLineage(const ViewKey& view, uint32_t partition, uint64_t version,
                           const Tags& tags, const std::string& who) {
  const auto [it, added] = lineage_.emplace(std::make_tuple(view, partition, version), tags);
  if (!added && it->second != tags) {
    Fail(absl::StrCat("two contents of version ", version, " of partition ", partition,
                      " in one view (", std::get<0>(view), ".", std::get<1>(view), ".",
                      std::get<3>(view), "), one of them on ", who));
  }
}

void Checker::CheckCommitted(const ShardNow& now) {
  const uint64_t attempt = now.view.attempt();
  uint64_t& committed = committed_[attempt];
  if (now.committed <= committed) return;
  committed = now.committed;

  // A view begins with a committed version, even if some shards have not installed the view.
  auto view = known_views_.find(Order(now.view));
  const bool first = view != known_views_.end() && view->second.first_step() == committed;

  for (uint32_t partition = 0; partition < index_.partitions(); ++partition) {
    if (index_.IsEmpty(partition)) continue;
    auto it = last_.find({attempt, partition, committed});
    if (it == last_.end() && first) continue;
    if (it == last_.end()) {
      return Fail(absl::StrCat("version ", committed, " is committed on shard ",
                               now.incarnation % 1000, ", but partition ", partition,
                               " has never had this version"));
    }
    truth_[{attempt, partition, committed}] = it->second;
  }
}

void Checker::OnCommitted(const v1::Committed& committed) {
  const uint64_t attempt = committed.view().attempt();
  for (uint32_t partition = 0; partition < index_.partitions(); ++partition) {
    if (index_.IsEmpty(partition)) continue;
    if (last_.count({attempt, partition, committed.version()}) != 0) continue;
    return Fail(absl::StrCat("the coordinator commits version ", committed.version(),
                             ", but partition ", partition, " has never had this version"));
  }
}

void Checker::OnSynchronousCompute(const v1::ViewId& view, uint64_t step,
                                   const PositionRange& positions,
                                   const std::vector<Elements3>& tensors) {
  for (uint32_t partition = 0; partition < index_.partitions(); ++partition) {
    if (index_.IsEmpty(partition)) continue;
    PartitionFacts content;
    bool whole = true;
    for (uint32_t block : index_.BlocksOfPartition(partition)) {
      const uint32_t tensor = layout_.blocks(static_cast<int>(block)).tensor();
      whole = whole && model_.Names(positions, tensor);
      if (!model_.Names(positions, tensor)) continue;  // the worker does not read it
      content.blocks.push_back(tensors[tensor]);
      if (!drops_stragglers() && tensors[tensor][0] != model_.ExpectedSum(step, tensor)) {
        return Fail(absl::StrCat("a worker computes step ", step, " on another version of tensor ",
                                 tensor));
      }
    }
    if (whole) CheckLineage(Order(view), partition, step, TagsOf(content), "a worker");
  }
}

void Checker::OnEvaluate(const std::vector<Elements3>& tensors) {
  if (!synchronous()) return;
  if (drops_stragglers()) {
    if (!IsVersionOfOneHistory(tensors)) Fail("an evaluation reads a version that never existed");
    return;
  }
  uint64_t newest = 0;
  for (const auto& [attempt, version] : committed_) newest = std::max(newest, version);
  for (uint64_t version = 0; version <= newest; ++version) {
    bool same = true;
    for (uint32_t tensor = 0; tensor < tensors.size() && same; ++tensor) {
      same = tensors[tensor][0] == model_.ExpectedSum(version, tensor);
    }
    if (same) return;
  }
  Fail("an evaluation reads a version that is not committed");
}

}  // namespace sluice::simulation
