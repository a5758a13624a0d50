// Rows of the table: loss, training, the sizes of the job, checkpoints, limits.

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "services/manifest/field_builder.h"
#include "services/manifest/training_job.h"
#include "services/protocol/timeouts.h"

namespace sluice::api {
namespace {

constexpr char kCustom[] =
    R"({"spec":{"model":{"type":"Custom","name":null},"data":{"format":"Custom","source":null}}})";
constexpr char kTarget[] =
    R"({"spec":{"data":{"evaluation":{"source":{"path":"/data/test"},"intervalSteps":100}},
                "training":{"target":{"metric":"loss","goal":"AtMost","value":1}}}})";

void AddLoss(const FieldAdder& add) {
  add(String("spec.loss",
             "The loss to minimise. Unset: the model's own loss. A TorchScript module that returns "
             "its loss needs none.",
             Fixed(), OneOf({"nll", "crossEntropy", "mse", "binaryCrossEntropyWithLogits"}),
             Good("crossEntropy"), Bad("cross_entropy", "did you mean `crossEntropy`?")));
}

void AddTrainingBasics(const FieldAdder& add) {
  add(Object("spec.training", "How to train, and for how long.", Required()));
  add(String(
      "spec.training.mode",
      "`Synchronous`: each step applies the gradient of one global batch. The result is the same "
      "for any number of workers, up to rounding, and to the bit with `determinism: BitExact`. "
      "`Asynchronous`: each worker applies updates at its own pace. `BoundedStaleness`: as "
      "Asynchronous, but no worker gets far ahead. A change takes effect through a checkpoint.",
      Default(R"("Synchronous")"), OneOf({"Synchronous", "Asynchronous", "BoundedStaleness"}),
      Good("Asynchronous"),
      Bad("Async", "must be one of Synchronous, Asynchronous, BoundedStaleness")));
  add(Object("spec.training.boundedStaleness",
             "Bounds of mode BoundedStaleness. Only with that mode."));
  add(Integer(
      "spec.training.boundedStaleness.maxStaleness",
      "A worker waits while it is more than this many updates ahead of the slowest worker.",
      Required(), Min(0), Max(1e6),
      Context(
          R"({"spec":{"training":{"mode":"BoundedStaleness","boundedStaleness":{"maxStaleness":1}}}})"),
      Good("4"), Bad("-1", "at least 0")));
  add(Integer("spec.training.globalBatchSize",
              "Samples of one step, over all workers. In other modes than Synchronous: samples of "
              "one worker's update.",
              Fixed(), Default(absl::StrCat(kDefaultGlobalBatchSize)), Min(1), Max(1 << 24),
              Alias("batchSize"), Alias("batch"), Good("256"), Bad("0", "at least 1"),
              Bad("64.5", "must be an integer")));
  add(Integer(
      "spec.training.microbatchSize",
      "Samples of a microbatch. A global batch is divided into microbatches (the last may be "
      "smaller), which are assigned to workers in proportion to their speed. A worker computes all "
      "of its microbatches as one batch; with BitExact it computes them one by one, and larger "
      "microbatches are faster.",
      Fixed(), Implied(absl::StrCat("globalBatchSize / ", kDefaultMicrobatches, ", rounded up")),
      Min(1), Max(1 << 24), Alias("microBatchSize"), Good("16"), Bad("0", "at least 1")));
  add(String(
      "spec.training.lastBatch",
      "Synchronous: the samples that remain at the end of an epoch, if `globalBatchSize` does "
      "not divide their number. `Keep`: a smaller step. `Drop`: no step has them; if the data "
      "are shuffled, other samples remain in each epoch. Models with batch norm cannot be "
      "trained on a step of one sample.",
      Fixed(), Default(R"("Keep")"), OneOf({"Keep", "Drop"}), Good("Drop"),
      Bad("Skip", "must be one of Keep, Drop")));
  constexpr char kBalanced[] =
      R"({"spec":{"training":{"mode":"Asynchronous","maxBatchSize":128}}})";
  add(Integer(
      "spec.training.maxBatchSize",
      "In other modes than Synchronous: the maximum samples of an update. Each worker's batch size "
      "follows its measured speed, so that the updates of all workers take equally long; at the "
      "mean speed it is `globalBatchSize`. Unset: always `globalBatchSize`.",
      Min(1), Max(1 << 24), Context(R"({"spec":{"training":{"mode":"Asynchronous"}}})"),
      Good("128"), Bad("0", "at least 1")));
  add(Integer("spec.training.minBatchSize",
              "With `maxBatchSize`: the minimum samples of an update. Unset: 1.", Min(1),
              Max(1 << 24), Context(kBalanced), Good("8"), Bad("0", "at least 1")));
  add(Integer("spec.training.steps",
              "Train for this many steps (in other modes than Synchronous: updates). Either this "
              "or `epochs`.",
              Length(), Min(1), Alias("maxSteps"), Good("10000"), Bad("0", "at least 1"),
              Bad("many", "must be an integer, not the string \"many\"")));
  add(Integer("spec.training.epochs", "Passes over the data. Either this or `steps`.", Length(),
              Min(1), Context(R"({"spec":{"training":{"steps":null}}})"), Good("5"),
              Bad("1.5", "must be an integer")));
  add(Integer("spec.training.seed",
              "The seed for the initial parameters, the order of samples and dropout.", Fixed(),
              Default("0"), Min(0), Good("42"), Bad("-1", "at least 0")));
}

