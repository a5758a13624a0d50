#include "services/ps/core/testing/shard_harness.h"

#include <cstring>
#include <utility>

#include "services/protocol/layout.h"
#include "services/ps/core/state/partition_file.h"

namespace sluice::ps {

absl::Cord CordOf(const std::vector<float>& values) {
  return absl::Cord(absl::string_view(reinterpret_cast<const char*>(values.data()),
                                      values.size() * sizeof(float)));
}

std::vector<float> FloatsOf(const absl::Cord& bytes) {
  const std::string flat(bytes);
  std::vector<float> values(flat.size() / sizeof(float));
  std::memcpy(values.data(), flat.data(), values.size() * sizeof(float));
  return values;
}

ShardHarness::ShardHarness() {
  job.set_name("test");
  job.mutable_optimizer()->set_name(v1::OptimizerSpec::ADD);
  job.mutable_training()->set_mode(v1::SYNCHRONOUS);
  job.mutable_training()->set_global_batch_size(4);
  job.mutable_training()->set_steps(100);

  v1::TensorSpec* tensor = table.add_tensors();
  tensor->set_name("w");
  tensor->add_shape(4);
  tensor->set_dtype(v1::FLOAT32);
  tensor = table.add_tensors();
  tensor->set_name("b");
  tensor->add_shape(2);
  tensor->set_dtype(v1::FLOAT32);

  options.identity.set_job("default/test/1");
  options.identity.mutable_process()->set_role(v1::SHARD);
  options.identity.mutable_process()->set_incarnation(kShardIncarnation);
}

void ShardHarness::EnsureCore() {
  if (core_ != nullptr) return;
  core_ = std::make_unique<ShardCore>(options, nullptr, rules);
}

void ShardHarness::Collect() {
  EnsureCore();
  for (ShardAction& action : core_->TakeActions()) {
    if (auto* send = std::get_if<SendFrame>(&action); send != nullptr) {
      frames_[send->stream].push_back(std::move(*send));
    } else if (auto* close = std::get_if<CloseStream>(&action); close != nullptr) {
      closed_[close->stream] = close->status;
    } else if (auto* message = std::get_if<SendToCoordinator>(&action); message != nullptr) {
      messages_.push_back(std::move(message->message));
    } else {
      other_.push_back(std::move(action));
    }
  }
}

// ---------------------------------------------------------------- coordinator

void ShardHarness::Connect() {
  EnsureCore();
  core_->OnCoordinatorConnected(now);
  v1::CoordinatorMessage message;
  message.mutable_registered()->set_attempt(1);
  message.mutable_registered()->mutable_term()->set_counter(1);
  message.mutable_registered()->mutable_term()->set_coordinator(1);
  *message.mutable_registered()->mutable_job() = job;
  Deliver(message);
}

void ShardHarness::Deliver(const v1::CoordinatorMessage& message) {
  core_->OnCoordinatorMessage(message, now);
  Collect();
}

v1::PrepareState ShardHarness::MakePrepareState(uint64_t number, uint64_t attempt) const {
  v1::PrepareState prepare;
  prepare.mutable_init_id()->set_attempt(attempt);
  prepare.mutable_init_id()->mutable_term()->set_counter(1);
  prepare.mutable_init_id()->mutable_term()->set_coordinator(1);
  prepare.mutable_init_id()->set_number(number);
  *prepare.mutable_job() = job;
  *prepare.mutable_table() = table;
  *prepare.mutable_layout() = *MakeLayout(table, static_cast<uint32_t>(owner.size()));
  const v1::View view = MakeView(number, 0, {});
  *prepare.mutable_shards() = view.shards();
  *prepare.mutable_owner() = view.owner();
  prepare.set_training_samples(1000);
  return prepare;
}

void ShardHarness::Prepare(uint64_t number, uint64_t attempt) {
  v1::CoordinatorMessage message;
  *message.mutable_prepare_state() = MakePrepareState(number, attempt);
  layout_ = message.prepare_state().layout();
  Deliver(message);
}

void ShardHarness::Pause(uint64_t number, uint64_t term, uint64_t attempt) {
  v1::CoordinatorMessage message;
  v1::Pause& pause = *message.mutable_pause();
  pause.mutable_id()->set_attempt(attempt);
  pause.mutable_id()->mutable_term()->set_counter(term);
  pause.mutable_id()->mutable_term()->set_coordinator(term);
  pause.mutable_id()->set_number(number);
  pause.set_now(true);
  Deliver(message);
}

void ShardHarness::PauseAfter(uint64_t step, uint64_t number) {
  v1::CoordinatorMessage message;
  v1::Pause& pause = *message.mutable_pause();
  pause.mutable_id()->set_attempt(1);
  pause.mutable_id()->mutable_term()->set_counter(1);
  pause.mutable_id()->mutable_term()->set_coordinator(1);
  pause.mutable_id()->set_number(number);
  pause.set_after_step(step);
  Deliver(message);
}

v1::View ShardHarness::MakeView(uint64_t number, uint64_t first_step,
                                const std::vector<uint64_t>& members, uint64_t attempt) const {
  v1::View view;
  *view.mutable_id() = HeaderOf(number).view();
  view.mutable_id()->set_attempt(attempt);
  view.set_mode(job.training().mode());
  view.set_first_step(first_step);
  for (uint64_t i = 0; i < members.size(); ++i) {
    v1::View::Member& member = *view.add_workers();
    member.mutable_process()->set_role(v1::WORKER);
    member.mutable_process()->set_index(static_cast<uint32_t>(i));
    member.mutable_process()->set_incarnation(members[i]);
    const v1::Range range = Microbatches(i * 4 / members.size(), (i + 1) * 4 / members.size());
    if (range.end() > range.begin()) *member.add_microbatches() = range;
  }
  for (uint64_t incarnation : {kShardIncarnation, kOtherShardIncarnation}) {
    v1::View::Shard& shard = *view.add_shards();
    shard.mutable_process()->set_role(v1::SHARD);
    shard.mutable_process()->set_incarnation(incarnation);
  }
  for (uint32_t position : owner) view.add_owner(position);
  *view.mutable_init_id() = FirstInitId(attempt);
  return view;
}

v1::InitId ShardHarness::FirstInitId(uint64_t attempt) {
  v1::InitId init_id;
  init_id.set_attempt(attempt);
  init_id.mutable_term()->set_counter(1);
  init_id.mutable_term()->set_coordinator(1);
  init_id.set_number(1);
  return init_id;
}

v1::Install ShardHarness::MakeInstall(const v1::View& view) const {
  v1::Install install;
  install.mutable_pause()->set_attempt(view.id().attempt());
  *install.mutable_pause()->mutable_term() = view.id().term();
  install.mutable_pause()->set_number(view.id().number());
  *install.mutable_view() = view;
  return install;
}

void ShardHarness::Install(const v1::View& view) {
  v1::CoordinatorMessage message;
  *message.mutable_install() = MakeInstall(view);
  Deliver(message);
}

void ShardHarness::ChangeView(uint64_t number, uint64_t first_step,
                              const std::vector<uint64_t>& members) {
  Pause(number);
  Install(MakeView(number, first_step, members));
}

void ShardHarness::Begin(const std::vector<uint64_t>& members) {
  Connect();
  Prepare(1);
  const StreamId stream = Open(999);
  for (uint32_t partition = 0; partition < owner.size(); ++partition) {
    if (owner[partition] != 0) continue;
    v1::Header header;
    v1::InitPush& push = *header.mutable_init_push();
    *push.mutable_init_id() = FirstInitId(1);
    push.set_partition(partition);
    const absl::Cord payload = CordOf(partition == 0 ? w : b);
    v1::BlockHeader& block = *push.add_blocks();
    block.set_block(partition);
    block.set_payload_bytes(payload.size());
    Send(stream, header, payload);
  }

  ChangeView(1, 0, members);
  TakeMessages();
}

// ---------------------------------------------------------------- streams

StreamId ShardHarness::OpenSilent() {
  EnsureCore();
  const StreamId stream = next_stream_++;
  core_->OnConnected(stream, now);
  Collect();
  return stream;
}

v1::Header ShardHarness::MakeHello(uint64_t incarnation, v1::Role role, uint32_t index) const {
  v1::Header header;
  v1::Hello& hello = *header.mutable_hello();
  hello.set_min_wire_version(1);
  hello.set_max_wire_version(1);
  hello.set_job(options.identity.job());
  hello.mutable_sender()->set_role(role);
  hello.mutable_sender()->set_index(index);
  hello.mutable_sender()->set_incarnation(incarnation);
  hello.set_shard_incarnation(options.identity.process().incarnation());
  return header;
}

void ShardHarness::Admit(uint64_t incarnation, v1::Role role, uint32_t index) {
  EnsureCore();
  v1::ProcessId& process = *admitted_.mutable_admitted()->add_processes();
  process.set_role(role);
  process.set_index(index);
  process.set_incarnation(incarnation);
  Deliver(admitted_);
}

StreamId ShardHarness::Open(uint64_t incarnation, v1::Role role) {
  if (admits && role != v1::SHARD) Admit(incarnation, role);
  const StreamId stream = OpenSilent();
  Send(stream, MakeHello(incarnation, role));
  TakeFrames(stream);
  return stream;
}

void ShardHarness::Send(StreamId stream, const v1::Header& header, const absl::Cord& payload) {
  core_->OnFrame(stream, header, payload, now);
  Collect();
}

bool ShardHarness::ReadCopyIfDue() {
  std::vector<ReadCopy> reads = TakeActions<ReadCopy>();
  if (reads.empty()) return false;
  core_->OnCopyRead(reads[0].transfer, ReadReceivedCopy(reads[0]), now);
  for (size_t i = 1; i < reads.size(); ++i) other_.emplace_back(std::move(reads[i]));
  Collect();
  return true;
}

bool ShardHarness::TickIfDue() {
  if (core_->NextDeadline() > now) return false;
  core_->OnTick(now);
  Collect();
  return true;
}

v1::Header ShardHarness::HeaderOf(uint64_t view_number) const {
  v1::Header header;
  header.mutable_view()->set_attempt(1);
  header.mutable_view()->mutable_term()->set_counter(1);
  header.mutable_view()->mutable_term()->set_coordinator(1);
  header.mutable_view()->set_number(view_number);
  return header;
}

v1::Range ShardHarness::Microbatches(uint64_t begin, uint64_t end) {
  v1::Range range;
  range.set_begin(begin);
  range.set_end(end);
  return range;
}

v1::Header ShardHarness::MakePush(uint64_t step, uint32_t partition, const v1::Range& microbatches,
                                  uint64_t samples) const {
  v1::Header header;
  *header.mutable_view() = core_->Status().view;
  v1::Push& push = *header.mutable_push();
  push.set_step(step);
  push.set_partition(partition);
  *push.mutable_microbatches() = microbatches;
  v1::BlockHeader& block = *push.add_blocks();
  block.set_block(partition);
  block.set_payload_bytes(partition == 0 ? 16 : 8);
  push.add_complete(partition);
  push.set_samples(samples);
  push.set_microbatch_count(microbatches.end() - microbatches.begin());
  return header;
}

void ShardHarness::Push(StreamId stream, uint64_t step, uint32_t partition,
                        const std::vector<float>& values, const v1::Range& microbatches,
                        uint64_t samples, bool pull_next) {
  v1::Header header = MakePush(step, partition, microbatches, samples);
  header.mutable_push()->set_pull_next(pull_next);
  Send(stream, header, CordOf(values));
}

void ShardHarness::Pull(StreamId stream, uint64_t version, uint64_t request) {
  v1::Header header;
  *header.mutable_view() = core_->Status().view;
  header.mutable_pull()->set_version(version);
  header.mutable_pull()->set_request(request);
  Send(stream, header);
}

std::vector<v1::Header> ShardHarness::TakeFrames(StreamId stream) {
  Collect();
  std::vector<v1::Header> headers;
  for (const SendFrame& frame : frames_[stream]) headers.push_back(frame.header);
  frames_[stream].clear();
  return headers;
}

std::vector<SendFrame> ShardHarness::TakeSent(StreamId stream) {
  Collect();
  return std::exchange(frames_[stream], {});
}

std::map<std::pair<uint32_t, uint64_t>, std::vector<float>> ShardHarness::TakeData(
    StreamId stream) {
  Collect();
  std::map<std::pair<uint32_t, uint64_t>, std::vector<float>> data;
  for (const SendFrame& frame : frames_[stream]) {
    if (!frame.header.has_data()) continue;
    std::vector<float>& values =
        data[{frame.header.data().partition(), frame.header.data().version()}];
    for (float value : FloatsOf(frame.payload)) values.push_back(value);
  }
  frames_[stream].clear();
  return data;
}

std::vector<v1::MemberMessage> ShardHarness::TakeMessages() {
  Collect();
  return std::exchange(messages_, {});
}

absl::Status ShardHarness::StatusOf(StreamId stream) {
  Collect();
  const auto found = closed_.find(stream);
  return found == closed_.end() ? absl::OkStatus() : found->second;
}

uint64_t ShardHarness::Version(uint32_t partition) { return core_->Content(partition)->version; }

std::vector<float> ShardHarness::Values(uint32_t partition) {
  std::vector<float> values;
  const std::shared_ptr<const PartitionContent> content = core_->Content(partition);
  for (const BlockState& block : content->blocks) {
    for (float value : block.parameters->As<float>()) values.push_back(value);
  }
  return values;
}

}  // namespace sluice::ps
