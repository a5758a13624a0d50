// Jobs whose checkpoint directory is damaged while no process runs.
//
// The code of the shards and of the storage writes a directory as two attempts leave it. The test
// flips bits and truncates files; then storage, coordinator and shards restore the job. Each time
// they use the exact bytes of the newest whole checkpoint, or use an older checkpoint and report
// that, or the job fails and names the damage. No other outcome is allowed.

#include <cstdio>
#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/checkpoint.pb.h"
#include "proto/control.pb.h"
#include "services/checkpoint/local_storage.h"
#include "services/checkpoint/storage.h"
#include "services/common/io/fake_file_system.h"
#include "services/coordinator/core/testing/fake_job.h"
#include "services/coordinator/open_storage.h"
#include "services/protocol/layout.h"
#include "services/ps/core/base/action.h"
#include "services/ps/core/base/model.h"
#include "services/ps/core/base/options.h"
#include "services/ps/core/shard_core.h"
#include "services/ps/core/state/block.h"
#include "services/ps/core/state/block_update.h"
#include "services/ps/core/state/partition.h"
#include "services/ps/core/state/partition_file.h"

namespace sluice::coordinator {
namespace {

using ::testing::HasSubstr;

constexpr char kStore[] = "/store";
constexpr char kJob[] = "default/digits/u1";
constexpr size_t kMaxFileBytes = 64 << 20;
constexpr int kCasesOfAMode = 300;  // four modes: 1,200

struct ModeOfJob {
  const char* name;
  v1::Mode mode;
  bool bit_exact;
};
constexpr ModeOfJob kModes[] = {{"Synchronous", v1::SYNCHRONOUS, false},
                                {"BitExact", v1::SYNCHRONOUS, true},
                                {"Asynchronous", v1::ASYNCHRONOUS, false},
                                {"BoundedStaleness", v1::BOUNDED_STALENESS, false}};

v1::CheckpointRef Ref(uint64_t attempt, uint64_t step) {
  v1::CheckpointRef ref;
  ref.set_attempt(attempt);
  ref.set_step(step);
  return ref;
}

v1::JobSpec SpecOf(const ModeOfJob& mode) {
  v1::JobSpec spec = FakeJob::Spec();
  spec.mutable_training()->set_mode(mode.mode);
  spec.mutable_training()->set_bit_exact(mode.bit_exact);
  spec.mutable_optimizer()->set_name(v1::OptimizerSpec::SGD);
  spec.mutable_optimizer()->set_learning_rate(0.1);
  spec.mutable_optimizer()->set_momentum(0.9);
  return spec;
}

// The directory of a job of two attempts. The second began with the newest checkpoint of the first.
class SavedJob {
 public:
  explicit SavedJob(const ModeOfJob& mode) : spec_(SpecOf(mode)), mode_(mode.mode) {
    v1::TensorSpec& tensor = *table_.add_tensors();  // as FakeJob's workers report it
    tensor.set_name("w");
    tensor.add_shape(100'000);
    tensor.set_dtype(v1::FLOAT32);
    layout_ = *MakeLayout(table_, spec_.parameter_server().partitions());
    model_ = *ps::ShardModel::Create(spec_, table_, layout_);
    EXPECT_TRUE(storage_->Probe().ok());
    EXPECT_TRUE(storage_->Own(kJob).ok());
    Claim(1, nullptr);
    Save(Ref(1, 4), nullptr);
    Save(Ref(1, 8), nullptr);
    const v1::CheckpointRef parent = Ref(1, 8);
    Claim(2, &parent);
    Save(Ref(2, 12), &parent);
    Save(Ref(2, 16), &parent);
    Remember(absl::StrCat(kStore, "/owner"));
    for (const char* claim : {"000001.json", "000002.json"}) {
      Remember(absl::StrCat(kStore, "/claims/", claim));
    }
  }

  const v1::JobSpec& spec() const { return spec_; }
  CheckpointStorage& storage() { return *storage_; }
  // Path -> undamaged content.
  const std::map<std::string, std::string>& files() const { return whole_; }
  const std::map<std::string, v1::CheckpointIndex>& checkpoint_indexes() const {
    return checkpoint_indexes_;
  }
  void Write(const std::string& path, const std::string& content) {
    ASSERT_TRUE(AtomicWriteFile(&files_, path, absl::Cord(content), "test").ok());
  }
  // The claims of attempts that began since.
  void RemoveNewClaims() {
    for (int attempt = 3;
         files_.Remove(absl::StrFormat("%s/claims/%06d.json", kStore, attempt)).ok(); ++attempt) {
    }
  }

 private:
  void Claim(uint64_t attempt, const v1::CheckpointRef* parent) {
    v1::Claim claim;
    claim.set_attempt(attempt);
    claim.mutable_term()->set_counter(attempt);
    claim.mutable_term()->set_coordinator(77);
    if (parent != nullptr) *claim.mutable_parent() = *parent;
    claim.set_time("2026-11-01T10:00:00.5+00:00");
    EXPECT_TRUE(storage_->CreateClaim(claim).ok());
  }

  ps::PartitionContent ContentOf(uint32_t partition, uint64_t step) {
    ps::PartitionContent content;
    content.model = model_;
    content.partition = partition;
    content.version = step;
    for (uint32_t i = 0; i < model_->BlockCount(partition); ++i) {
      const ps::BlockInfo& info = model_->block(model_->FirstBlock(partition) + i);
      ps::MutableBlockRef values = pool_->Take(info.bytes);
      ps::MutableBlockRef momentum = pool_->Take(info.sum_bytes);
      for (uint64_t e = 0; e < info.count; ++e) {
        values->MutableAs<float>()[e] = static_cast<float>(info.offset + e + step);
        momentum->MutableAs<float>()[e] = static_cast<float>(e % 97) / static_cast<float>(step);
      }
      ps::BlockState& block = content.blocks.emplace_back(ps::InitialBlock(std::move(values)));
      block.slots[0] = std::move(momentum);
      block.count = step;
    }
    if (mode_ == v1::SYNCHRONOUS) return content;
    for (uint64_t worker : {101, 102}) {
      v1::ClockRecord& record = content.clocks.emplace_back();
      record.set_worker(worker);
      record.set_clock(step / 2);
      record.mutable_samples()->set_begin(20 * (step - 1));
      record.mutable_samples()->set_end(20 * step);
    }
    return content;
  }

  void Save(const v1::CheckpointRef& ref, const v1::CheckpointRef* parent) {
    v1::CheckpointIndex checkpoint_index;
    checkpoint_index.set_format_version(kCheckpointFormatVersion);
    checkpoint_index.set_job(kJob);
    *checkpoint_index.mutable_checkpoint() = ref;
    if (parent != nullptr) *checkpoint_index.mutable_parent() = *parent;
    checkpoint_index.set_mode(mode_);
    checkpoint_index.set_samples(mode_ == v1::SYNCHRONOUS ? 32 * ref.step() : 24 * ref.step());
    if (mode_ != v1::SYNCHRONOUS) {
      v1::Ledger& ledger = *checkpoint_index.mutable_ledger();  // with a hole
      ledger.add_applied()->set_end(20 * ref.step());
      v1::Range& behind = *ledger.add_applied();
      behind.set_begin(20 * ref.step() + 4);
      behind.set_end(24 * ref.step() + 4);
      ledger.set_updates(ref.step());
    }
    checkpoint_index.set_optimizer("SGD");
    *checkpoint_index.mutable_table() = table_;
    *checkpoint_index.mutable_layout() = layout_;
    checkpoint_index.set_time("2026-11-01T10:00:01.5+00:00");
    checkpoint_index.set_loss(0.25);
    const std::string directory = absl::StrCat(kStore, "/", CheckpointDirectory(ref), "/");
    for (const uint32_t partition : model_->filled()) {
      const ps::EncodedPartition encoded = ps::EncodePartition(ContentOf(partition, ref.step()));
      EXPECT_TRUE(storage_->WriteFile(ref, encoded.file.name(), encoded.bytes).ok());
      *checkpoint_index.add_files() = encoded.file;
      Remember(directory + encoded.file.name());
    }
    EXPECT_TRUE(storage_->WriteCheckpointIndex(checkpoint_index).ok());
    Remember(directory + "manifest.json");
    checkpoint_indexes_[CheckpointDirectory(ref)] = checkpoint_index;
  }

  void Remember(const std::string& path) { whole_[path] = *files_.Read(path, kMaxFileBytes); }

  const v1::JobSpec spec_;
  const v1::Mode mode_;
  v1::TensorTable table_;
  v1::Layout layout_;
  std::shared_ptr<const ps::ShardModel> model_;
  std::shared_ptr<ps::BlockPool> pool_ = ps::BlockPool::Create(0);
  FakeFileSystem files_;
  std::unique_ptr<CheckpointStorage> storage_ = MakeLocalStorage(&files_, kStore, "test");
  std::map<std::string, std::string> whole_;
  std::map<std::string, v1::CheckpointIndex> checkpoint_indexes_;  // by directory
};

std::string KindOf(const std::string& path) {
  if (absl::EndsWith(path, "/owner")) return "owner";
  if (absl::StrContains(path, "/claims/")) return "claim";
  const std::string kind =
      absl::EndsWith(path, "manifest.json") ? "checkpoint index" : "partition file";
  return absl::StrCat(kind,
                      absl::StrContains(path, "0002-step-000000000016") ? ", newest" : ", older");
}

// The content with a flipped bit, a missing end, or a run of zeroed bytes; always different.
std::string Damaged(const std::string& whole, std::mt19937_64& random) {
  std::string content = whole;
  while (content == whole) {
    const size_t at = random() % whole.size();
    switch (random() % 8) {
      case 0:
      case 1:
        content.resize(at);
        break;
      case 2:
        for (size_t i = at; i < std::min(at + 64, whole.size()); ++i) content[i] = '\0';
        break;
      default:
        content[at] = static_cast<char>(content[at] ^ (1 << (random() % 8)));
    }
  }
  return content;
}

constexpr char kSame[] = "newest, same bytes";
constexpr char kOlder[] = "older, reported";
constexpr char kError[] = "error, named";

// A real shard loads what the coordinator's Prepare names. Empty: it has loaded the saved bytes.
std::string LoadOn(SavedJob& saved, const FakeShard& fake) {
  ps::ShardOptions options;
  *options.identity.mutable_process() = fake.id;
  options.identity.set_job(kJob);
  ps::ShardCore shard(options, nullptr, nullptr);
  const absl::Time now = absl::UnixEpoch();
  shard.OnCoordinatorConnected(now);
  v1::CoordinatorMessage message;
  *message.mutable_registered()->mutable_term() = fake.prepare.init_id().term();
  *message.mutable_registered()->mutable_job() = saved.spec();
  shard.OnCoordinatorMessage(message, now);
  *message.mutable_prepare_state() = fake.prepare;
  shard.OnCoordinatorMessage(message, now);
  std::string wrong = "no answer";
  for (bool more = true; more;) {
    more = false;
    for (ps::ShardAction& action : shard.TakeActions()) {
      if (const auto* load = std::get_if<ps::LoadPartition>(&action); load != nullptr) {
        absl::StatusOr<absl::Cord> file = saved.storage().ReadFile(load->checkpoint, load->file);
        const std::string path = absl::StrCat(kStore, "/", CheckpointDirectory(load->checkpoint),
                                              "/", load->file.name());
        if (!file.ok() || *file != saved.files().at(path)) return path + " has other bytes";
        shard.OnPartitionLoaded(load->init_id, load->file.partition(), std::move(file), now);
        more = true;
      } else if (const auto* said = std::get_if<ps::SendToCoordinator>(&action); said != nullptr) {
        if (said->message.has_state_ready()) wrong = said->message.state_ready().error();
      }
    }
  }
  return wrong;
}

// One of the three outcomes above, or an error.
std::string Restore(SavedJob& saved, const std::set<std::string>& damaged) {
  FakeJob job(saved.spec());
  job.storage = &saved.storage();
  job.load = [&](const FakeShard& shard) { return LoadOn(saved, shard); };
  job.Start();
  const std::string events = absl::StrJoin(job.Events(), "\n");
  // Messages name a checkpoint by its directory: reading stops at the first damage.
  const auto names = [&](const std::string& text, const std::string& path) {
    const std::string directory = FileNameOf(DirectoryOf(path));
    const bool of_checkpoint = absl::StartsWith(directory, "attempt");
    return absl::StrContains(text, of_checkpoint ? directory : "/" + FileNameOf(path));
  };
  if (job.exit.has_value()) {
    if (job.exit->reason != ExitReason::kFailed) return "it ends: " + job.exit->message;
    for (const std::string& path : damaged) {
      if (names(job.exit->message, path)) return kError;
    }
    return "it fails without naming the damage: " + job.exit->message;
  }
  const v1::PrepareState& prepare = job.shards[0]->prepare;
  if (!prepare.has_checkpoint()) return "IT BEGINS AT ZERO";
  const std::string directory = CheckpointDirectory(prepare.checkpoint().checkpoint());
  const auto checkpoint_index = saved.checkpoint_indexes().find(directory);
  if (checkpoint_index == saved.checkpoint_indexes().end() ||
      checkpoint_index->second.SerializeAsString() != prepare.checkpoint().SerializeAsString()) {
    return absl::StrCat("ANOTHER CHECKPOINT INDEX: ", prepare.checkpoint().ShortDebugString());
  }
  for (const auto& shard : job.shards) {
    if (const std::string wrong = LoadOn(saved, *shard); !wrong.empty()) return wrong;
  }
  for (const std::string& path : damaged) {
    const std::string of = FileNameOf(DirectoryOf(path));
    // Checkpoints older than the used one are not read. A truncated owner may still be valid.
    const bool read =
        KindOf(path) == "claim" || (of > directory && absl::StartsWith(of, "attempt"));
    if (read && !names(events, path)) return absl::StrCat("NOT NAMED: ", path, " in\n", events);
  }
  if (directory == saved.checkpoint_indexes().rbegin()->first) return kSame;
  return absl::StrContains(events, "skipped: ") ? kOlder : "OLDER, NOT REPORTED";
}

class CheckpointDamageTest : public ::testing::TestWithParam<ModeOfJob> {};

INSTANTIATE_TEST_SUITE_P(AllModes, CheckpointDamageTest, ::testing::ValuesIn(kModes),
                         [](const auto& info) { return info.param.name; });

TEST_P(CheckpointDamageTest, RestoresNewestCheckpointOfWholeDirectory) {
  SavedJob saved(GetParam());
  EXPECT_EQ(Restore(saved, {}), kSame);
}

TEST_P(CheckpointDamageTest, ReportsFlippedBitsAndTruncationsAndNeverStartsAtZero) {
  SavedJob saved(GetParam());
  // Each mode gets other damage.
  const uint64_t seed =
      20261122 + 2 * static_cast<uint64_t>(GetParam().mode) + (GetParam().bit_exact ? 1 : 0);
  std::mt19937_64 random(seed);
  std::map<std::string, std::vector<std::string>> paths;  // by kind
  for (const auto& [path, content] : saved.files()) paths[KindOf(path)].push_back(path);
  std::map<std::string, std::map<std::string, int>> table;
  for (int i = 0; i < kCasesOfAMode; ++i) {
    std::set<std::string> damaged;
    std::set<std::string> kinds;
    for (int n = random() % 4 == 0 ? 3 : 1; n > 0; --n) {
      const auto kind = std::next(paths.begin(), static_cast<ptrdiff_t>(random() % paths.size()));
      const std::string& path = kind->second[random() % kind->second.size()];
      saved.Write(path, Damaged(saved.files().at(path), random));
      damaged.insert(path);
      kinds.insert(kind->first);
    }
    const std::string outcome = Restore(saved, damaged);
    saved.RemoveNewClaims();
    const bool right = outcome == kSame || outcome == kOlder || outcome == kError;
    EXPECT_TRUE(right) << "seed " << seed << ", case " << i << ", damaged "
                       << absl::StrJoin(damaged, " ") << ": " << outcome;
    ++table[kinds.size() > 1 ? "several" : *kinds.begin()][right ? outcome : "WRONG"];
    saved.Write(absl::StrCat(kStore, "/owner"), saved.files().at(absl::StrCat(kStore, "/owner")));
    for (const std::string& path : damaged) saved.Write(path, saved.files().at(path));
  }
  std::printf("%-24s %20s %20s %14s %7s\n", GetParam().name, kSame, kOlder, kError, "WRONG");
  for (auto& [kind, outcomes] : table) {
    std::printf("%-24s %20d %20d %14d %7d\n", kind.c_str(), outcomes[kSame], outcomes[kOlder],
                outcomes[kError], outcomes["WRONG"]);
  }
}

// The coordinator does not read partition files before a shard has found one of them damaged. Such
// an attempt is no restoration: backoffLimit does not count it.
TEST_P(CheckpointDamageTest, ShardsFindDamagedContentsAndNextAttemptUsesOlderCheckpoint) {
  SavedJob saved(GetParam());
  const auto& newest = *saved.checkpoint_indexes().rbegin();
  const std::string path =
      absl::StrCat(kStore, "/", newest.first, "/", newest.second.files(0).name());
  std::string content = saved.files().at(path);
  content.back() = static_cast<char>(content.back() ^ 1);
  saved.Write(path, content);

  v1::JobSpec spec = saved.spec();
  spec.set_backoff_limit(0);
  FakeJob job(spec);
  job.storage = &saved.storage();
  job.load = [&](const FakeShard& shard) { return LoadOn(saved, shard); };
  job.Start();
  ASSERT_FALSE(job.exit.has_value()) << job.exit->message;
  EXPECT_EQ(job.shards[0]->prepare.checkpoint().checkpoint().step(), 12u);
  EXPECT_TRUE(job.HasEvent(absl::StrCat("skipped: checkpoint ", newest.first, " is damaged")));
  const std::vector<v1::Claim> claims = *saved.storage().ReadClaims();
  ASSERT_EQ(claims.size(), 4u);
  EXPECT_EQ(claims[2].parent().step(), 16u);
  EXPECT_EQ(claims[3].parent().step(), 12u);
}

TEST_P(CheckpointDamageTest, FailsWithAdviceIfNoCheckpointIsWhole) {
  SavedJob saved(GetParam());
  for (const auto& [directory, checkpoint_index] : saved.checkpoint_indexes()) {
    saved.Write(absl::StrCat(kStore, "/", directory, "/manifest.json"), "{");
  }
  FakeJob job(saved.spec());
  job.storage = &saved.storage();
  job.Start();
  ASSERT_TRUE(job.exit.has_value());
  EXPECT_EQ(job.exit->reason, ExitReason::kFailed);
  EXPECT_THAT(job.exit->message, HasSubstr("no checkpoint of the job is whole"));
  EXPECT_THAT(job.exit->message, HasSubstr("restoreFrom"));
}

}  // namespace
}  // namespace sluice::coordinator