void AddCompression(const FieldAdder& add) {
  add(Object("spec.training.compression",
             "How gradients and parameters are encoded when they are sent. `None`: they are sent "
             "as they are.",
             Default("{}")));
  add(String("spec.training.compression.push",
             "Encoding of gradients, from workers to shards. `Float16`, `BFloat16`: rounded to 16 "
             "bits. `Int8`: rounded to 8 bits, with a scale. `TopK`: the largest elements only. "
             "`OneBit`: signs and two means. `SignThreshold`: the signs of elements beyond a "
             "threshold. Not with BitExact.",
             Proto({"push_codec"}), Default(R"("None")"),
             OneOf({"None", "Float16", "BFloat16", "TopK", "Int8", "OneBit", "SignThreshold"}),
             Good("Int8"), Bad("fp16", "must be one of None, Float16, BFloat16, TopK, Int8")));
  add(String("spec.training.compression.pull", "Encoding of parameters, from shards to workers.",
             Proto({"pull_codec"}), Default(R"("None")"), OneOf({"None", "Float16", "BFloat16"}),
             Good("BFloat16"), Bad("Int8", "must be one of None, Float16, BFloat16")));
  add(Number("spec.training.compression.fraction",
             "TopK: the fraction of each block's elements that is sent, rounded up.",
             DefaultBy("push", {{{"TopK"}, "0.01"}}), Above(0), Max(0.5),
             Context(R"({"spec":{"training":{"compression":{"push":"TopK"}}}})"), Good("0.05"),
             Bad("0", "must be more than 0"), Bad("0.6", "at most 0.5")));
  add(Number(
      "spec.training.compression.threshold",
      "SignThreshold: the magnitude beyond which an element is sent, and the value that is sent "
      "for it. It is compared with the pushed gradient, which is the sum over a worker's samples.",
      Above(0), Max(1e30),
      Context(R"({"spec":{"training":{"compression":{"push":"SignThreshold","threshold":1}}}})"),
      Good("0.5"), Bad("0", "must be more than 0")));
  add(Boolean("spec.training.compression.errorFeedback",
              "Whether the part of a gradient that the encoding omits is added to the next "
              "gradient. This takes a worker 4 bytes of memory per parameter, 8 while it pushes.",
              DefaultBy("push", {{{"TopK", "Int8", "OneBit"}, "true"}, {{}, "false"}}),
              Context(R"({"spec":{"training":{"compression":{"push":"Int8"}}}})"), Good("false")));
}

