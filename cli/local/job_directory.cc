#include "cli/local/job_directory.h"

#include <fcntl.h>
#include <google/protobuf/util/json_util.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <system_error>
#include <thread>
#include <utility>

#include "absl/strings/cord.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "absl/time/time.h"
#include "cli/common/progress_text.h"
#include "proto/jobcontrol.pb.h"
#include "services/common/status_macros.h"
#include "services/common/text/json_text.h"
#include "services/manifest/codec.h"

namespace sluice::local {
namespace {

constexpr char kSizesFile[] = "sizes.json";
constexpr uint32_t kMaxReplicas = 1024;  // as in the manifest
constexpr size_t kMaxFileBytes = size_t{4} << 20;

// How long a lock may be held while its file does not name the holder: during locking and
// unlocking.
constexpr std::chrono::milliseconds kNamelessFor(1000);
constexpr std::chrono::milliseconds kPoll(1);

// The whole file, for writing. Only a lock of an open file description (of those in flock(2) and
// fcntl(2)) both ends with that description alone and can be queried without being taken.
struct flock WholeFile() {
  struct flock lock = {};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  return lock;
}

bool IsLocked(int fd) {
  struct flock lock = WholeFile();
  lock.l_type = F_RDLCK;
  return fcntl(fd, F_OFD_GETLK, &lock) == 0 && lock.l_type != F_UNLCK;
}

std::string ReadLockText(int fd) {
  char text[32];
  const ssize_t got = pread(fd, text, sizeof(text), 0);
  return got > 0 ? std::string(absl::StripAsciiWhitespace({text, static_cast<size_t>(got)})) : "";
}

absl::StatusOr<nlohmann::json> ReadJson(FileSystem* files, const std::string& path) {
  ASSIGN_OR_RETURN(std::string text, files->Read(path, kMaxFileBytes));
  RETURN_IF_ERROR(CheckJsonText(text, kMaxObjectDepth),
                  absl::DataLossError(absl::StrCat(path, " is damaged: ", _.message())));
  nlohmann::json json = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return absl::DataLossError(absl::StrCat(path, " is damaged"));
  return json;
}

absl::Status WriteJson(FileSystem* files, const std::string& path, const nlohmann::json& json) {
  // The termination message of a process and its paths may be in any encoding.
  const std::string text = json.dump(2, ' ', false, nlohmann::json::error_handler_t::replace);
  return AtomicWriteFile(files, path, absl::Cord(text + "\n"), absl::StrCat(getpid()));
}

nlohmann::json MessageJson(const google::protobuf::Message& message) {
  std::string text;
  (void)google::protobuf::util::MessageToJsonString(message, &text);
  return nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
}

// The value if it exists and has that type.
template <typename T>
T Get(const nlohmann::json& json, const char* key, T otherwise) {
  const auto found = json.find(key);
  if (found == json.end()) return otherwise;
  if constexpr (std::is_same_v<T, std::string>) {
    return found->is_string() ? found->template get<T>() : otherwise;
  } else {
    return found->is_number() ? found->template get<T>() : otherwise;
  }
}

}  // namespace

std::string SizesText(const Sizes& sizes) {
  return absl::StrCat(cli::CountedText(sizes.shards, "shard"), " and ",
                      cli::CountedText(sizes.workers, "worker"));
}

JobLock::~JobLock() {
  (void)!ftruncate(fd_, 0);
  close(fd_);
}

JobDirectory::JobDirectory(FileSystem* files, absl::string_view state_directory,
                           absl::string_view name)
    : files_(files), path_(JoinPath(state_directory, name)) {}

std::string JobDirectory::LogFile(const policy::Replica& replica) const {
  return JoinPath(logs(), absl::StrCat(policy::ReplicaName(replica), ".log"));
}

std::string JobDirectory::CheckpointsOf(const v1::JobSpec& job) const {
  const std::string& named = job.checkpoint().directory();
  return named.empty() ? checkpoints() : named;
}

absl::StatusOr<std::unique_ptr<JobLock>> JobDirectory::Lock() {
  RETURN_IF_ERROR(files_->CreateDirectories(path_));
  const std::string file = JoinPath(path_, "lock");
  const int fd = open(file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (fd < 0) return absl::ErrnoToStatus(errno, file);

  if (struct flock lock = WholeFile(); fcntl(fd, F_OFD_SETLK, &lock) != 0) {
    const int error = errno;
    const std::string holder = ReadLockText(fd);
    close(fd);
    if (error != EAGAIN && error != EACCES) return absl::ErrnoToStatus(error, file);
    return absl::AbortedError(
        absl::StrCat("the job in ", path_, " is already running",
                     holder.empty() ? "" : absl::StrCat(" (pid ", holder, ")")));
  }

  const std::string own = absl::StrCat(getpid(), "\n");
  if (ftruncate(fd, 0) != 0 ||
      pwrite(fd, own.data(), own.size(), 0) != static_cast<ssize_t>(own.size())) {
    const int error = errno;
    close(fd);
    return absl::ErrnoToStatus(error, file);
  }
  return std::unique_ptr<JobLock>(new JobLock(fd));
}

std::optional<pid_t> JobDirectory::LockedBy() const {
  const int fd = open(JoinPath(path_, "lock").c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return std::nullopt;

  std::optional<pid_t> holder;
  const auto deadline = std::chrono::steady_clock::now() + kNamelessFor;
  while (!holder.has_value() && IsLocked(fd) && std::chrono::steady_clock::now() < deadline) {
    int pid = 0;
    if (absl::SimpleAtoi(ReadLockText(fd), &pid)) {
      holder = pid;
    } else {
      std::this_thread::sleep_for(kPoll);
    }
  }
  close(fd);
  return holder;
}

absl::Status JobDirectory::Prepare() {
  RETURN_IF_ERROR(RemoveRun());
  for (const std::string& directory : {logs(), run()}) {
    RETURN_IF_ERROR(files_->CreateDirectories(directory));
  }
  std::error_code error;
  std::filesystem::permissions(run(), std::filesystem::perms::owner_all, error);
  return error ? absl::ErrnoToStatus(error.value(), run()) : absl::OkStatus();
}

absl::Status JobDirectory::RemoveRun() {
  std::error_code error;
  std::filesystem::remove_all(run(), error);
  return error ? absl::ErrnoToStatus(error.value(), run()) : absl::OkStatus();
}

absl::Status JobDirectory::Clear() {
  for (const char* name : {"result.json", "job.json", "run", "logs", "checkpoints"}) {
    const std::string path = JoinPath(path_, name);
    std::error_code error;
    std::filesystem::remove_all(path, error);
    if (error) return absl::ErrnoToStatus(error.value(), path);
  }
  return absl::OkStatus();
}

absl::Status JobDirectory::WriteJob(const api::TrainingJob& job) {
  nlohmann::json object = api::ToJson(job);
  object["metadata"]["uid"] = job.spec.uid();
  return WriteJson(files_, JobFile(), object);
}

absl::StatusOr<api::TrainingJob> JobDirectory::ReadJob() const {
  ASSIGN_OR_RETURN(nlohmann::json json, ReadJson(files_, JobFile()));
  api::TrainingJob job = api::FromJson(json);
  if (job.spec.uid().empty()) return absl::DataLossError(absl::StrCat(JobFile(), " has no uid"));
  return job;
}

absl::Status JobDirectory::RequestSizes(const Sizes& sizes) {
  return WriteJson(files_, JoinPath(run(), kSizesFile),
                   {{"shards", sizes.shards}, {"workers", sizes.workers}});
}

std::optional<Sizes> JobDirectory::TakeRequestedSizes() {
  // Renamed first, so that a request that arrives meanwhile is not removed unread.
  const std::string taken = JoinPath(run(), "sizes.taken.json");
  if (!HasRequestedSizes() || !files_->Rename(JoinPath(run(), kSizesFile), taken).ok()) {
    return std::nullopt;
  }

  const absl::StatusOr<nlohmann::json> json = ReadJson(files_, taken);
  (void)files_->Remove(taken);  // a later request replaces it
  if (!json.ok()) return std::nullopt;

  const Sizes sizes = {Get<uint32_t>(*json, "shards", 0), Get<uint32_t>(*json, "workers", 0)};
  const auto valid = [](uint32_t count) { return count > 0 && count <= kMaxReplicas; };
  return valid(sizes.shards) && valid(sizes.workers) ? std::optional<Sizes>(sizes) : std::nullopt;
}

bool JobDirectory::HasRequestedSizes() const {
  const absl::StatusOr<bool> exists = files_->Exists(JoinPath(run(), kSizesFile));
  return exists.ok() && *exists;
}

absl::Status JobDirectory::WriteResult(const cli::JobResult& result) {
  const v1::JobProgress& progress = result.progress;
  const v1::Evaluation& evaluation = progress.last_evaluation();
  nlohmann::json json = {
      {"outcome", cli::OutcomeName(result.outcome.kind)},
      {"reason", result.outcome.reason},
      {"time", result.ended == absl::InfinitePast()
                   ? ""
                   : absl::FormatTime(absl::RFC3339_sec, result.ended, absl::UTCTimeZone())},
      {"step", progress.step()},
      {"totalSteps", progress.total_steps()},
      {"samples", progress.samples()},
      {"totalSamples", progress.total_samples()},
      {"epoch", progress.epoch()}};

  if (evaluation.has_accuracy()) json["accuracy"] = evaluation.accuracy();
  if (evaluation.has_perplexity()) json["perplexity"] = evaluation.perplexity();
  if (progress.has_loss()) json["loss"] = progress.loss();
  if (progress.has_last_evaluation()) json["evaluation"] = MessageJson(evaluation);
  return WriteJson(files_, JoinPath(path_, "result.json"), json);
}

absl::Status JobDirectory::RemoveResult() {
  const absl::Status status = files_->Remove(JoinPath(path_, "result.json"));
  return absl::IsNotFound(status) ? absl::OkStatus() : status;
}

absl::StatusOr<cli::JobResult> JobDirectory::ReadResult() const {
  ASSIGN_OR_RETURN(nlohmann::json json, ReadJson(files_, JoinPath(path_, "result.json")));
  cli::JobResult result;
  result.outcome.kind = policy::OutcomeKind::kSuspended;

  const std::string outcome = Get<std::string>(json, "outcome", "");
  for (const auto candidate : {policy::OutcomeKind::kSucceeded, policy::OutcomeKind::kFailed}) {
    if (outcome == cli::OutcomeName(candidate)) result.outcome.kind = candidate;
  }

  result.outcome.reason = Get<std::string>(json, "reason", "");

  std::string error;
  if (!absl::ParseTime(absl::RFC3339_full, Get<std::string>(json, "time", ""), &result.ended,
                       &error)) {
    result.ended = absl::InfinitePast();
  }

  result.has_progress = true;
  v1::JobProgress& progress = result.progress;
  progress.set_step(Get<uint64_t>(json, "step", 0));
  progress.set_total_steps(Get<uint64_t>(json, "totalSteps", 0));
  progress.set_samples(Get<uint64_t>(json, "samples", 0));
  progress.set_total_samples(Get<uint64_t>(json, "totalSamples", 0));
  progress.set_epoch(Get<double>(json, "epoch", 0));
  progress.set_has_loss(json.contains("loss"));
  progress.set_loss(Get<double>(json, "loss", 0));

  if (const auto found = json.find("evaluation"); found != json.end()) {
    v1::Evaluation evaluation;
    if (google::protobuf::util::JsonStringToMessage(found->dump(), &evaluation).ok()) {
      *progress.mutable_last_evaluation() = std::move(evaluation);
    }
  }
  return result;
}

std::vector<std::string> ListJobs(FileSystem* files, const std::string& state_directory) {
  std::vector<std::string> jobs;
  const absl::StatusOr<std::vector<std::string>> names = files->List(state_directory);
  if (!names.ok()) return jobs;
  for (const std::string& name : *names) {
    const auto exists = files->Exists(JoinPath(JoinPath(state_directory, name), "lock"));
    if (exists.ok() && *exists) jobs.push_back(name);
  }
  return jobs;
}

std::vector<std::string> LastLines(const std::string& path, size_t count, uint64_t from) {
  constexpr std::streamoff kMaxBytes = 64 << 10;
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  if (!file) return {};

  const std::streamoff size = file.tellg();
  const auto first = from > static_cast<uint64_t>(size) ? 0 : static_cast<std::streamoff>(from);
  const std::streamoff begin = std::max(first, size - kMaxBytes);

  std::string text(static_cast<size_t>(size - begin), '\0');
  file.seekg(begin);
  file.read(text.data(), static_cast<std::streamsize>(text.size()));

  std::vector<std::string> lines = absl::StrSplit(absl::StripSuffix(text, "\n"), '\n');
  if (begin > first && !lines.empty()) lines.erase(lines.begin());  // it may be incomplete
  if (lines.size() == 1 && lines[0].empty()) return {};
  if (lines.size() > count) lines.erase(lines.begin(), lines.end() - static_cast<long>(count));
  return lines;
}

}  // namespace sluice::local
