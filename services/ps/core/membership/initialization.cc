#include "services/ps/core/membership/initialization.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "services/common/arithmetic/cord_reader.h"
#include "services/common/check.h"
#include "services/common/status_macros.h"
#include "services/protocol/ids.h"
#include "services/protocol/layout.h"
#include "services/protocol/samples/job_length.h"
#include "services/ps/core/session/coordinator_checks.h"
#include "services/ps/core/session/frame_checks.h"
#include "services/ps/core/state/partition_file.h"

namespace sluice::ps {

void Initialization::Prepare(const v1::PrepareState& prepare) {
  if (has_init_id_) {
    SLUICE_DCHECK(Same(prepare.init_id(), init_id()), "R12: a shard has one init request");
    Report();
    return;
  }
  has_init_id_ = true;
  prepare_ = prepare;
  if (absl::Status begun = Begin(); !begun.ok()) error_ = absl::StrCat(begun.message());
  CheckReady();
}

absl::Status Initialization::Begin() {
  RETURN_IF_ERROR(CheckPrepareState(prepare_));
  if (prepare_.job().training().execution() == v1::TrainingSpec::SERVER &&
      state_.options().references == nullptr) {
    return absl::FailedPreconditionError(
        "the job's layers are computed by its shards (training.execution: Server), and this shard "
        "has no LibTorch: start sluice-ps-torch instead of sluice-ps");
  }

  ASSIGN_OR_RETURN(job_.model, ShardModel::Create(prepare_.job(), prepare_.table(),
                                                  prepare_.layout(), state_.options().libraries));
  job_.job = prepare_.job();
  job_.training_samples = prepare_.training_samples();
  absl::StatusOr<StepSchedule> plan = StepScheduleOf(job_.job.training(), job_.training_samples);
  if (plan.ok()) job_.plan = *std::move(plan);
  job_.last_position = prepare_.last_position();

  state_.pool()->Trim();
  const std::vector<uint32_t> owned =
      OwnedPartitions(prepare_.shards(), prepare_.owner(), state_.self(), *job_.model);
  for (uint32_t partition : owned) {
    initial_[partition].blocks.resize(job_.model->BlockCount(partition));
  }

  if (prepare_.has_checkpoint()) return BeginLoading(owned);
  for (uint32_t partition : owned) {
    for (uint32_t b = job_.model->FirstBlock(partition); b < job_.model->FirstBlock(partition + 1);
         ++b) {
      missing_.insert(b);
    }
  }
  return absl::OkStatus();
}

absl::Status Initialization::BeginLoading(const std::vector<uint32_t>& owned) {
  const v1::CheckpointIndex& checkpoint_index = prepare_.checkpoint();
  if (LayoutHash(checkpoint_index.table(), checkpoint_index.layout()) !=
      job_.model->layout_hash()) {
    return absl::InvalidArgumentError("the checkpoint's tensors are not the job's");
  }

  for (const v1::PartitionFile& file : checkpoint_index.files()) files_[file.partition()] = file;
  for (uint32_t partition : owned) {
    const auto file = files_.find(partition);
    if (file == files_.end()) {
      return absl::InvalidArgumentError(
          absl::StrCat("the checkpoint index has no file for partition ", partition));
    }
    missing_.insert(partition);
    out_.Add(LoadPartition{prepare_.init_id(), checkpoint_index.checkpoint(),
                           prepare_.checkpoint_directory(), file->second});
  }
  return absl::OkStatus();
}

absl::StatusOr<Handled> Initialization::OnPush(StreamTable& streams, Stream& stream,
                                               const v1::InitPush& push,
                                               const absl::Cord& payload) {
  const int order = has_init_id_ ? Compare(push.init_id(), prepare_.init_id()) : 1;
  const bool check = state_.rules().CheckInitId();
  if (order > 0 && (check || !has_init_id_)) return Handled::kWait;
  if (order < 0 && check) {
    streams.RefuseAlways(stream, "a newer init request has replaced this one");
    return Handled::kDone;
  }
  if (prepare_.has_checkpoint()) {
    return absl::InvalidArgumentError(
        "this shard loads a checkpoint, so no version 0 may be pushed");
  }
  RETURN_IF_ERROR(CheckInitPush(pusher_, stream.incarnation(), push));
  RETURN_IF_ERROR(Take(push, payload));
  pusher_ = stream.incarnation();
  if (push.last() && !missing_.empty() && error_.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("the last push of version 0 has arrived, but not block ",
                     job_.model->BlockName(job_.model->block(*missing_.begin()))));
  }
  if (push.last()) {
    v1::Header header = state_.NewHeader();
    *header.mutable_initialized()->mutable_init_id() = prepare_.init_id();
    out_.Send(stream.id, std::move(header));
  }
  return Handled::kDone;
}