void AddStalenessRule(const FieldAdder& add) {
  constexpr char kAsynchronous[] = R"({"spec":{"training":{"mode":"Asynchronous"}}})";
  add(Object("spec.training.stalenessRule",
             "How the staleness of an update (the updates applied since its parameters were "
             "pulled) changes it. Not in mode Synchronous.",
             Proto({"staleness"})));
  add(String("spec.training.stalenessRule.name",
             "`Damped`: the learning rate is divided by 1 + `factor` times the staleness. "
             "`Inverse`: it is divided by the staleness, if that is more than 1. "
             "`DelayCompensation`: the gradient g becomes g + `lambda` g^2 (current parameters - "
             "parameters that it was computed on). `MomentumCorrection`: SGD's momentum is reduced "
             "by the momentum that staleness s adds, s / (1 + s), but not below 0.",
             Required(), Proto({"rule"}),
             OneOf({"None", "Damped", "Inverse", "DelayCompensation", "MomentumCorrection"}),
             Context(kAsynchronous), Good("Inverse"),
             Bad("DCASGD", "must be one of None, Damped, Inverse, DelayCompensation")));
  add(Number(
      "spec.training.stalenessRule.factor", "Damped: the weight of each update of staleness.",
      DefaultBy("name", {{{"Damped"}, "0.1"}}), Min(0), Max(1e6),
      Context(R"({"spec":{"training":{"mode":"Asynchronous","stalenessRule":{"name":"Damped"}}}})"),
      Good("0.5"), Bad("-1", "at least 0")));
  add(Number(
      "spec.training.stalenessRule.lambda", "DelayCompensation: the strength of the compensation.",
      DefaultBy("name", {{{"DelayCompensation"}, "0.04"}}), Min(0), Max(1e6),
      Context(
          R"({"spec":{"training":{"mode":"Asynchronous","stalenessRule":{"name":"DelayCompensation"}}}})"),
      Good("0.1"), Bad("-1", "at least 0")));
}

void AddTrainingDetails(const FieldAdder& add) {
  add(String("spec.training.determinism",
             "`BitExact`: gradients are added in a fixed order, so the parameters have the same "
             "bits for any number of workers and shards and after any failure. This is slower. "
             "`Default`: the same up to rounding.",
             Fixed(), Proto({"bit_exact"}), Default(R"("Default")"), OneOf({"Default", "BitExact"}),
             Good("BitExact"), Bad("Bitexact", "did you mean `BitExact`?")));
  add(String("spec.training.kernels",
             "The instructions for which the workers' libraries of linear algebra choose their "
             "kernels. Kernels for different instructions round differently. `Native`: the newest "
             "of each machine; with BitExact, equal bits then need processors of one kind. "
             "`x86-64-v3`: AVX2, which processors have since about 2015. `x86-64-v4`: AVX-512. A "
             "worker on a processor without the instructions fails the job.",
             Fixed(), Implied("`x86-64-v3` with BitExact, otherwise `Native`"),
             OneOf({"Native", "x86-64-v3", "x86-64-v4"}), Good("x86-64-v3"),
             Bad("avx2", "must be one of Native, x86-64-v3, x86-64-v4")));
  add(String("spec.training.aggregation",
             "`Mean`: the mean gradient over the samples of a step. `Sum`: the sum of the "
             "microbatches' mean gradients.",
             Fixed(), Default(R"("Mean")"), OneOf({"Mean", "Sum"}), Good("Sum")));
  add(String("spec.training.nonFinite",
             "The reaction to a gradient with NaN or infinity. `Fail`: the job fails and names the "
             "tensor. `Skip`: the step is skipped for all parameters.",
             Fixed(), Default(R"("Fail")"), OneOf({"Fail", "Skip"}), Good("Skip")));
  AddExecution(add);
  AddCompression(add);
  AddStalenessRule(add);
  AddStragglers(add);
  AddDense(add);
  AddSync(add);
  add(Integer("spec.training.threads",
              "Threads that a worker computes with. With more than one, only runs with the same "
              "number are BitExact.",
              Implied("under `sluice run` the machine's cores divided by the job's workers, on a "
                      "cluster the CPUs of the container, for a worker that is started by hand all "
                      "cores; 1 with BitExact"),
              Min(1), Max(1024), Good("2"), Bad("0", "at least 1")));
  add(Object("spec.training.target", "Stop early when an evaluation reaches this value.",
             Length()));
  add(String("spec.training.target.metric",
             "`accuracy` in percent, `loss`, `perplexity` of a language model, e ^ loss, or of a "
             "Custom model a metric of the program's own.",
             Required(), MetricName(), Context(kTarget), Good("loss"),
             Bad("val/auc", "must be a metric's name")));
  add(String("spec.training.target.goal",
             "Whether the metric must become at least or at most `value`.", Required(),
             OneOf({"AtLeast", "AtMost"}), Context(kTarget), Good("AtMost"),
             Bad("\">=\"", "must be one of AtLeast, AtMost")));
  add(Number("spec.training.target.value", "The value to reach.", Required(), Context(kTarget),
             Good("0.25"), Bad("high", "must be a number")));
  AddStopping(add);
}

