#include "services/checkpoint/existing_job.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "services/common/arithmetic/crc32c.h"
#include "services/common/status_macros.h"
#include "services/common/text/json_difference.h"
#include "services/common/text/json_text.h"
#include "services/common/text/utf8.h"
#include "services/manifest/codec.h"
#include "services/manifest/field_table.h"
#include "services/manifest/resume.h"

namespace sluice {
namespace {

using Json = nlohmann::json;
using Kind = ExistingJob::Kind;

constexpr size_t kMaxShown = 10;       // differences in one message
constexpr size_t kMaxValueBytes = 80;  // of one value in a message
constexpr size_t kMaxSettingsDepth = 32;
// Longer settings are not recorded: claims are small.
constexpr size_t kMaxSettingsBytes = 16 << 10;

std::string ValueText(const Json* value) {
  if (value == nullptr) return "(unset)";
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

// {"spec": {...}}; null if the claim does not record its job's settings, or not in this form.
Json ParseSettings(const std::string& text) {
  if (text.empty() || !CheckJsonText(text, kMaxSettingsDepth).ok()) return Json();
  Json settings = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  const bool is_manifest =
      settings.is_object() && settings.contains("spec") && settings["spec"].is_object();
  return is_manifest ? settings : Json();
}

Json TrainingOf(const Json& settings, const char* name) {
  const Json training = settings["spec"].value("training", Json());
  return training.is_object() ? training.value(name, Json()) : Json();
}

uint64_t NumberOf(const Json& settings, const char* name) {
  const Json value = TrainingOf(settings, name);
  return value.is_number_unsigned() ? value.get<uint64_t>() : 0;
}

// Whether the second job asks for more training than the first one.
bool AsksForMore(const Json& before, const Json& after) {
  return NumberOf(after, "steps") > NumberOf(before, "steps") ||
         NumberOf(after, "epochs") > NumberOf(before, "epochs") ||
         TrainingOf(after, "target") != TrainingOf(before, "target") ||
         TrainingOf(after, "stopping") != TrainingOf(before, "stopping");
}

// The state that another activation left in the storage.
struct Found {
  std::string job;
  bool finished = false;
  std::string time;  // of its newest claim
  std::optional<v1::CheckpointRef> checkpoint;
  bool settings_known = false;
  bool settings_recorded = false;
  bool longer = false;
  // Settings that differ: "spec.training.steps 100 -> 200".
  std::vector<std::string> length;
  std::vector<std::string> rates;
  std::vector<std::string> settings;  // all others
  bool fits = true;                   // no setting of these decides which form the checkpoint has
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
  all.insert(all.end(), found.rates.begin(), found.rates.end());
  all.insert(all.end(), found.settings.begin(), found.settings.end());
  if (!found.settings_known) {
    absl::StrAppend(&text, found.settings_recorded
                               ? "; its settings are recorded in a form that this release does not "
                                 "know"
                               : "; its settings are not recorded");
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

// Whether the release of the claim did not have the field, whose default the job has.
bool IsNewDefault(const JsonDifference& each, const Json& before) {
  const api::SchemaNode* const row = api::FindSchema(each.path);
  if (row == nullptr || each.before != nullptr || row->field->default_json.empty()) return false;
  const std::string around = each.path.substr(0, each.path.rfind('.'));
  return *each.after == Json::parse(row->field->default_json) &&
         before.contains(
             Json::json_pointer(absl::StrCat("/", absl::StrReplaceAll(around, {{".", "/"}}))));
}

std::vector<JsonDifference> Differences(const Json& before, const Json& after) {
  std::vector<JsonDifference> all = JsonDifferences("", before, after);
  const auto is_new = [&](const JsonDifference& each) { return IsNewDefault(each, before); };
  all.erase(std::remove_if(all.begin(), all.end(), is_new), all.end());
  return all;
}

// "learningRate 0.0005, was 0.001; steps 200, was 100"
std::string ChangesText(const Json& before, const Json& after) {
  if (!before.is_object() || !after.is_object()) return "";
  std::vector<std::string> changes;
  for (const JsonDifference& each : Differences(before, after)) {
    if (api::IsFixed(api::ChangeOf(each.path))) continue;
    absl::string_view name = each.path;
    (void)(absl::ConsumePrefix(&name, "spec.optimizer.") ||
           absl::ConsumePrefix(&name, "spec.training."));
    changes.push_back(
        absl::StrCat(name, " ", ValueText(each.after), ", was ", ValueText(each.before)));
  }

  if (changes.size() > kMaxShown) {
    const size_t more = changes.size() - kMaxShown;
    changes.resize(kMaxShown);
    changes.push_back(absl::StrCat(more, " more"));
  }
  return absl::StrJoin(changes, "; ");
}

// Replaces a list that would take most of a claim by one entry that says whether it has changed.
void ShortenNames(Json* names) {
  constexpr size_t kMaxNames = 256;
  if (names->size() <= kMaxNames) return;
  *names = Json::array(
      {absl::StrFormat("%d names, CRC-32C %08x", names->size(), Crc32c(names->dump()))});
}

}  // namespace

std::string ClaimSettings(const v1::JobSpec& job) {
  Json settings = api::RecordedSettings(job);
  for (const char* list : {"/spec/data/csv/numericColumns", "/spec/data/csv/categoricalColumns"}) {
    const Json::json_pointer place(list);
    if (settings.contains(place)) ShortenNames(&settings[place]);
  }
  const std::string text = settings.dump(-1, ' ', false, Json::error_handler_t::replace);
  return text.size() <= kMaxSettingsBytes ? text : "";
}

std::optional<v1::OptimizerSpec> ClaimedOptimizer(const v1::Claim& claim) {
  const Json settings = ParseSettings(claim.settings());
  if (!settings.is_object() || !settings["spec"].contains("optimizer")) return std::nullopt;
  return api::FromJson(settings).spec.optimizer();
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

  found.settings_recorded = !newest.settings().empty();
  found.settings_known = before.is_object() && after.is_object();
  if (found.settings_known) {
    for (const JsonDifference& each : Differences(before, after)) {
      const api::Change change = api::ChangeOf(each.path);
      (change == api::Change::kLength ? found.length
       : change == api::Change::kRate ? found.rates
                                      : found.settings)
          .push_back(
              absl::StrCat(each.path, " ", ValueText(each.before), " -> ", ValueText(each.after)));
      found.fits = found.fits && change != api::Change::kShape;
    }
    found.longer = AsksForMore(before, after);
  }

  ExistingJob existing = Judge(job, found);
  if (existing.kind == Kind::kResume) existing.changes = std::move(own.changes);
  return existing;
}

absl::StatusOr<OpenedStorage> ReadForJob(CheckpointStorage& storage, const v1::JobSpec& job,
                                         FileCheck check) {
  OpenedStorage opened;
  ASSIGN_OR_RETURN(opened.claims, storage.ReadClaims());

  // Whose checkpoints these are may then depend on which of them are whole.
  if (std::any_of(opened.claims.begin(), opened.claims.end(), IsDamaged)) {
    check = FileCheck::kContents;
  }
  absl::StatusOr<RestorePoint> point = FindRestorePoint(storage, check);
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
