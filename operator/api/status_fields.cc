// The fields of the status, which an operator writes.
#include "operator/api/field_builder.h"

namespace sluice::api {
namespace {

constexpr double kMaxCount = 2147483647;

FieldBuilder Count(const char* path, const char* description) {
  return Integer(path, description).Min(0).Max(kMaxCount);
}
FieldBuilder Time(const char* path, const char* description) {
  return String(path, description).Format("date-time").Size(0, 64);
}

void AddConditions(std::vector<Field>* fields) {
  fields->push_back(
      List("status.conditions",
           "The job's conditions: Accepted, Ready, Running, Scaling, Degraded, Suspended, "
           "SpecNotInEffect, CheckpointDirectoryInUse, Succeeded, Failed.")
          .Size(0, 16)
          .ItemKey("type"));
  fields->push_back(Object("status.conditions[]", "One condition."));
  fields->push_back(String("status.conditions[].type", "What is said.").Required().Size(1, 316));
  fields->push_back(String("status.conditions[].status", "Whether it holds.")
                        .Required()
                        .OneOf({"True", "False", "Unknown"}));
  fields->push_back(
      Integer("status.conditions[].observedGeneration", "The generation of the spec it is about.")
          .Min(0));
  fields->push_back(
      Time("status.conditions[].lastTransitionTime", "When `status` changed last.").Required());
  fields->push_back(
      String("status.conditions[].reason", "Why, in one word.").Required().Size(1, 1024));
  fields->push_back(String("status.conditions[].message", "Why, and what can be done, in words.")
                        .Required()
                        .Size(0, 32768));
}

void AddProgress(std::vector<Field>* fields) {
  fields->push_back(Object("status.training", "How far training is."));
  fields->push_back(
      Integer("status.training.step", "Steps that are committed; asynchronous: updates applied.")
          .Min(0));
  fields->push_back(
      Integer("status.training.totalSteps", "Steps that the job will have made at its end.")
          .Min(0));
  fields->push_back(Number("status.training.epoch", "Passes over the data.").Min(0));
  fields->push_back(Integer("status.training.samples", "Samples applied.").Min(0));
  fields->push_back(Number("status.training.loss", "Mean loss over recent steps."));
  fields->push_back(
      String("status.training.metric", "The last evaluation, e.g. `accuracy 98.53 %`.")
          .Size(0, 253));
  fields->push_back(Object("status.training.evaluation", "The last evaluation, as numbers."));
  fields->push_back(Integer("status.training.evaluation.step", "The step it was made at.").Min(0));
  fields->push_back(Number("status.training.evaluation.epoch", "The epoch it was made at.").Min(0));
  fields->push_back(Number("status.training.evaluation.loss", "Mean loss of the samples."));
  fields->push_back(
      Integer("status.training.evaluation.samples", "Samples that were evaluated.").Min(0));
  fields->push_back(Number("status.training.evaluation.accuracy",
                           "Percent of samples classified rightly, where samples have classes."));
  fields->push_back(Number("status.training.evaluation.perplexity",
                           "Of a token, where samples are sequences of tokens."));
  fields->push_back(
      Number("status.training.samplesPerSecond", "Samples applied in a second, recently.").Min(0));
  fields->push_back(Time("status.training.lastProgressTime", "When a step was last seen made."));
  fields->push_back(Object("status.checkpoint", "The newest complete checkpoint."));
  fields->push_back(Integer("status.checkpoint.step", "Its step.").Min(0));
  fields->push_back(Time("status.checkpoint.time", "When it was seen complete."));
  fields->push_back(String("status.checkpoint.location", "Where it is.").Size(0, 4096));
  fields->push_back(Integer("status.checkpoint.bytes", "Its size.").Min(0));
  fields->push_back(
      Integer("status.checkpoint.restoredFromStep", "The step from which this attempt began.")
          .Min(0));
}

void AddFailures(std::vector<Field>* fields) {
  fields->push_back(Object("status.restarts", "Pods that were re-created, by role."));
  fields->push_back(Count("status.restarts.total", "All together."));
  fields->push_back(Count("status.restarts.coordinator", "Coordinators."));
  fields->push_back(Count("status.restarts.parameterServer", "Shards."));
  fields->push_back(Count("status.restarts.worker", "Workers."));
  fields->push_back(
      List("status.lastFailures", "The newest ends of pods, the newest first.").Size(0, 8));
  fields->push_back(Object("status.lastFailures[]", "One end."));
  fields->push_back(Time("status.lastFailures[].time", "When."));
  fields->push_back(String("status.lastFailures[].role", "Role of the pod.").Size(0, 63));
  fields->push_back(Count("status.lastFailures[].index", "Its number within the role."));
  fields->push_back(String("status.lastFailures[].pod", "The pod's name.").Size(0, 253));
  fields->push_back(String("status.lastFailures[].node", "Where it ran.").Size(0, 253));
  fields->push_back(
      String("status.lastFailures[].reason", "Why, in one word: OOMKilled, Evicted, NodeLost, ...")
          .Size(0, 253));
  fields->push_back(
      Integer("status.lastFailures[].exitCode", "Of its container.").Min(-256).Max(kMaxCount));
  fields->push_back(String("status.lastFailures[].message", "Why, and what can be done, in words.")
                        .Size(0, 1024));
  fields->push_back(
      Boolean("status.lastFailures[].counted",
              "Whether it counts against a limit of the job; what comes from outside does not."));
}

}  // namespace

const std::vector<Field>& StatusFields() {
  static const std::vector<Field>& all = *[] {
    auto* fields = new std::vector<Field>;
    fields->push_back(Object("status", "What the operator saw last; written by it alone."));
    fields->push_back(
        Integer("status.observedGeneration", "The generation of the spec that this is about.")
            .Min(0));
    fields->push_back(String("status.summary", "The state of the job in one word.").Size(0, 253));
    fields->push_back(
        String("status.tls", "Whether the job's processes speak TLS; of unset `spec.tls`, kept.")
            .OneOf({"Enabled", "Disabled"}));
    AddConditions(fields);
    fields->push_back(String("status.view", "Id of the view: attempt, term, number.").Size(0, 253));
    fields->push_back(
        Integer("status.attempt", "One more than the restorations from checkpoints.").Min(0));
    fields->push_back(Time("status.startTime", "When the job was first accepted."));
    fields->push_back(Time("status.completionTime", "When it ended."));
    fields->push_back(Object("status.coordinator", "The coordinator."));
    fields->push_back(Boolean("status.coordinator.ready", "Whether it serves."));
    fields->push_back(Object("status.parameterServer", "The shards."));
    fields->push_back(Count("status.parameterServer.replicas", "Pods of shards."));
    fields->push_back(Count("status.parameterServer.readyReplicas", "Those that serve."));
    fields->push_back(
        Count("status.parameterServer.movingPartitions", "Partitions on their way to another."));
    fields->push_back(Object("status.worker", "The workers."));
    fields->push_back(Count("status.worker.replicas", "Pods of workers."));
    fields->push_back(Count("status.worker.readyReplicas", "Those that train."));
    fields->push_back(
        String("status.worker.selector", "Label selector of their pods, for `/scale`.")
            .Size(0, 1024));
    AddProgress(fields);
    AddFailures(fields);
    fields->push_back(Object("status.recovery",
                             "What the operator needs to go on after a restart of its own; for no "
                             "other use.")
                          .Open());
    fields->push_back(
        Map("status.images", "Images that run, by role, with their digests.").Size(0, 8));
    fields->push_back(String("status.images{}", "One image.").Size(0, 1024));
    return fields;
  }();
  return all;
}

}  // namespace sluice::api
