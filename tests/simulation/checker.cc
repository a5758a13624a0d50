#include "tests/simulation/checker.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace sluice::simulation {
namespace {

// Chooses tags that add up to `rest`: at most one from each set, starting with the set at `place`.
bool Choose(const std::vector<std::vector<double>>& sets, size_t place, double rest,
            std::vector<double>* chosen) {
  if (rest == 0) return true;
  if (rest < 0 || place == sets.size()) return false;
  if (Choose(sets, place + 1, rest, chosen)) return true;
  for (double tag : sets[place]) {
    chosen->push_back(tag);
    if (Choose(sets, place + 1, rest - tag, chosen)) return true;
    chosen->pop_back();
  }
  return false;
}

}  // namespace

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

// ---- synchronous

void Checker::CheckVersion(const ShardNow& now, const PartitionFacts& content) {
  if (drops_stragglers()) {
    CheckSet(now, content);
  } else {
    CheckElements(now, content);
  }
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

// ---- asynchronous

void Checker::OnUpdate(double tag, const PositionRange& positions) { updates_[tag] = {positions}; }

std::optional<Checker::Applied> Checker::Origin(const PartitionFacts& content) const {
  Applied applied;
  bool initial = true;
  for (size_t i = 0; i < content.blocks.size(); ++i) {
    const Elements3 expected = model_.Initial(TensorOf(content.partition, i));
    initial = initial && content.blocks[i][0] == expected[0] && content.blocks[i][1] == 0;
    applied.content.push_back(expected);
  }
  if (initial) return applied;
  auto it = history_.find({content.partition, content.blocks});
  if (it == history_.end()) return std::nullopt;
  return it->second;
}

bool Checker::Apply(double tag, Applied* applied) {
  const Update& update = updates_[tag];
  const Interval samples{update.positions.begin, update.positions.end};
  if (!applied->updates.insert(tag).second || applied->samples.Intersects(samples)) {
    Fail(absl::StrCat("samples [", samples.begin, ", ", samples.end, ") are applied twice"));
    return false;
  }
  applied->samples.Add(samples);
  return true;
}

bool Checker::Explain(const ShardNow& now, const PartitionFacts& content, Applied* applied) {
  size_t loud = 0;
  while (loud < content.blocks.size() && model_.IsSilent(TensorOf(content.partition, loud))) ++loud;
  if (loud == content.blocks.size()) return content.blocks == applied->content;

  double rest = content.blocks[loud][1] - applied->content[loud][1];
  std::vector<double> found;
  if (updates_.count(rest) != 0) {
    found = {rest};
  } else {
    // An Install may apply the last updates of several workers at once.
    std::vector<std::vector<double>> open;  // by worker
    for (const auto& [worker, samples] : now.last_samples) {
      if (applied->samples.Intersects({samples.begin, samples.end})) continue;
      std::vector<double>& tags = open.emplace_back();
      for (const auto& [tag, update] : updates_) {
        if (update.positions == samples) tags.push_back(tag);
      }
    }
    if (!Choose(open, 0, rest, &found)) return false;
  }

  for (double tag : found) {
    if (!Apply(tag, applied)) return true;  // reported
    for (size_t i = 0; i < content.blocks.size(); ++i) {
      const uint32_t tensor = TensorOf(content.partition, i);
      if (model_.IsSilent(tensor)) continue;
      applied->content[i][0] += model_.SumOf(updates_[tag].positions, tensor);
      applied->content[i][1] += tag;
    }
  }

  for (size_t i = 0; i < content.blocks.size(); ++i) {
    if (content.blocks[i][0] != applied->content[i][0] ||
        content.blocks[i][1] != applied->content[i][1]) {
      return false;
    }
  }
  return true;
}

void Checker::CheckUpdates(const ShardNow& now, const PartitionFacts& content) {
  const auto key = std::make_tuple(now.view.attempt(), now.incarnation, content.partition);
  auto it = applied_.find(key);
  if (it == applied_.end()) {
    std::optional<Applied> origin = Origin(content);
    if (!origin) {
      return Fail(
          absl::StrCat(Where(now, content),
                       ": begins with a content that is neither initial nor of a checkpoint"));
    }
    it = applied_.emplace(key, *std::move(origin)).first;
  }

  const bool same = std::equal(
      content.blocks.begin(), content.blocks.end(), it->second.content.begin(),
      [](const Elements3& a, const Elements3& b) { return a[0] == b[0] && a[1] == b[1]; });
  if (!same && !Explain(now, content, &it->second)) {
    return Fail(absl::StrCat(Where(now, content), ": the change is not a set of whole updates"));
  }
  if (!same) history_[{content.partition, content.blocks}] = it->second;
}

void Checker::OnLease(const ShardNow& arbiter, uint64_t worker, const v1::Lease& lease) {
  if (lease.samples().begin() >= lease.samples().end()) return;
  if (arbiter.view.attempt() != lease_attempt_) {
    lease_attempt_ = arbiter.view.attempt();
    leases_.clear();
    raised_.clear();
  }
  if (job_.training().mode() == v1::BOUNDED_STALENESS) CheckRaised(arbiter, worker, lease.clock());
  leases_[worker] = FromProto(lease.samples());
  raised_[worker] = std::max(raised_[worker], lease.clock());
}

void Checker::OnPullAnswered(const ShardNow& shard, bool arbiter, uint64_t worker, uint64_t clock) {
  if (job_.training().mode() != v1::BOUNDED_STALENESS) return;
  auto view = known_views_.find(Order(shard.view));
  if (shard.view.attempt() != lease_attempt_ || view == known_views_.end()) return;

  const auto answer = std::make_tuple(worker, Order(shard.view), clock);
  if (arbiter) {
    answers_[answer] = LeaseHolders(shard, view->second);
  } else if (answers_.count(answer) == 0) {
    return Fail(absl::StrCat("shard ", shard.incarnation % 1000, " answers clock ", clock,
                             " before the arbiter does (R13)"));
  }

  for (const v1::View::Member& member : view->second.workers()) {
    const uint64_t other = member.process().incarnation();
    if (other == worker || answers_[answer].count(other) == 0) continue;
    auto record = shard.clocks.find(other);
    const uint64_t reached =
        std::max(raised_[other], record == shard.clocks.end() ? 0 : record->second);
    if (clock > reached + job_.training().max_staleness()) {
      Fail(absl::StrCat("shard ", shard.incarnation % 1000, " answers clock ", clock,
                        " while a lease holder has reached only ", reached, " (R13)"));
    }
  }
}

void Checker::CheckRaised(const ShardNow& arbiter, uint64_t worker, uint64_t clock) {
  const auto view = known_views_.find(Order(arbiter.view));
  if (view == known_views_.end()) return;
  const std::set<uint64_t> holders = LeaseHolders(arbiter, view->second);
  if (holders.empty() || holders.count(worker) > 0) return;
  // With copies, a lease counts from its record on, and is given once the copies have it. Meanwhile
  // the other holders continue, within the bound.
  const bool waits = job_.parameter_server().copies() > 1;
  const uint64_t slack = waits ? job_.training().max_staleness() + 1 : 0;
  const bool behind = std::all_of(holders.begin(), holders.end(), [&](uint64_t holder) {
    const auto record = arbiter.clocks.find(holder);
    return clock + slack <
           std::max(raised_[holder], record == arbiter.clocks.end() ? 0 : record->second);
  });
  if (behind) {
    Fail(absl::StrCat("a worker gets a lease at clock ", clock, ", below all lease holders (R13)"));
  }
}

std::set<uint64_t> Checker::LeaseHolders(const ShardNow& arbiter, const v1::View& view) {
  std::set<uint64_t> holders;
  const auto loud = std::find_if(arbiter.partitions.begin(), arbiter.partitions.end(),
                                 [this](const PartitionFacts& p) { return !IsSilent(p); });
  if (loud == arbiter.partitions.end()) return holders;
  const Applied& applied = applied_[{arbiter.view.attempt(), arbiter.incarnation, loud->partition}];
  for (const v1::View::Member& member : view.workers()) {
    auto lease = leases_.find(member.process().incarnation());
    if (lease == leases_.end() || applied.samples.ContainsAll(lease->second)) continue;
    holders.insert(member.process().incarnation());
  }
  return holders;
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

  for (uint32_t partition = 0; partition < index_.partitions(); ++partition) {
    if (index_.IsEmpty(partition)) continue;
    auto file = files.find(partition);
    if (file == files.end()) {
      return Fail(
          absl::StrCat("the manifest of step ", key.second, " lacks partition ", partition));
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