absl::Status Initialization::Take(const v1::InitPush& push, const absl::Cord& payload) {
  if (!error_.empty()) return absl::FailedPreconditionError(error_);

  std::vector<ReceivedBlock> blocks;
  RETURN_IF_ERROR(SplitPayload(*job_.model, push.partition(), push.blocks(), payload, &blocks));

  if (blocks.empty() || missing_.empty()) return absl::OkStatus();
  const auto initial = initial_.find(push.partition());
  if (initial == initial_.end()) {
    return absl::InvalidArgumentError(
        absl::StrCat("partition ", push.partition(), " is not owned by this shard"));
  }

  for (const ReceivedBlock& block : blocks) {
    if (block.codec == v1::CODEC_RAW) continue;
    return absl::InvalidArgumentError(
        absl::StrCat(job_.model->BlockName(job_.model->block(block.block)),
                     " must be pushed unencoded (CODEC_RAW)"));
  }

  for (const ReceivedBlock& block : blocks) {
    const BlockInfo& info = job_.model->block(block.block);
    if (missing_.erase(block.block) == 0) continue;
    BlockState& initial_block =
        initial->second.blocks[block.block - job_.model->FirstBlock(push.partition())];
    SLUICE_DCHECK(initial_block.parameters == nullptr, "a block of version 0 is stored once");
    MutableBlockRef parameters = state_.pool()->Take(info.bytes);
    RETURN_IF_ERROR(CopyPayload(block.payload, parameters->mutable_bytes()));
    initial_block = InitialBlock(std::move(parameters));
  }

  CheckReady();
  return absl::OkStatus();
}

void Initialization::OnLoaded(const v1::InitId& init_id, uint32_t partition,
                              absl::StatusOr<absl::Cord> file) {
  if (!has_init_id_ || !Same(init_id, prepare_.init_id()) || missing_.erase(partition) == 0) return;
  if (!error_.empty()) return;
  SLUICE_DCHECK(initial_.count(partition) > 0 && files_.count(partition) > 0,
                "a shard loads the partitions that it owns");
  const v1::PartitionFile& entry = files_[partition];
  const absl::StatusOr<std::shared_ptr<PartitionContent>> content =
      file.ok() ? DecodePartition(job_.model, entry, *file, *state_.pool())
                : absl::StatusOr<std::shared_ptr<PartitionContent>>(file.status());
  if (!content.ok()) {
    error_ = absl::StrCat(content.status().message());
  } else if ((*content)->version != prepare_.checkpoint().checkpoint().step()) {
    error_ = absl::StrCat(entry.name(), " holds version ", (*content)->version, ", not ",
                          prepare_.checkpoint().checkpoint().step());
  } else {
    initial_[partition] = {std::move((*content)->blocks), prepare_.version()};
    clocks_.insert(clocks_.end(), (*content)->clocks.begin(), (*content)->clocks.end());
  }
  CheckReady();
}

void Initialization::CheckReady() {
  if (error_.empty() && !missing_.empty()) return;
  Report();
}

void Initialization::Report() {
  if (!has_init_id_ || (error_.empty() && !missing_.empty())) return;
  v1::MemberMessage message;
  *message.mutable_state_ready()->mutable_init_id() = prepare_.init_id();
  message.mutable_state_ready()->set_error(error_);
  out_.Report(std::move(message));
}

PartitionMap Initialization::TakePartitions() {
  SLUICE_DCHECK(ready(), "R12: only a whole state becomes partitions");
  PartitionMap partitions;
  for (auto& [number, initial] : initial_) {
    SLUICE_DCHECK(std::all_of(initial.blocks.begin(), initial.blocks.end(),
                              [](const BlockState& block) { return block.parameters != nullptr; }),
                  "every block of a first state has arrived");
    partitions.try_emplace(number, job_.model, number, initial.version, std::move(initial.blocks));
  }
  initial_.clear();
  return partitions;
}

}  // namespace sluice::ps
