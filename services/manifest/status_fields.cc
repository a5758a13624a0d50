// The fields of the status, which an operator writes.
#include "services/manifest/field_builder.h"

namespace sluice::api {
namespace {

constexpr double kMaxCount = 2147483647;

Field Count(const char* path, const char* description) {
  return Integer(path, description, Min(0), Max(kMaxCount));
}
template <typename... Attributes>
Field Time(const char* path, const char* description, const Attributes&... attributes) {
  return String(path, description, Format("date-time"), Size(0, 64), attributes...);
}

void AddConditions(const FieldAdder& add) {
  add(List("status.conditions",
           "The job's conditions: Accepted, Ready, Running, Scaling, Degraded, Suspended, "
           "SpecNotInEffect, CheckpointDirectoryInUse, Succeeded, Failed.",
           Size(0, 16), ItemKey("type")));
  add(Object("status.conditions[]", "One condition."));
  add(String("status.conditions[].type", "The condition's type.", Required(), Size(1, 316)));
  add(String("status.conditions[].status", "Whether the condition holds.", Required(),
             OneOf({"True", "False", "Unknown"})));
  add(Integer("status.conditions[].observedGeneration",
              "The generation of the spec that the condition describes.", Min(0)));
  add(Time("status.conditions[].lastTransitionTime", "When `status` last changed.", Required()));
  add(String("status.conditions[].reason", "The reason, as one CamelCase word.", Required(),
             Size(1, 1024)));
  add(String("status.conditions[].message", "The reason, and what can be done, in a sentence.",
             Required(), Size(0, 32768)));
}

void AddProgress(const FieldAdder& add) {
  add(Object("status.training", "Progress of the training."));
  add(Integer("status.training.step", "Committed steps; in asynchronous modes applied updates.",
              Min(0)));
  add(Integer("status.training.totalSteps", "Steps after which the job is complete.", Min(0)));
  add(Number("status.training.epoch", "Passes over the data.", Min(0)));
  add(Integer("status.training.samples", "Samples applied.", Min(0)));
  add(Number("status.training.loss", "Mean loss over recent steps."));
  add(String("status.training.metric", "The last evaluation, e.g. `accuracy 98.53 %`.",
             Size(0, 253)));
  add(Object("status.training.evaluation", "The last evaluation, as numbers."));
  add(Integer("status.training.evaluation.step", "The step at which it was made.", Min(0)));
  add(Number("status.training.evaluation.epoch", "The epoch at which it was made.", Min(0)));
  add(Number("status.training.evaluation.loss", "Mean loss over the samples."));
  add(Integer("status.training.evaluation.samples", "Number of evaluated samples.", Min(0)));
  add(Number("status.training.evaluation.accuracy",
             "Percentage of samples classified correctly, if samples have classes."));
  add(Number("status.training.evaluation.perplexity",
             "Perplexity per token, if samples are sequences of tokens."));
  add(Map("status.training.evaluation.metrics",
          "The program's own metrics, by name; those that are NaN or infinite are left out.",
          Size(0, 32)));
  add(Number("status.training.evaluation.metrics{}", "One value."));
  add(Number("status.training.samplesPerSecond", "Recent rate of samples applied.", Min(0)));
  add(Time("status.training.lastProgressTime", "When the operator last saw a new step."));
  add(Object("status.checkpoint", "The newest complete checkpoint."));
  add(Integer("status.checkpoint.step", "Its step.", Min(0)));
  add(Time("status.checkpoint.time", "When the operator saw it complete."));
  add(String("status.checkpoint.location", "Where it is.", Size(0, 4096)));
  add(Integer("status.checkpoint.bytes", "Its size.", Min(0)));
  add(Integer("status.checkpoint.restoredFromStep",
              "The step of the checkpoint from which this attempt was restored.", Min(0)));
}

void AddFailures(const FieldAdder& add) {
  add(Object("status.restarts", "Pods that were re-created, by role."));
  add(Count("status.restarts.total", "All roles together."));
  add(Count("status.restarts.coordinator", "Coordinators."));
  add(Count("status.restarts.parameterServer", "Shards."));
  add(Count("status.restarts.worker", "Workers."));
  add(List("status.lastFailures", "The latest pod failures, newest first.", Size(0, 8)));
  add(Object("status.lastFailures[]", "One pod failure."));
  add(Time("status.lastFailures[].time", "When."));
  add(String("status.lastFailures[].role", "Role of the pod.", Size(0, 63)));
  add(Count("status.lastFailures[].index", "Index within the role."));
  add(String("status.lastFailures[].pod", "The pod's name.", Size(0, 253)));
  add(String("status.lastFailures[].node", "The node on which the pod ran.", Size(0, 253)));
  add(String("status.lastFailures[].reason",
             "The reason, as one word: OOMKilled, Evicted, NodeLost, ...", Size(0, 253)));
  add(Integer("status.lastFailures[].exitCode", "Exit code of its container.", Min(-256),
              Max(kMaxCount)));
  add(String("status.lastFailures[].message", "The reason, and what can be done, in a sentence.",
             Size(0, 1024)));
  add(Boolean("status.lastFailures[].counted",
              "Whether the failure counts against a limit of the job. Failures with an external "
              "cause do not."));
}

}  // namespace

const std::vector<Field>& StatusFields() {
  static const std::vector<Field>& all = *[] {
    auto* fields = new std::vector<Field>;
    const FieldAdder add(fields);
    add(Object("status",
               "The state that the operator last observed. Only the operator writes it."));
    add(Integer("status.observedGeneration",
                "The generation of the spec that the status describes.", Min(0)));
    add(String("status.summary", "The state of the job, in one word.", Size(0, 253)));
    add(String(
        "status.tls",
        "Whether the job's processes use TLS. Keeps the value that applies if `spec.tls` is unset.",
        OneOf({"Enabled", "Disabled"})));
    AddConditions(add);
    add(String("status.view", "Id of the current view: attempt, term, number.", Size(0, 253)));
    add(Integer("status.attempt",
                "Number of the attempt; each restoration or resumption begins the next one.",
                Min(0)));
    add(Time("status.startTime", "When the job was first accepted."));
    add(Time("status.completionTime", "When it ended."));
    add(Object("status.coordinator", "The coordinator."));
    add(Boolean("status.coordinator.ready", "Whether the coordinator serves."));
    add(Object("status.parameterServer", "The shards."));
    add(Count("status.parameterServer.replicas", "Pods of shards."));
    add(Count("status.parameterServer.readyReplicas", "Shards that serve."));
    add(Count("status.parameterServer.movingPartitions",
              "Partitions of the current view that another shard receives, to replace the owner or "
              "the holder of the second copy."));
    add(Object("status.worker", "The workers."));
    add(Count("status.worker.replicas", "Pods of workers."));
    add(Count("status.worker.readyReplicas", "Workers that train."));
    add(String("status.worker.selector", "Label selector of their pods, for `/scale`.",
               Size(0, 1024)));
    AddProgress(add);
    AddFailures(add);
    add(Object("status.recovery",
               "State that the operator needs after its own restart; not for users.", Open()));
    add(Map("status.images", "Images of the running containers, by role, with their digests.",
            Size(0, 8)));
    add(String("status.images{}", "One image.", Size(0, 1024)));
    return fields;
  }();
  return all;
}

}  // namespace sluice::api
