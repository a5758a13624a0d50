#include "services/checkpoint/existing_job.h"

#include <google/protobuf/util/json_util.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "services/common/crc32c.h"
#include "services/common/json_difference.h"
#include "services/common/json_text.h"
#include "services/common/status_macros.h"
#include "services/common/utf8.h"
#include "services/protocol/changeable_settings.h"

namespace sluice {
namespace {

using Json = nlohmann::json;
using Kind = ExistingJob::Kind;

constexpr const char* kLength[] = {"spec.training.steps", "spec.training.epochs",
                                   "spec.training.target", "spec.training.stopping"};
constexpr size_t kMaxShown = 10;       // differences in one message
constexpr size_t kMaxValueBytes = 80;  // of one value in a message
constexpr size_t kMaxSettingsDepth = 32;
// Longer settings are not recorded: claims are small.
constexpr size_t kMaxSettingsBytes = 16 << 10;

std::string ValueText(const Json* value) {
  if (value == nullptr) return "(unset)";
  // 64-bit integers are strings in JSON made from protobufs.
  const std::string text = value->is_string()
                               ? value->get<std::string>()
                               : value->dump(-1, ' ', false, Json::error_handler_t::replace);
  return text.size() <= kMaxValueBytes ? text
                                       : absl::StrCat(TruncateUtf8(text, kMaxValueBytes), "...");
}

std::string ListText(std::vector<std::string> changes) {
  if (changes.size() > kMaxShown) {
    const size_t more = changes.size() - kMaxShown;
    changes.resize(kMaxShown);
    changes.push_back(absl::StrCat(more, " more"));
  }
  return absl::StrJoin(changes, ", ");
}

// Empty if the claim does not record its job's settings, or they cannot be parsed.
Json ParseSettings(const std::string& text) {
  if (text.empty() || !CheckJsonText(text, kMaxSettingsDepth).ok()) return Json();
  Json settings = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  return settings.is_object() ? settings : Json();
}

Json TrainingOf(const Json& settings, const char* name) {
  const Json training = settings.value("training", Json());
  return training.is_object() ? training.value(name, Json()) : Json();
}

uint64_t NumberOf(const Json& settings, const char* name) {
  const Json value = TrainingOf(settings, name);
  uint64_t number = 0;
  return value.is_string() && absl::SimpleAtoi(value.get<std::string>(), &number) ? number : 0;
}

// Whether the second job asks for more training than the first one.
bool AsksForMore(const Json& before, const Json& after) {
  return NumberOf(after, "steps") > NumberOf(before, "steps") ||
         NumberOf(after, "epochs") > NumberOf(before, "epochs") ||
         TrainingOf(after, "target") != TrainingOf(before, "target") ||
         TrainingOf(after, "stopping") != TrainingOf(before, "stopping");
}

// What another activation left in the storage.
struct Found {
  std::string job;
  bool finished = false;
  std::string time;  // of its newest claim
  std::optional<v1::CheckpointRef> checkpoint;
  bool settings_known = false;
  bool longer = false;
  // Of settings that differ: "spec.training.steps 100 -> 200".
  std::vector<std::string> length;
  std::vector<std::string> changeable;  // IsChangeableSetting
  std::vector<std::string> settings;    // all others
  bool fits = true;                     // no setting of these decides which form the checkpoint has
};

std::string FoundText(const v1::JobSpec& job, const Found& found) {
  const std::string& directory = job.checkpoint().directory();
  const std::string at =
      found.checkpoint.has_value()
          ? absl::StrCat(found.finished ? " after step " : "; its newest checkpoint is of step ",
                         found.checkpoint->step())
          : "";

  std::string text = absl::StrCat("the checkpoint directory", directory.empty() ? "" : " ",
                                  directory, " holds job ", found.job);
  if (found.finished) {
    absl::StrAppend(&text, ", which finished", at, found.time.empty() ? "" : " at ", found.time);
  } else {
    absl::StrAppend(&text, ", which has not finished", at,
                    found.time.empty() ? "" : absl::StrCat(", its newest attempt of ", found.time));
  }

  std::vector<std::string> all = found.length;
  all.insert(all.end(), found.changeable.begin(), found.changeable.end());
  all.insert(all.end(), found.settings.begin(), found.settings.end());
  if (!found.settings_known) {
    absl::StrAppend(&text, "; its settings are not recorded");
  } else if (all.empty()) {
    absl::StrAppend(&text, "; its settings are those of this job");
  } else {
    absl::StrAppend(&text, "; this job differs in ", ListText(std::move(all)));
  }
  return text;
}

// Names what a user can set.
std::string Advice(const v1::JobSpec& job, const Found& found) {
  std::vector<std::string> ways;
  if (!found.settings.empty()) {
    ways.push_back("Resume, with its settings, to continue from it");
  } else {
    ways.push_back(found.finished && found.settings_known && !found.longer
                       ? "Resume to accept its result"
                       : "Resume to continue from it");
  }
  ways.push_back(
      "Replace to train from the beginning (its checkpoints are removed when the first new one is "
      "complete)");
  const bool restores = !found.settings.empty() && found.fits && found.checkpoint &&
                        !job.checkpoint().directory().empty();
  return absl::StrCat(
      ". Nothing was trained or changed. Set checkpoint.onExisting: ", absl::StrJoin(ways, ", or "),
      "; or give this job a directory of its own (checkpoint.storage)",
      restores
          ? absl::StrCat(". To train on from this checkpoint with other settings, give the job "
                         "another name and set checkpoint.restoreFrom: ",
                         job.checkpoint().directory())
          : "");
}

ExistingJob Judge(const v1::JobSpec& job, const Found& found) {
  const std::string text = FoundText(job, found);
  ExistingJob refused = {Kind::kRefused, absl::StrCat(text, Advice(job, found))};
  ExistingJob resumed = {Kind::kResume, absl::StrCat(text, "; training continues from it")};

  switch (job.checkpoint().on_existing()) {
    case v1::CheckpointSpec::REPLACE:
      return {Kind::kReplace,
              absl::StrCat(text,
                           "; training begins again (checkpoint.onExisting: Replace), and those "
                           "checkpoints are removed when the first new one is complete")};
    case v1::CheckpointSpec::RESUME:
      if (!found.settings.empty()) return refused;
      if (!found.finished || !found.settings_known || found.longer) return resumed;
      return {Kind::kFinished, absl::StrCat(text, "; nothing was trained")};
    case v1::CheckpointSpec::UNSET:
      return found.finished || !found.settings_known || !found.settings.empty() ? refused : resumed;
    default:
      return refused;
  }
}

bool MayDiffer(const std::string& path) {
  return IsLengthSetting(path) || IsChangeableSetting(path);
}

// "learningRate 0.0005, was 0.001; steps 200, was 100"
std::string ChangesText(const Json& before, const Json& after) {
  if (!before.is_object() || !after.is_object()) return "";
  std::vector<std::string> changes;
  for (const JsonDifference& each : JsonDifferences("spec", before, after)) {
    if (!MayDiffer(each.path)) continue;
    absl::string_view name = each.path;
    (void)(absl::ConsumePrefix(&name, "spec.optimizer.") ||
           absl::ConsumePrefix(&name, "spec.training."));
    // The text of a message has no fields with the value 0.
    const bool zero = each.path.find('[') == std::string::npos &&
                      (each.before == nullptr ? each.after : each.before)->is_number();
    const auto text = [&](const Json* value) {
      return value == nullptr && zero ? "0" : ValueText(value);
    };
    changes.push_back(absl::StrCat(name, " ", text(each.after), ", was ", text(each.before)));
  }
  if (changes.size() > kMaxShown) {
    const size_t more = changes.size() - kMaxShown;
    changes.resize(kMaxShown);
    changes.push_back(absl::StrCat(more, " more"));
  }
  return absl::StrJoin(changes, "; ");
}

// Replaces a list that would take most of a claim by one entry that says whether it has changed.
void ShortenNames(google::protobuf::RepeatedPtrField<std::string>* names) {
  constexpr int kMaxNames = 256;
  if (names->size() <= kMaxNames) return;
  const std::string all = absl::StrJoin(*names, "\n");
  const std::string entry = absl::StrFormat("%d names, CRC-32C %08x", names->size(), Crc32c(all));
  names->Clear();
  *names->Add() = entry;
}

}  // namespace

std::string FullJobName(const v1::JobSpec& job) {
  return absl::StrCat(job.namespace_(), "/", job.name(), "/", job.uid());
}

bool IsLengthSetting(const std::string& path) {
  return std::any_of(std::begin(kLength), std::end(kLength), [&](const char* length) {
    return path == length || absl::StartsWith(path, absl::StrCat(length, "."));
  });
}

std::string ClaimSettings(const v1::JobSpec& job) {
  v1::JobSpec kept;
  *kept.mutable_model() = job.model();
  kept.mutable_model()->clear_device();
  *kept.mutable_data() = job.data();
  kept.mutable_data()->clear_evaluation();

  kept.set_loss(job.loss());
  *kept.mutable_optimizer() = job.optimizer();
  kept.mutable_parameter_server()->set_partitions(job.parameter_server().partitions());
  if (!job.checkpoint().restore_from().empty()) {
    kept.mutable_checkpoint()->set_restore_from(job.checkpoint().restore_from());
  }

  const v1::TrainingSpec& from = job.training();
  v1::TrainingSpec& training = *kept.mutable_training();
  training.set_steps(from.steps());
  training.set_epochs(from.epochs());
  if (from.has_target()) *training.mutable_target() = from.target();
  if (from.has_stopping()) *training.mutable_stopping() = from.stopping();
  training.set_global_batch_size(from.global_batch_size());
  training.set_microbatch_size(from.microbatch_size());
  training.set_last_batch(from.last_batch());
  training.set_seed(from.seed());
  training.set_bit_exact(from.bit_exact());
  training.set_kernels(from.kernels());
  training.set_aggregation(from.aggregation());
  training.set_non_finite(from.non_finite());
  training.set_sync(from.sync());
  training.set_execution(from.execution());
  if (from.has_stragglers()) *training.mutable_stragglers() = from.stragglers();
  if (from.has_dense()) *training.mutable_dense() = from.dense();

  if (job.data().has_csv()) {
    v1::DataSpec::Csv& csv = *kept.mutable_data()->mutable_csv();
    ShortenNames(csv.mutable_numeric_columns());
    ShortenNames(csv.mutable_categorical_columns());
  }

  std::string json;
  // Fails only on text that is not UTF-8, which no manifest has; then the settings are unknown.
  if (!google::protobuf::util::MessageToJsonString(kept, &json).ok()) json.clear();
  return json.size() <= kMaxSettingsBytes ? json : "";
}

std::optional<v1::OptimizerSpec> ClaimedOptimizer(const v1::Claim& claim) {
  if (!ParseSettings(claim.settings()).is_object()) return std::nullopt;
  google::protobuf::util::JsonParseOptions options;
  options.ignore_unknown_fields = true;
  v1::JobSpec job;
  if (!google::protobuf::util::JsonStringToMessage(claim.settings(), &job, options).ok()) {
    return std::nullopt;
  }
  return job.optimizer();
}

ExistingJob JudgeExisting(const v1::JobSpec& job, const std::vector<v1::Claim>& claims,
                          const RestorePoint& point) {
  if (claims.empty()) return {};
  const v1::Claim& newest = claims.back();
  const std::string name = FullJobName(job);
  // Claims of older versions, and damaged ones, do not name their job.
  const std::string other = newest.job().empty() ? point.checkpoint_index.job() : newest.job();
  const Json before = ParseSettings(newest.settings());
  const Json after = ParseSettings(ClaimSettings(job));
  ExistingJob own;
  own.changes = ChangesText(before, after);
  if (other == name || other.empty()) return own;
  if (!IsSameJob(other, name)) {
    return {Kind::kRefused,
            absl::StrCat("the checkpoint directory ", job.checkpoint().directory(), " is job ",
                         other, "'s, and this is job ", name,
                         ": give each job a directory of its own; to begin with another job's "
                         "checkpoint, name it in checkpoint.restoreFrom")};
  }

  const bool replaced = std::any_of(claims.begin(), claims.end(),
                                    [&](const v1::Claim& claim) { return claim.job() == name; });
  if (replaced) {
    return {Kind::kRefused, absl::StrCat("job ", other, " has taken over the checkpoint directory",
                                         job.checkpoint().directory().empty() ? "" : " ",
                                         job.checkpoint().directory(), " of this job, ", name,
                                         ": give this job a directory of its own "
                                         "(checkpoint.storage)")};
  }

  const bool replace = job.checkpoint().on_existing() == v1::CheckpointSpec::REPLACE;
  // Nothing was saved, so nothing is lost.
  if (!point.found && !newest.end() && !replace) return {};

  Found found;
  found.job = other;
  found.finished = newest.end();
  found.time = newest.time();
  if (point.found) found.checkpoint = point.checkpoint_index.checkpoint();

  found.settings_known = before.is_object() && after.is_object();
  if (found.settings_known) {
    const std::vector<JsonDifference> differences = JsonDifferences("spec", before, after);
    for (const JsonDifference& each : differences) {
      (IsLengthSetting(each.path)       ? found.length
       : IsChangeableSetting(each.path) ? found.changeable
                                        : found.settings)
          .push_back(
              absl::StrCat(each.path, " ", ValueText(each.before), " -> ", ValueText(each.after)));
    }
    found.fits = absl::c_none_of(differences, [](const JsonDifference& each) {
      return !IsChangeableSetting(each.path) && ShapesCheckpoint(each.path);
    });
    found.longer = AsksForMore(before, after);
  }

  ExistingJob existing = Judge(job, found);
  if (existing.kind == Kind::kResume) existing.changes = std::move(own.changes);
  return existing;
}

absl::StatusOr<OpenedStorage> ReadForJob(CheckpointStorage& storage, const v1::JobSpec& job) {
  OpenedStorage opened;
  ASSIGN_OR_RETURN(opened.claims, storage.ReadClaims());

  absl::StatusOr<RestorePoint> point = FindRestorePoint(storage);
  if (point.ok()) {
    opened.existing = JudgeExisting(job, opened.claims, *point);
    opened.point = *std::move(point);
  } else {
    // Replaced checkpoints need not be whole. But their numbers must be known, and that they are
    // another activation's.
    absl::StatusOr<std::vector<v1::CheckpointRef>> checkpoints = storage.ListCheckpoints();
    if (!absl::IsFailedPrecondition(point.status()) || !checkpoints.ok()) return point.status();
    const uint64_t highest = opened.claims.empty() ? 0 : opened.claims.back().attempt();
    for (const v1::CheckpointRef& ref : *checkpoints) {
      if (ref.attempt() > highest) return point.status();
    }
    opened.existing = JudgeExisting(job, opened.claims, RestorePoint());
    if (opened.existing.kind != Kind::kReplace) return point.status();
    return opened;
  }

  // A damaged claim may be this job's own, of checkpoints that are damaged too. Then it is unknown
  // whether the next candidate was replaced.
  const bool others = !opened.point.checkpoint_index.job().empty() &&
                      opened.point.checkpoint_index.job() != FullJobName(job);
  const bool of_unknown_job =
      opened.existing.kind == Kind::kReplace
          ? IsDamaged(opened.claims.back()) && !opened.point.passed_over.empty()
          : job.checkpoint().on_existing() == v1::CheckpointSpec::REPLACE && others &&
                std::any_of(opened.claims.begin(), opened.claims.end(), [&](const auto& claim) {
                  return IsDamaged(claim) &&
                         claim.attempt() > opened.point.checkpoint_index.checkpoint().attempt();
                });

  if (of_unknown_job) {
    return absl::FailedPreconditionError(absl::StrCat(
        "the job that wrote these checkpoints is unknown: ",
        absl::StrJoin(opened.point.damaged, "; "),
        ". Restore the damaged files from a copy, or remove the directory to train from "
        "the beginning"));
  }

  if (opened.existing.kind == Kind::kReplace) {
    opened.point = RestorePoint();
  }
  return opened;
}

std::vector<v1::CheckpointRef> ReplacedCheckpoints(
    const v1::JobSpec& job, const std::vector<v1::Claim>& claims,
    const std::vector<v1::CheckpointRef>& checkpoints) {
  if (job.checkpoint().on_existing() != v1::CheckpointSpec::REPLACE) return {};
  const std::string name = FullJobName(job);
  const auto first = std::find_if(claims.begin(), claims.end(),
                                  [&](const v1::Claim& claim) { return claim.job() == name; });
  if (first == claims.end() || first->end() || first->has_parent()) return {};
  std::vector<v1::CheckpointRef> replaced;
  for (const v1::CheckpointRef& ref : checkpoints) {
    if (ref.attempt() < first->attempt()) replaced.push_back(ref);
  }
  return replaced;
}

}  // namespace sluice
