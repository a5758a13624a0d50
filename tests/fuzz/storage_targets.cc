// Files of checkpoints.
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "cli/optimizer_file.h"
#include "proto/checkpoint.pb.h"
#include "proto/job.pb.h"
#include "proto/model.pb.h"
#include "services/checkpoint/checkpoint_reader.h"
#include "services/checkpoint/local_storage.h"
#include "services/checkpoint/optimizer_state.h"
#include "services/checkpoint/restore_source.h"
#include "services/checkpoint/safetensors.h"
#include "services/checkpoint/storage.h"
#include "services/common/arithmetic/crc32c.h"
#include "services/common/check.h"
#include "services/common/io/fake_file_system.h"
#include "services/common/io/file_util.h"
#include "services/protocol/layout.h"
#include "services/protocol/step_hashes.h"
#include "services/ps/core/base/model.h"
#include "services/ps/core/state/block.h"
#include "services/ps/core/state/partition_file.h"
#include "tests/fuzz/byte_source.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/fuzz/status_check.h"

namespace sluice::fuzz {
namespace {

// ---------------------------------------------------------------- safetensors

bool RunSafetensors(absl::string_view input) {
  const absl::StatusOr<std::vector<SafetensorsArray>> arrays =
      ReadSafetensors(InChunks(input, 1 + input.size() % 113));
  if (!CheckedOk(arrays.status())) return false;
  std::set<std::string> names;
  size_t bytes = 8;  // the arrays cover all that follows the header
  for (size_t i = 0; i < 8; ++i) bytes += size_t{static_cast<unsigned char>(input[i])} << (8 * i);
  for (const SafetensorsArray& array : *arrays) {
    SLUICE_CHECK(names.insert(array.name).second, "names are unique");
    bytes += array.bytes.size();
  }
  SLUICE_CHECK(bytes == input.size(), "the arrays cover the data");
  const absl::StatusOr<std::vector<SafetensorsArray>> again =
      ReadSafetensors(WriteSafetensors(*arrays, {}));
  SLUICE_CHECK(again.ok() && again->size() == arrays->size(), "arrays survive");
  for (size_t i = 0; i < arrays->size(); ++i) {
    SLUICE_CHECK((*again)[i].name == (*arrays)[i].name, "names survive");
    SLUICE_CHECK((*again)[i].shape == (*arrays)[i].shape, "shapes survive");
    SLUICE_CHECK((*again)[i].dtype == (*arrays)[i].dtype, "types survive");
    SLUICE_CHECK((*again)[i].other_type == (*arrays)[i].other_type, "types survive");
    SLUICE_CHECK((*again)[i].bytes == (*arrays)[i].bytes, "bytes survive");
  }
  return true;
}

std::vector<std::string> SafetensorsSeeds() {
  SafetensorsArray matrix{"fc.weight", v1::FLOAT32, {2, 3}, absl::Cord(std::string(24, 'f'))};
  SafetensorsArray counter{"n", v1::INT64, {}, absl::Cord(std::string(8, 'i'))};
  SafetensorsArray small{"s", v1::DATA_TYPE_UNSPECIFIED, {2, 4}, absl::Cord("abcd"), "F4"};
  SafetensorsArray empty{"e", v1::DATA_TYPE_UNSPECIFIED, {0, 7}, absl::Cord(), "U16"};
  return {std::string(WriteSafetensors({matrix, counter}, {{"format", "pt"}})),
          std::string(WriteSafetensors({matrix, empty, small}, {})),
          std::string(WriteSafetensors({}, {}))};
}

// ---------------------------------------------------------------- partition files

std::shared_ptr<const ps::ShardModel> SmallModel() {
  v1::JobSpec job;
  job.mutable_optimizer()->set_name(v1::OptimizerSpec::ADAM);
  job.mutable_optimizer()->set_learning_rate(0.1);
  job.mutable_optimizer()->set_beta1(0.9);
  job.mutable_optimizer()->set_beta2(0.999);
  job.mutable_optimizer()->set_eps(1e-8);
  v1::TensorTable table;
  const auto add = [&](const char* name, int64_t extent, v1::DataType dtype, v1::TensorKind kind) {
    v1::TensorSpec& tensor = *table.add_tensors();
    tensor.set_name(name);
    tensor.add_shape(extent);
    tensor.set_dtype(dtype);
    tensor.set_kind(kind);
  };
  add("w", 4, v1::FLOAT32, v1::PARAMETER);
  add("b", 3, v1::BFLOAT16, v1::PARAMETER);
  add("mean", 2, v1::FLOAT64, v1::BUFFER);
  add("n", 1, v1::INT64, v1::COUNTER);
  const absl::StatusOr<v1::Layout> layout = MakeLayout(table, 1);
  return *ps::ShardModel::Create(job, table, *layout);
}

ps::EncodedPartition SmallPartition(bool updated) {
  const std::shared_ptr<ps::BlockPool> pool = ps::BlockPool::Create(1 << 20);
  ps::PartitionContent content;
  content.model = SmallModel();
  content.version = 17;
  for (size_t i = 0; i < content.model->blocks(); ++i) {
    const ps::BlockInfo& info = content.model->block(i);
    const auto filled = [&](size_t size) {
      ps::MutableBlockRef block = pool->Take(size);
      for (char& byte : block->mutable_bytes()) byte = static_cast<char>(i + 1);
      return block;
    };
    ps::BlockState& state = content.blocks.emplace_back();
    state.parameters = filled(info.bytes);
    if (!updated) continue;
    state.count = 17;
    if (info.kind != v1::PARAMETER) continue;
    for (int slot = 0; slot < 2; ++slot) state.slots[slot] = filled(info.sum_bytes);
  }
  if (updated) {
    v1::ClockRecord& record = content.clocks.emplace_back();
    record.set_worker(7);
    record.set_clock(3);
    record.mutable_samples()->set_end(12);
  }
  return ps::EncodePartition(content);
}

// The index's size and checksum are correct: they detect damage by a disk, so this target is
// about content that was written wrong.
bool RunPartitionFile(absl::string_view input) {
  const std::shared_ptr<ps::BlockPool> pool = ps::BlockPool::Create(1 << 20);
  for (bool updated : {false, true}) {
    v1::PartitionFile file = SmallPartition(updated).file;
    file.set_bytes(input.size());
    file.set_crc32c(Crc32c(input));
    const absl::StatusOr<std::shared_ptr<ps::PartitionContent>> content =
        ps::DecodePartition(SmallModel(), file, InChunks(input, 1 + input.size() % 89), *pool);
    if (!CheckedOk(content.status())) continue;
    SLUICE_CHECK(ps::StateHash(**content) == file.state_hash(),
                 "the content matches the checkpoint index");
    return true;
  }
  return false;
}

std::vector<std::string> PartitionFileSeeds() {
  return {std::string(SmallPartition(false).bytes), std::string(SmallPartition(true).bytes)};
}

// ---------------------------------------------------------------- step hashes

bool RunStepHashes(absl::string_view input) {
  const absl::StatusOr<std::vector<StepHash>> hashes = ParseStepHashes(input);
  if (!CheckedOk(hashes.status())) return false;
  SLUICE_CHECK(hashes->size() <= kMaxStepHashes, "there are no more hashes than a shard keeps");
  const absl::StatusOr<std::vector<StepHash>> again = ParseStepHashes(StepHashesText(*hashes));
  SLUICE_CHECK(again.ok() && StepHashesText(*again) == StepHashesText(*hashes), "hashes survive");
  return true;
}

std::vector<std::string> StepHashesSeeds() {
  return {"", StepHashesText({{9, 0x1a}, {10, UINT64_MAX}})};
}

// ---------------------------------------------------------------- checkpoint indexes and claims

v1::CheckpointIndex SmallCheckpointIndex(uint64_t step) {
  const ps::EncodedPartition partition = SmallPartition(true);
  v1::CheckpointIndex checkpoint_index;
  checkpoint_index.set_format_version(kCheckpointFormatVersion);
  checkpoint_index.set_job("default/test/1");
  checkpoint_index.mutable_checkpoint()->set_attempt(1);
  checkpoint_index.mutable_checkpoint()->set_step(step);
  checkpoint_index.set_mode(v1::ASYNCHRONOUS);
  checkpoint_index.set_samples(68);
  checkpoint_index.mutable_ledger()->add_applied()->set_end(68);
  checkpoint_index.mutable_ledger()->set_updates(step);
  checkpoint_index.set_optimizer("Adam");
  *checkpoint_index.mutable_table() = SmallModel()->table();
  *checkpoint_index.mutable_layout() = SmallModel()->layout();
  *checkpoint_index.add_files() = partition.file;
  checkpoint_index.set_time("2026-01-01T00:00:00Z");
  return checkpoint_index;
}

v1::Claim SmallClaim(uint64_t attempt) {
  v1::Claim claim;
  claim.set_format_version(kCheckpointFormatVersion);
  claim.set_attempt(attempt);
  claim.mutable_term()->set_counter(attempt);
  claim.mutable_term()->set_coordinator(77);
  if (attempt > 1) {
    claim.mutable_parent()->set_attempt(1);
    claim.mutable_parent()->set_step(17);
  }
  claim.set_time("2026-01-01T00:00:00Z");
  return claim;
}

// The text with its correct checksum: this target is about content that was written wrong.
std::string WithChecksum(absl::string_view text) {
  constexpr absl::string_view kBegins = ",\n \"crc32c\": \"";
  const size_t sum = text.rfind(kBegins);
  if (sum != absl::string_view::npos) {
    text = text.substr(0, sum);
  } else {
    absl::ConsumeSuffix(&text, "\n}\n");
  }
  return absl::StrCat(text, kBegins, absl::Hex(Crc32c(text), absl::kZeroPad8), "\"\n}\n");
}

bool CheckCheckpointIndex(absl::string_view text) {
  absl::StatusOr<v1::CheckpointIndex> checkpoint_index = CheckpointIndexFromJson(text);
  if (!CheckedOk(checkpoint_index.status())) return false;
  checkpoint_index->set_format_version(kCheckpointFormatVersion);
  const absl::StatusOr<v1::CheckpointIndex> again =
      CheckpointIndexFromJson(CheckpointIndexToJson(*checkpoint_index));
  SLUICE_CHECK(again.ok(), "a checkpoint index that was read can be written");
  SLUICE_CHECK(again->SerializeAsString() == checkpoint_index->SerializeAsString(),
               "checkpoint indexes survive a round trip");
  (void)CheckedOk(ValidateCheckpointIndex(*checkpoint_index));
  return true;
}

bool RunCheckpointIndex(absl::string_view input) {
  const bool accepted = CheckCheckpointIndex(input);
  return CheckCheckpointIndex(WithChecksum(input)) || accepted;
}

std::vector<std::string> CheckpointIndexSeeds() {
  return {CheckpointIndexToJson(SmallCheckpointIndex(17))};
}

bool CheckClaim(absl::string_view text) {
  absl::StatusOr<v1::Claim> claim = ClaimFromJson(text);
  if (!CheckedOk(claim.status())) return false;
  claim->set_format_version(kClaimFormatVersion);
  const absl::StatusOr<v1::Claim> again = ClaimFromJson(ClaimToJson(*claim));
  SLUICE_CHECK(again.ok(), "a claim that was read can be written");
  SLUICE_CHECK(again->SerializeAsString() == claim->SerializeAsString(),
               "claims survive a round trip");
  return true;
}

bool RunClaim(absl::string_view input) {
  const bool accepted = CheckClaim(input);
  return CheckClaim(WithChecksum(input)) || accepted;
}

std::vector<std::string> ClaimSeeds() {
  return {ClaimToJson(SmallClaim(1)), ClaimToJson(SmallClaim(2))};
}

// ---------------------------------------------------------------- whole directories

constexpr char kStorage[] = "/job";

// A job's storage with two checkpoints, as Sluice writes it.
std::map<std::string, std::string> WholeStorage() {
  std::map<std::string, std::string> files;
  FakeFileSystem disk;
  const std::unique_ptr<CheckpointStorage> storage = MakeLocalStorage(&disk, kStorage, "1");
  SLUICE_CHECK(storage->Probe().ok(), "a fake disk can be written");
  SLUICE_CHECK(storage->Own("default/test/1").ok(), "the storage is free");
  for (uint64_t attempt : {1, 2}) {
    SLUICE_CHECK(storage->CreateClaim(SmallClaim(attempt)).ok(), "the claim is new");
  }
  for (uint64_t step : {10, 17}) {
    const v1::CheckpointIndex checkpoint_index = SmallCheckpointIndex(step);
    SLUICE_CHECK(storage
                     ->WriteFile(checkpoint_index.checkpoint(), checkpoint_index.files(0).name(),
                                 SmallPartition(true).bytes)
                     .ok(),
                 "the file is written");
    SLUICE_CHECK(storage->WriteCheckpointIndex(checkpoint_index).ok(),
                 "the checkpoint index is written");
  }
  const auto keep = [&](const std::string& path) {
    const absl::StatusOr<std::string> content = disk.Read(path, 1 << 20);
    if (content.ok()) files[path] = *content;
  };
  const absl::StatusOr<std::vector<std::string>> names = disk.List(kStorage);
  for (const std::string& name : *names) {
    const std::string path = JoinPath(kStorage, name);
    keep(path);
    const absl::StatusOr<std::vector<std::string>> inner = disk.List(path);
    if (!inner.ok()) continue;
    for (const std::string& file : *inner) keep(JoinPath(path, file));
  }
  return files;
}

void Damage(ByteSource* bytes, std::map<std::string, std::string>* files) {
  auto file = files->begin();
  std::advance(file, static_cast<std::ptrdiff_t>(bytes->Below(files->size())));
  std::string& content = file->second;
  const size_t at = content.empty() ? 0 : bytes->Number(2) % content.size();
  switch (bytes->Below(6)) {
    case 0:
      if (!content.empty()) content[at] ^= static_cast<char>(1 << bytes->Below(8));
      return;
    case 1:
      content.resize(at);
      return;
    case 2:
      content = std::string(bytes->Piece());
      return;
    case 3:
      content.insert(at, std::string(bytes->Take(bytes->Below(32))));
      return;
    case 4: {
      // A name that Sluice reads, or another one.
      const std::string moved = absl::StrCat(kStorage, "/", bytes->Take(bytes->Below(48)));
      std::string kept = content;
      files->erase(file);
      (*files)[moved] = std::move(kept);
      return;
    }
    default:
      files->erase(file);
  }
}

// An input is a list of changes that damage the files.
bool RunCheckpointDirectory(absl::string_view input) {
  static const auto& whole = *new std::map<std::string, std::string>(WholeStorage());
  ByteSource bytes(input);
  std::map<std::string, std::string> files = whole;
  for (int i = 0; i < 16 && !bytes.empty() && !files.empty(); ++i) Damage(&bytes, &files);

  FakeFileSystem disk;
  for (const auto& [path, content] : files) {
    const size_t slash = path.rfind('/');
    if (slash == 0 || slash + 1 == path.size()) continue;
    (void)disk.CreateDirectories(path.substr(0, slash));
    (void)AtomicWriteFile(&disk, path, absl::Cord(content), "fuzz");
  }
  const std::unique_ptr<CheckpointStorage> storage = MakeLocalStorage(&disk, kStorage, "2");
  const bool owned = storage->Own("default/test/1").ok();
  const absl::StatusOr<RestorePoint> point = FindRestorePoint(*storage);
  const absl::StatusOr<NewestCheckpoint> newest = ReadNewestCheckpoint(*storage);
  (void)FindRestoreSource(&disk, kStorage).ok();
  (void)FindRestoreSource(&disk, JoinPath(kStorage, "attempt-0001-step-000000000017")).ok();
  (void)storage->RemoveIncomplete(2);
  if (!point.ok() || !point->found) return false;
  SLUICE_CHECK(!newest.ok() || newest->point.found, "a checkpoint that was read was found");
  return owned;
}

std::vector<std::string> CheckpointDirectorySeeds() { return {""}; }

// ---------------------------------------------------------------- the state of an optimizer

struct OptimizerJob {
  v1::OptimizerSpec optimizer;
  v1::CheckpointIndex index;
  std::vector<TensorState> states;
};

OptimizerJob MakeOptimizerJob() {
  OptimizerJob job;
  job.optimizer.set_name(v1::OptimizerSpec::ADAGRAD);
  job.optimizer.set_learning_rate(0.5);
  job.optimizer.add_groups()->add_patterns("b");
  job.index.mutable_checkpoint()->set_step(3);
  for (const char* name : {"a", "b", "buffer"}) {
    v1::TensorSpec& tensor = *job.index.mutable_table()->add_tensors();
    tensor.set_name(name);
    tensor.set_dtype(v1::FLOAT32);
    tensor.set_kind(absl::string_view(name) == "buffer" ? v1::BUFFER : v1::PARAMETER);
    job.states.emplace_back();
    if (tensor.kind() == v1::BUFFER) continue;
    job.states.back().updates = job.states.back().fewest = 3;
    job.states.back().slots = {{"sum", v1::FLOAT32, {}, absl::Cord(std::string(4, '\1'))}};
  }
  return job;
}

// The input is the metadata; the arrays are those of a good file.
bool RunOptimizerFile(absl::string_view input) {
  const OptimizerJob job = MakeOptimizerJob();
  cli::OptimizerFile file = *cli::MakeOptimizerFile(job.optimizer, job.index, job.states);
  file.metadata["optimizer"] = std::string(input);
  (void)cli::OptimizerLines(file.arrays, file.metadata);
  const auto read =
      cli::ReadOptimizerFile("file", job.optimizer, job.index.table(), file.arrays, file.metadata);
  if (!CheckedOk(read.status())) return false;
  SLUICE_CHECK(read->states.size() == job.states.size(), "each tensor has a state");
  for (size_t i = 0; i < read->states.size(); ++i) {
    const bool updated = read->states[i].updates > 0;
    SLUICE_CHECK(read->states[i].slots.size() == (updated ? job.states[i].slots.size() : 0),
                 "a parameter that was updated has all of its slots");
  }
  return true;
}

std::vector<std::string> OptimizerFileSeeds() {
  const OptimizerJob job = MakeOptimizerJob();
  return {cli::MakeOptimizerFile(job.optimizer, job.index, job.states)->metadata["optimizer"]};
}

}  // namespace

std::vector<FuzzTarget> StorageTargets() {
  static constexpr char kStorageSources[] =
      "services/checkpoint/storage.cc services/checkpoint/local_storage.cc "
      "services/checkpoint/checkpoint_reader.cc services/checkpoint/restore_source.cc";
  return {
      {"safetensors", RunSafetensors, SafetensorsSeeds, 4096, "services/checkpoint/safetensors.cc"},
      {"partition_file", RunPartitionFile, PartitionFileSeeds, 4096,
       "services/ps/core/state/partition_file.cc"},
      {"step_hashes", RunStepHashes, StepHashesSeeds, 1024, "services/protocol/step_hashes.cc"},
      {"checkpoint_index", RunCheckpointIndex, CheckpointIndexSeeds, 8192,
       "services/checkpoint/storage.cc"},
      {"claim", RunClaim, ClaimSeeds, 2048, "services/checkpoint/storage.cc"},
      {"checkpoint_directory", RunCheckpointDirectory, CheckpointDirectorySeeds, 1024,
       kStorageSources},
      {"optimizer_file", RunOptimizerFile, OptimizerFileSeeds, 4096, "cli/optimizer_file.cc"},
  };
}

}  // namespace sluice::fuzz
