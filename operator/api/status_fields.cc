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
  fields->push_back(
      String("status.conditions[].type", "The condition's type.").Required().Size(1, 316));
  fields->push_back(String("status.conditions[].status", "Whether the condition holds.")
                        .Required()
                        .OneOf({"True", "False", "Unknown"}));
  fields->push_back(Integer("status.conditions[].observedGeneration",
                            "The generation of the spec that the condition describes.")
                        .Min(0));
  fields->push_back(
      Time("status.conditions[].lastTransitionTime", "When `status` last changed.").Required());
  fields->push_back(
      String("status.conditions[].reason", "The reason, in one word.").Required().Size(1, 1024));
  fields->push_back(
      String("status.conditions[].message", "The reason, and what can be done, in a sentence.")
          .Required()
          .Size(0, 32768));
}

void AddProgress(std::vector<Field>* fields) {
  fields->push_back(Object("status.training", "Progress of the training."));
  fields->push_back(
      Integer("status.training.step", "Committed steps; in asynchronous modes applied updates.")
          .Min(0));
  fields->push_back(
      Integer("status.training.totalSteps", "Steps after which the job is complete.").Min(0));
  fields->push_back(Number("status.training.epoch", "Passes over the data.").Min(0));
  fields->push_back(Integer("status.training.samples", "Samples applied.").Min(0));
  fields->push_back(Number("status.training.loss", "Mean loss over recent steps."));
  fields->push_back(
      String("status.training.metric", "The last evaluation, e.g. `accuracy 98.53 %`.")
          .Size(0, 253));
  fields->push_back(Object("status.training.evaluation", "The last evaluation, as numbers."));
  fields->push_back(
      Integer("status.training.evaluation.step", "The step at which it was made.").Min(0));
  fields->push_back(
      Number("status.training.evaluation.epoch", "The epoch at which it was made.").Min(0));
  fields->push_back(Number("status.training.evaluation.loss", "Mean loss over the samples."));
  fields->push_back(
      Integer("status.training.evaluation.samples", "Number of evaluated samples.").Min(0));
  fields->push_back(Number("status.training.evaluation.accuracy",
                           "Percentage of samples classified correctly, if samples have classes."));
  fields->push_back(Number("status.training.evaluation.perplexity",
                           "Perplexity per token, if samples are sequences of tokens."));
  fields->push_back(
      Number("status.training.samplesPerSecond", "Recent rate of samples applied.").Min(0));
  fields->push_back(
      Time("status.training.lastProgressTime", "When the operator last saw a new step."));
  fields->push_back(Object("status.checkpoint", "The newest complete checkpoint."));
  fields->push_back(Integer("status.checkpoint.step", "Its step.").Min(0));
  fields->push_back(Time("status.checkpoint.time", "When the operator saw it complete."));
  fields->push_back(String("status.checkpoint.location", "Where it is.").Size(0, 4096));
  fields->push_back(Integer("status.checkpoint.bytes", "Its size.").Min(0));
  fields->push_back(Integer("status.checkpoint.restoredFromStep",
                            "The step of the checkpoint from which this attempt was restored.")
                        .Min(0));
}

void AddFailures(std::vector<Field>* fields) {
  fields->push_back(Object("status.restarts", "Pods that were re-created, by role."));
  fields->push_back(Count("status.restarts.total", "All roles together."));
  fields->push_back(Count("status.restarts.coordinator", "Coordinators."));
  fields->push_back(Count("status.restarts.parameterServer", "Shards."));
  fields->push_back(Count("status.restarts.worker", "Workers."));
  fields->push_back(
      List("status.lastFailures", "The latest pod failures, newest first.").Size(0, 8));
  fields->push_back(Object("status.lastFailures[]", "One pod failure."));
  fields->push_back(Time("status.lastFailures[].time", "When."));
  fields->push_back(String("status.lastFailures[].role", "Role of the pod.").Size(0, 63));
  fields->push_back(Count("status.lastFailures[].index", "Index within the role."));
  fields->push_back(String("status.lastFailures[].pod", "The pod's name.").Size(0, 253));
  fields->push_back(
      String("status.lastFailures[].node", "The node on which the pod ran.").Size(0, 253));
  fields->push_back(
      String("status.lastFailures[].reason", "Why, in one word: OOMKilled, Evicted, NodeLost, ...")
          .Size(0, 253));
  fields->push_back(Integer("status.lastFailures[].exitCode", "Exit code of its container.")
                        .Min(-256)
                        .Max(kMaxCount));
  fields->push_back(
      String("status.lastFailures[].message", "The reason, and what can be done, in a sentence.")
          .Size(0, 1024));
  fields->push_back(Boolean("status.lastFailures[].counted",
                            "Whether the failure counts against a limit of the job. Failures with "
                            "an external cause do not."));
}

}  // namespace

const std::vector<Field>& StatusFields() {
  static const std::vector<Field>& all = *[] {
    auto* fields = new std::vector<Field>;
    fields->push_back(Object(
        "status", "The state that the operator last observed. Only the operator writes it."));
    fields->push_back(Integer("status.observedGeneration",
                              "The generation of the spec that the status describes.")
                          .Min(0));
    fields->push_back(String("status.summary", "The state of the job, in one word.").Size(0, 253));
    fields->push_back(String("status.tls",
                             "Whether the job's processes use TLS. Keeps the value that applies if "
                             "`spec.tls` is unset.")
                          .OneOf({"Enabled", "Disabled"}));
    AddConditions(fields);
    fields->push_back(
        String("status.view", "Id of the current view: attempt, term, number.").Size(0, 253));
    fields->push_back(
        Integer("status.attempt", "Number of restorations from checkpoints, plus one.").Min(0));
    fields->push_back(Time("status.startTime", "When the job was first accepted."));
    fields->push_back(Time("status.completionTime", "When it ended."));
    fields->push_back(Object("status.coordinator", "The coordinator."));
    fields->push_back(Boolean("status.coordinator.ready", "Whether the coordinator serves."));
    fields->push_back(Object("status.parameterServer", "The shards."));
    fields->push_back(Count("status.parameterServer.replicas", "Pods of shards."));
    fields->push_back(Count("status.parameterServer.readyReplicas", "Shards that serve."));
    fields->push_back(Count("status.parameterServer.movingPartitions",
                            "Partitions that are being moved to another shard."));
    fields->push_back(Object("status.worker", "The workers."));
    fields->push_back(Count("status.worker.replicas", "Pods of workers."));
    fields->push_back(Count("status.worker.readyReplicas", "Workers that train."));
    fields->push_back(
        String("status.worker.selector", "Label selector of their pods, for `/scale`.")
            .Size(0, 1024));
    AddProgress(fields);
    AddFailures(fields);
    fields->push_back(
        Object("status.recovery",
               "State that the operator needs after its own restart. Not for other uses.")
            .Open());
    fields->push_back(
        Map("status.images", "Images of the running containers, by role, with their digests.")
            .Size(0, 8));
    fields->push_back(String("status.images{}", "One image.").Size(0, 1024));
    return fields;
  }();
  return all;
}

}  // namespace sluice::api
