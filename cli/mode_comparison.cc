#include "cli/mode_comparison.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"

namespace sluice::cli {
namespace {

using Json = nlohmann::json;

uint64_t UintOf(const Json& json, const char* name, uint64_t otherwise) {
  const auto found = json.find(name);
  return found != json.end() && found->is_number() ? found->get<uint64_t>() : otherwise;
}

// Rounded, and at least 1.
uint64_t Scaled(uint64_t value, double factor) {
  return std::max<uint64_t>(
      1, static_cast<uint64_t>(std::llround(static_cast<double>(value) * factor)));
}

bool IsSynchronous(const Json& training) {
  return training.value("mode", "Synchronous") == "Synchronous";
}

// The metric of an evaluation record: accuracy if it has one, else perplexity, else loss.
std::optional<std::pair<std::string, double>> MetricOf(const Json& evaluation) {
  for (const char* name : {"accuracy", "perplexity", "loss"}) {
    const auto found = evaluation.find(name);
    if (found != evaluation.end() && found->is_number()) {
      return std::make_pair(std::string(name), found->get<double>());
    }
  }
  return std::nullopt;
}

absl::Time TimeOf(const Json& record) {
  absl::Time time = absl::InfinitePast();
  std::string error;
  absl::ParseTime(absl::RFC3339_full, record.value("at", record.value("time", "")), &time, &error);
  return time;
}

std::string Number(double value) {
  return std::abs(value) < 10 ? absl::StrFormat("%.3g", value) : absl::StrFormat("%.1f", value);
}

std::string SecondsText(std::optional<double> seconds) {
  return seconds.has_value() ? absl::StrFormat("%.1f s", *seconds) : "-";
}

// Pads each cell to its column's width.
std::vector<std::string> Aligned(const std::vector<std::vector<std::string>>& rows) {
  std::vector<size_t> widths(rows.front().size(), 0);
  for (const auto& row : rows) {
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::vector<std::string> lines;
  for (const auto& row : rows) {
    std::string& line = lines.emplace_back();
    for (size_t i = 0; i < row.size(); ++i) {
      absl::StrAppend(&line, row[i]);
      if (i + 1 < row.size()) line.append(widths[i] - row[i].size() + 2, ' ');
    }
  }
  return lines;
}

}  // namespace

Json ManifestForMode(const Json& job, const std::string& mode, const ModeOptions& options) {
  Json manifest = job;
  Json& training = manifest["spec"]["training"];
  const bool was_synchronous = IsSynchronous(training);
  const bool synchronous = mode == "Synchronous";
  const uint64_t workers = std::max<uint64_t>(
      1, UintOf(manifest["spec"].value("worker", Json::object()), "replicas", 1));
  const uint64_t batch_was = UintOf(training, "globalBatchSize", 64);
  const uint64_t per_worker = was_synchronous ? (batch_was + workers - 1) / workers : batch_was;
  const uint64_t batch = synchronous ? per_worker * workers : per_worker;
  const double factor = static_cast<double>(batch_was) / static_cast<double>(batch);

  training["mode"] = mode;
  training["globalBatchSize"] = batch;
  // A microbatchSize that equals the default is dropped, so that the new batch's default applies.
  const uint64_t microbatch = UintOf(training, "microbatchSize", 0);
  if (microbatch == (batch_was + 15) / 16) {
    training.erase("microbatchSize");
  } else if (microbatch > batch) {
    training["microbatchSize"] = batch;
  }

  if (options.samples > 0) {
    training.erase("epochs");
    training["steps"] = std::max<uint64_t>(1, (options.samples + batch - 1) / batch);
  } else if (training.contains("steps")) {
    training["steps"] = Scaled(UintOf(training, "steps", 1), factor);
  }
  if (synchronous) {
    training.erase("stalenessRule");
  } else {
    training.erase("stragglers");
    training.erase("determinism");
  }
  if (mode != "BoundedStaleness") {
    training.erase("boundedStaleness");
  } else if (!training.contains("boundedStaleness")) {
    training["boundedStaleness"] = {{"maxStaleness", options.max_staleness}};
  }

  Json& data = manifest["spec"]["data"];
  if (data.contains("evaluation") && data["evaluation"].contains("intervalSteps")) {
    Json& interval = data["evaluation"]["intervalSteps"];
    interval = Scaled(interval.get<uint64_t>(), factor);
  }
  return manifest;
}

absl::StatusOr<ModeRun> ParseModeRun(const std::string& mode, absl::string_view lines) {
  ModeRun run;
  run.mode = mode;
  std::optional<absl::Time> begin;
  Json summary;
  std::vector<std::pair<absl::Time, Json>> evaluations;
  for (absl::string_view line : absl::StrSplit(lines, '\n', absl::SkipEmpty())) {
    const Json record = Json::parse(line.begin(), line.end(), nullptr, /*allow_exceptions=*/false);
    if (!record.is_object()) continue;
    const std::string type = record.value("type", "");
    if (type == "summary") summary = record;
    if (type != "event") continue;
    // Training begins with the first view.
    if (!begin.has_value() && record.value("kind", "") == "view") begin = TimeOf(record);
    if (record.contains("evaluation")) {
      evaluations.emplace_back(TimeOf(record), record["evaluation"]);
    }
  }
  if (!summary.is_object() || summary.value("outcome", "") != "Succeeded") {
    return absl::InternalError(absl::StrCat(mode, ": ",
                                            summary.is_object()
                                                ? summary.value("reason", "it did not succeed")
                                                : std::string("it ended before it began")));
  }

  run.steps = summary.value("step", uint64_t{0});
  run.samples = summary.value("samples", uint64_t{0});
  run.seconds = summary.value("trainingSeconds", 0.0);
  if (summary.contains("staleness")) {
    const Json& from = summary["staleness"];
    run.staleness = ModeRun::Staleness{from.value("mean", 0.0), from.value("median", uint64_t{0}),
                                       from.value("percentile95", uint64_t{0}),
                                       from.value("largest", uint64_t{0})};
  }
  for (const auto& [time, evaluation] : evaluations) {
    const auto metric = MetricOf(evaluation);
    if (!metric.has_value() || !begin.has_value()) continue;
    run.metric = metric->first;
    const uint64_t step = evaluation.value("step", uint64_t{0});
    const double samples = run.steps == 0
                               ? 0
                               : static_cast<double>(run.samples) * static_cast<double>(step) /
                                     static_cast<double>(run.steps);
    run.points.push_back(
        {std::max(0.0, absl::ToDoubleSeconds(time - *begin)), step, samples, metric->second});
  }
  const auto last = MetricOf(summary.contains("evaluation") ? summary["evaluation"] : summary);
  if (last.has_value()) {
    run.metric = last->first;
    run.last = last->second;
  }
  return run;
}

bool IsReached(absl::string_view metric, double value, double target) {
  return metric == "accuracy" ? value >= target : value <= target;
}

std::optional<double> CommonTarget(const std::vector<ModeRun>& runs) {
  std::optional<double> worst;
  for (const ModeRun& run : runs) {
    if (run.points.empty() || !run.last.has_value()) return std::nullopt;
    if (!worst.has_value() || IsReached(run.metric, *worst, *run.last)) worst = run.last;
  }
  return worst;
}

std::optional<double> SecondsTo(const ModeRun& run, double target) {
  for (const ModePoint& point : run.points) {
    if (IsReached(run.metric, point.value, target)) return point.seconds;
  }
  return std::nullopt;
}

std::vector<std::string> ComparisonLines(const std::vector<ModeRun>& runs,
                                         std::optional<double> target) {
  const std::string metric =
      runs.empty() || runs.front().metric.empty() ? std::string("metric") : runs.front().metric;
  std::vector<std::vector<std::string>> rows = {
      {"mode", "steps", "samples/s", "staleness (mean, median, 95 %, largest)",
       target.has_value() ? absl::StrCat("time to ", metric, " ", Number(*target))
                          : std::string("time to target"),
       absl::StrCat("final ", metric)}};
  for (const ModeRun& run : runs) {
    const std::string staleness =
        run.staleness.has_value()
            ? absl::StrCat(absl::StrFormat("%.2f", run.staleness->mean), ", ",
                           run.staleness->median, ", ", run.staleness->percentile95, ", ",
                           run.staleness->largest)
            : "-";
    rows.push_back({run.mode, absl::StrCat(run.steps),
                    absl::StrFormat("%.0f", run.samples_per_second()), staleness,
                    SecondsText(target.has_value() ? SecondsTo(run, *target) : std::nullopt),
                    run.last.has_value() ? Number(*run.last) : "-"});
  }
  return Aligned(rows);
}

std::string ComparisonJson(const std::vector<ModeRun>& runs, std::optional<double> target) {
  Json json = {{"modes", Json::array()}, {"target", nullptr}};
  if (target.has_value()) json["target"] = *target;
  for (const ModeRun& run : runs) {
    Json item = {{"mode", run.mode},
                 {"steps", run.steps},
                 {"samples", run.samples},
                 {"trainingSeconds", run.seconds},
                 {"samplesPerSecond", run.samples_per_second()},
                 {"metric", run.metric},
                 {"secondsToTarget", nullptr},
                 {"final", nullptr},
                 {"evaluations", Json::array()}};
    if (run.staleness.has_value()) {
      item["staleness"] = {{"mean", run.staleness->mean},
                           {"median", run.staleness->median},
                           {"percentile95", run.staleness->percentile95},
                           {"largest", run.staleness->largest}};
    }
    if (run.last.has_value()) item["final"] = *run.last;
    if (const auto seconds = target.has_value() ? SecondsTo(run, *target) : std::nullopt;
        seconds.has_value()) {
      item["secondsToTarget"] = *seconds;
    }
    for (const ModePoint& point : run.points) {
      item["evaluations"].push_back({{"seconds", point.seconds},
                                     {"step", point.step},
                                     {"samples", point.samples},
                                     {"value", point.value}});
    }
    json["modes"].push_back(std::move(item));
  }
  return json.dump(2);
}

}  // namespace sluice::cli