void AddParameterServer(const FieldAdder& add) {
  add(Object("spec.parameterServer", "The shards, which store the parameters.", Default("{}")));
  add(Integer("spec.parameterServer.replicas", "Number of shards.", Default("1"), Min(1), Max(1024),
              Good("2"), Bad("0", "at least 1"), Bad("two", "must be an integer")));
  AddReplicaBounds("spec.parameterServer", "shards", add);
  add(Integer(
      "spec.parameterServer.partitions",
      "The number of partitions into which the parameters are divided. Each partition belongs to "
      "one shard. The number is fixed for the life of the job, so it limits the number of shards.",
      Fixed(), Default("64"), Min(1), Max(1024), Good("256"), Bad("2048", "at most 1024")));
  add(Integer(
      "spec.parameterServer.copies",
      "Copies of each partition, on different shards. With 2, no step is lost when a shard dies: "
      "training continues with the other copy, and a new copy is made in the background. The "
      "shards then need twice the memory, and send each step's summed gradients to each other "
      "(asynchronous: each update's gradients). Unset: 2 with two shards or more; 1 with one "
      "shard, with `execution: Server`, and with `DelayCompensation`.",
      Min(1), Max(2), Context(R"({"spec":{"parameterServer":{"replicas":2}}})"), Good("1"),
      Bad("3", "at most 2")));
  add(Number("spec.parameterServer.copyMegabytesPerSecond",
             "The rate at which a shard sends partitions of which another shard makes copies, in "
             "megabytes (10^6 bytes) per second; 0: not limited.",
             Default("150"), Min(0), Good("50"), Bad("-1", "at least 0")));
  AddPodTemplate("spec.parameterServer", "ps", add);
}

void AddWorker(const FieldAdder& add) {
  add(Object("spec.worker", "The workers, which compute gradients.", Default("{}")));
  add(Integer("spec.worker.replicas", "Number of workers.", Default("1"), Min(1), Max(1024),
              Good("4"), Bad("0", "at least 1")));
  AddReplicaBounds("spec.worker", "workers", add);
  add(List("spec.worker.command",
           "The program that runs as a worker, and its arguments, for a Custom model. Environment "
           "variables describe the job (SLUICE_COORDINATOR, SLUICE_JOB, SLUICE_WORKER_INDEX); in "
           "Python, `sluice.join()` reads them.",
           Size(1, 256), Context(kCustom), Good("[python3, train.py]"),
           Bad("[]", "must have at least 1 item"), Bad("python3 train.py", "must be a list")));
  add(String("spec.worker.command[]", "The program, or one argument.", Size(1, 4096)));
  AddPodTemplate("spec.worker", "worker", add);
}

