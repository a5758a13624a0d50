#include <nlohmann/json.hpp>
#include <utility>

#include "cli/common/json_line.h"
#include "cli/common/progress_json.h"
#include "cli/common/run_display.h"

namespace sluice::cli {
namespace {

using Json = nlohmann::json;

constexpr absl::Duration kProgressInterval = absl::Seconds(1);

const char* KindName(v1::Event::Kind kind) {
  switch (kind) {
    case v1::Event::WARNING:
      return "warning";
    case v1::Event::EVALUATION:
      return "evaluation";
    case v1::Event::CHECKPOINT:
      return "checkpoint";
    case v1::Event::VIEW:
      return "view";
    default:
      return "info";
  }
}

Json InstanceJson(const ProcessInstance& instance) {
  Json json = {{"type", "process"}, {"name", policy::ReplicaName(instance.replica)}};
  if (instance.pod.empty()) {
    json["pid"] = instance.pid;
  } else {
    json["pod"] = instance.pod;
  }
  return json;
}

class JsonDisplay final : public RunDisplay {
 public:
  JsonDisplay(const Environment& environment, DisplayOptions options)
      : environment_(environment), options_(std::move(options)) {}

  void Note(absl::string_view text) override {
    Write({{"type", "note"}, {"message", std::string(text)}});
  }

  void Stopping() override {
    if (std::exchange(stopping_, true)) return;
    Write({{"type", "stopping"}});
  }

  void Detached(const std::vector<std::string>& how) override {
    Write({{"type", "detached"}, {"next", how}});
  }

  void OnProcessStarted(const ProcessInstance& instance) override {
    Json json = InstanceJson(instance);
    json["state"] = "started";
    Write(std::move(json));
  }

  void OnProcessEnded(const ProcessInstance& instance, const policy::Exit& exit) override {
    Json json = InstanceJson(instance);
    json["state"] = "ended";
    json[exit.signal != 0 ? "signal" : "exitCode"] = exit.signal != 0 ? exit.signal : exit.code;
    if (!exit.reason.empty()) json["reason"] = exit.reason;
    if (!exit.message.empty()) json["message"] = exit.message;
    Write(std::move(json));
  }

  void OnProgress(const v1::JobProgress& progress, const std::string& state) override {
    for (const v1::Event& event : progress.events()) {
      Json json = {
          {"type", "event"}, {"kind", KindName(event.kind())}, {"message", event.message()}};
      if (event.time() > 0) {
        json["at"] =
            absl::FormatTime(absl::RFC3339_full, absl::UnixEpoch() + absl::Seconds(event.time()),
                             absl::UTCTimeZone());
      }
      if (event.has_evaluation()) json["evaluation"] = EvaluationJson(event.evaluation());
      Write(std::move(json));
    }

    const absl::Time now = environment_.clock->Now();
    if (options_.quiet || now < next_progress_) return;
    next_progress_ = now + kProgressInterval;

    Json json = ProgressJson(progress);
    json["type"] = "progress";
    if (!state.empty()) json["state"] = state;
    Write(std::move(json));
  }

  void OnTick(const std::map<policy::Replica, ProcessState>&) override {}

  void OnLogLine(absl::string_view process, absl::string_view line) override {
    Write({{"type", "log"}, {"name", std::string(process)}, {"line", std::string(line)}});
  }

  void Finish(const SummaryFacts& facts, int exit_code,
              const std::vector<std::string>& log_lines) override {
    const v1::JobProgress& progress = facts.result.progress;
    Json json = ProgressJson(progress);
    json["type"] = "summary";
    json["job"] = facts.name;
    json["outcome"] = std::string(OutcomeName(facts.result.outcome.kind));
    json["exitCode"] = exit_code;
    json["reason"] = facts.result.outcome.reason;
    json["seconds"] = absl::ToDoubleSeconds(facts.elapsed);
    json["restarts"] = facts.result.restarts;
    json.update(TotalsJson(progress));

    json["logs"] = facts.logs;
    if (facts.result.outcome.blamed.has_value()) {
      json["process"] = policy::ReplicaName(*facts.result.outcome.blamed);
    }
    if (!log_lines.empty()) json["logLines"] = log_lines;
    Write(std::move(json));
  }

 private:
  void Write(Json json) { WriteJsonLine(environment_, std::move(json)); }

  const Environment& environment_;
  DisplayOptions options_;
  bool stopping_ = false;
  absl::Time next_progress_ = absl::InfinitePast();
};

}  // namespace

std::unique_ptr<RunDisplay> MakeJsonDisplay(const Environment& environment,
                                            DisplayOptions options) {
  return std::make_unique<JsonDisplay>(environment, std::move(options));
}

}  // namespace sluice::cli