void AddCheckpointStorage(const FieldAdder& add) {
  add(Object("spec.checkpoint",
             "Checkpoints, from which the job is restored after the loss of a shard.",
             Default("{}")));
  add(Object("spec.checkpoint.storage",
             "Where checkpoints are stored. A cluster needs a claim or a `path`. If neither is "
             "set, one may be set later; it is fixed from then on.",
             FixedUnless("oldSelf.storage.type == 'Local' && !has(oldSelf.storage.path)"),
             Default("{}")));
  add(String(
      "spec.checkpoint.storage.type",
      "`Local`: a directory of the file system. `PersistentVolumeClaim`: a claim of the job's "
      "namespace, which all of its pods mount; under `sluice run` the job's own directory.",
      Default(R"("Local")"), OneOf({"Local", "PersistentVolumeClaim"}), Good("Local"),
      Bad("S3", "must be one of Local, PersistentVolumeClaim")));
  add(String("spec.checkpoint.storage.path",
             "Local: the directory. It is created if it is missing. All processes of the job must "
             "have access to it.",
             Proto({"directory"}),
             Implied("in the job's own directory, `.sluice/<name>/checkpoints`"), Path(),
             Good("/var/lib/checkpoints/fashion-mnist"), Bad("~/checkpoints", "are not expanded")));
  AddCheckpointClaim(add);
}

void AddCheckpoint(const FieldAdder& add) {
  AddCheckpointStorage(add);
  add(Integer("spec.checkpoint.intervalSteps",
              "Steps between checkpoints. Either this or `intervalSeconds`.", Min(1), Good("1000"),
              Bad("0", "at least 1")));
  add(Number("spec.checkpoint.intervalSeconds",
             "Seconds between checkpoints. Either this or `intervalSteps`.",
             DefaultWhereAllowed("300"), Implied("if `intervalSteps` is unset"), Above(0), Max(1e6),
             Good("60"), Bad("0", "must be more than 0")));
  add(Integer("spec.checkpoint.maxToKeep", "Number of checkpoints to keep; older ones are deleted.",
              Default("3"), Min(1), Max(1000), Good("5"), Bad("0", "at least 1")));
  AddKeepBest(add);
  add(Integer(
      "spec.checkpoint.hashIntervalSteps",
      "Steps between state hashes. A state hash is a hash of each partition's state, which the "
      "shards compute after a synchronous step; each checkpoint stores the last 1000 of them. "
      "With them, `sluice verify` names the first step at which a replay differs.",
      Implied("only checkpoints have hashes"), Min(1), Good("1"), Bad("0", "at least 1")));
  add(String(
      "spec.checkpoint.restoreFrom",
      "A directory with the checkpoints of another job, or with a model of PyTorch that "
      "`sluice import` or `sluice.save_checkpoint` has converted. Training begins with the "
      "newest of them instead of random parameters. `DIRECTORY/best`: with the best of them, "
      "if the other job has `keepBest`.",
      Fixed(), Path(), Good("/var/lib/checkpoints/pretrained")));
  add(String("spec.checkpoint.onExisting",
             "What the job does with the checkpoints of an earlier job of the same name (an object "
             "that was deleted and created again, or a finished job that is run again with more "
             "steps). `Resume`: continue from them, also from the end of a finished job; the "
             "settings that a checkpoint depends on must be the same. `Fail`: fail without "
             "changing anything. `Replace`: train from the beginning; the earlier job's "
             "checkpoints are removed when the first new one is complete.",
             Implied("continue from an unfinished job with the same settings, otherwise as `Fail`"),
             OneOf({"Resume", "Fail", "Replace"}), Good("Resume"),
             Bad("resume", "did you mean `Resume`?"),
             Bad("Overwrite", "must be one of Resume, Fail, Replace")));
}

void AddLimits(const FieldAdder& add) {
  add(Integer(
      "spec.backoffLimit",
      "How often the job may lose a shard whose partitions have no complete copy on another "
      "shard, or the coordinator while it does not train. With one more loss, it fails. Suspending "
      "the job does not reset the count.",
      Default("6"), Min(0), Max(1000), Good("0"), Bad("-1", "at least 0")));
  add(Object("spec.timeouts", "When a process is considered lost. The defaults suit most jobs.",
             Default("{}")));
  const auto timeout = [&](const char* name, const char* description, double seconds) {
    const std::string value = absl::StrCat(seconds);
    add(Number(absl::StrCat("spec.timeouts.", name), description, Default(value), Above(0),
               Max(86400), Good(value), Bad("0", "must be more than 0"),
               Bad("1s", "must be a number")));
  };
  timeout("heartbeatSeconds", "Time between two heartbeats of a process.", kDefaultHeartbeat);
  timeout("suspectSeconds", "Time for a worker whose connection broke to reconnect.",
          kDefaultSuspect);
  timeout("heartbeatTimeoutSeconds", "A process that sends no heartbeat for this long is lost.",
          kDefaultHeartbeatTimeout);
  timeout("pauseSeconds", "A shard that does not answer a Pause for this long is lost.",
          kDefaultPause);
  timeout("initializationSeconds",
          "A worker that does not push the initial parameters within this time is replaced.",
          kDefaultInitialization);
  timeout(
      "evaluationSeconds",
      "Samples that a worker does not evaluate within this time are assigned to another worker.",
      kDefaultEvaluation);
  timeout("suspendCheckpointSeconds",
          "Time for a job that is suspended to save its last checkpoint.",
          kDefaultSuspendCheckpoint);
  add(Number("spec.timeouts.weightsSeconds",
             "Synchronous: a shard is lost if most workers have waited this long for a version of "
             "the parameters that it has, or if a worker has waited this long and the shard has "
             "sent no heartbeat in this time. Unset: no limit.",
             Above(0), Max(86400), Good("35"), Bad("0", "must be more than 0")));
  add(Number(
      "spec.timeouts.gradientsSeconds",
      absl::StrCat(
          "A worker is lost if a step has waited this long for its gradients, or if it has "
          "held a lease on samples this long without applying any. This must be longer than "
          "a step of the slowest worker. Unset: ",
          kDefaultGradients, " (with `aggregation: AllReduce` or `sync: BatchNorm`: no limit)."),
      Above(0), Max(86400), Good("15"), Bad("0", "must be more than 0")));
  add(Number("spec.timeouts.startSeconds",
             absl::StrCat(
                 "A process that has not registered with the coordinator this long after its start "
                 "is killed and started again. Unset: ",
                 kDefaultStart, ", and ", kDefaultCommandStart,
                 " for a worker with the job's own `command`."),
             Above(0), Max(86400), Good("60"), Bad("0", "must be more than 0")));
  add(Boolean("spec.suspend",
              "Save a checkpoint and stop all processes until this is false again. The job then "
              "continues at the same sample.",
              Default("false"), Good("true")));
  add(Integer("spec.activeDeadlineSeconds",
              "The job fails when it has run for longer than this since it was started or last "
              "resumed. Unset: no limit.",
              Min(1), Max(1e9), Good("86400"), Bad("0", "at least 1")));
  AddClusterLimits(add);
}

}  // namespace

std::vector<Field> TrainingFields() {
  std::vector<Field> fields;
  const FieldAdder add(&fields);
  AddLoss(add);
  AddOptimizer(add);
  AddSchedule(add);
  AddPlateau(add);
  AddGroups(add);
  AddTrainingBasics(add);
  AddTrainingDetails(add);
  AddCoordinator(add);
  AddParameterServer(add);
  AddWorker(add);
  AddCheckpoint(add);
  AddLimits(add);
  AddDebug(add);
  return fields;
}

}  // namespace sluice::api
