// Rows of the table: loss, optimizer, training, the sizes of the job, checkpoints, limits.
#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/string_view.h"
#include "operator/api/enum_names.h"
#include "operator/api/field_builder.h"

namespace sluice::api {
namespace {

std::string WithOptimizer(const std::string& name) {
  return R"({"spec":{"optimizer":{"name":")" + name + R"("}}})";
}
constexpr char kStepSchedule[] =
    R"({"spec":{"optimizer":{"schedule":{"type":"Step","stepSize":100}}}})";
constexpr char kCosineSchedule[] =
    R"({"spec":{"optimizer":{"schedule":{"type":"Cosine","totalSteps":1000}}}})";
constexpr char kCustom[] =
    R"({"spec":{"model":{"type":"Custom","name":null},"data":{"format":"Custom","source":null}}})";
constexpr char kTarget[] =
    R"({"spec":{"data":{"evaluation":{"source":{"path":"/data/test"},"intervalSteps":100}},
                "training":{"target":{"metric":"loss","goal":"AtMost","value":1}}}})";

bool IsLibraryName(absl::string_view text) {
  if (text.empty() || text[0] == '.' || text[0] == '-') return false;
  return std::all_of(text.begin(), text.end(), [](char c) {
    return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '-' || c == '.';
  });
}

void AddLossAndOptimizer(std::vector<Field>* fields) {
  fields->push_back(String("spec.loss",
                           "The loss to minimise. Unset: the model's own loss. A TorchScript "
                           "module that returns its loss needs none.")
                        .Fixed()
                        .OneOf({"nll", "crossEntropy", "mse", "binaryCrossEntropyWithLogits"})
                        .Example("crossEntropy")
                        .Invalid("cross_entropy", "did you mean `crossEntropy`?"));
  fields->push_back(Object("spec.optimizer",
                           "How gradients change parameters. Options have the names, meanings and "
                           "defaults of PyTorch; options of another optimizer are refused.")
                        .Fixed()
                        .Required());
  fields->push_back(
      String("spec.optimizer.name",
             "The optimizer, as in `torch.optim`. `Add`: parameters <- parameters + update, for "
             "exact sums. `Plugin`: the optimizer of a shared library.")
          .Required()
          .Alias("type")
          .OneOf(NamesOf<v1::OptimizerSpec::Name>())
          .Example("Adam")
          .Invalid("adam", "did you mean `Adam`?")
          .Invalid("RMSprop", "must be one of SGD, Adagrad, Adam, AdamW, Add, Plugin"));
  fields->push_back(Number("spec.optimizer.learningRate", "Step size. Not for Add.")
                        .Implied("0.01 for Adagrad, else 0.001")
                        .Alias("lr")
                        .Min(0)
                        .Example("0.05")
                        .Invalid("-0.1", "at least 0")
                        .Invalid("fast", "must be a number"));
  fields->push_back(Number("spec.optimizer.momentum", "SGD: factor of the previous step.")
                        .Implied("0")
                        .Min(0)
                        .Example("0.9")
                        .Invalid("-1", "at least 0"));
  fields->push_back(Number("spec.optimizer.dampening",
                           "SGD: the part of the gradient that is not added to the momentum.")
                        .Implied("0")
                        .Example("0.1"));
  fields->push_back(Boolean("spec.optimizer.nesterov", "SGD: Nesterov momentum.")
                        .Implied("false")
                        .Context(R"({"spec":{"optimizer":{"momentum":0.9}}})")
                        .Example("true"));
  fields->push_back(Number("spec.optimizer.weightDecay",
                           "Weight decay: added to the gradient (L2); AdamW subtracts it from the "
                           "parameter. Not for Add.")
                        .Implied("0.01 for AdamW, else 0")
                        .Min(0)
                        .Example("1e-4")
                        .Invalid("-1e-4", "at least 0"));
  fields->push_back(
      List("spec.optimizer.betas",
           "Adam, AdamW: decay rates of the mean and of the mean square of gradients.")
          .Implied("[0.9, 0.999]")
          .Size(2, 2)
          .Context(WithOptimizer("Adam"))
          .Example("[0.9, 0.99]")
          .Invalid("[0.9]", "must have at least 2 items")
          .Invalid("[0.9, 1]", "must be less than 1"));
  fields->push_back(Number("spec.optimizer.betas[]", "One rate.").Min(0).Below(1));
  fields->push_back(Number("spec.optimizer.eps", "Adagrad, Adam, AdamW: added to the divisor.")
                        .Implied("1e-10 for Adagrad, else 1e-8")
                        .Min(0)
                        .Context(WithOptimizer("Adam"))
                        .Example("1e-7"));
  fields->push_back(Number("spec.optimizer.lrDecay", "Adagrad: decay of the learning rate.")
                        .Implied("0")
                        .Min(0)
                        .Context(WithOptimizer("Adagrad"))
                        .Example("1e-4"));
  fields->push_back(Number("spec.optimizer.initialAccumulatorValue",
                           "Adagrad: initial value of the sum of squares.")
                        .Implied("0")
                        .Min(0)
                        .Context(WithOptimizer("Adagrad"))
                        .Example("0.1"));
  fields->push_back(
      Boolean("spec.optimizer.amsgrad", "Adam, AdamW: divide by the largest mean square so far.")
          .Implied("false")
          .Context(WithOptimizer("AdamW"))
          .Example("true"));
  fields->push_back(
      String("spec.optimizer.library",
             "Plugin: the shared library `lib<library>.so` on the shards' machines, in a directory "
             "of $SLUICE_PLUGIN_PATH, /usr/local/lib/sluice or /usr/lib/sluice.")
          .Size(1, 64)
          .Pattern("^[A-Za-z0-9_][A-Za-z0-9_.-]*$", IsLibraryName,
                   "must be a name of letters, digits, `-`, `_` and `.`, without `lib` and `.so`")
          .Context(R"({"spec":{"optimizer":{"name":"Plugin"}}})")
          .Example("lion")
          .Invalid("plugins/liblion.so", "must be a name"));
  fields->push_back(
      Map("spec.optimizer.parameters", "Plugin: parameters of the library's optimizer, by name.")
          .Size(0, 32)
          .Context(R"({"spec":{"optimizer":{"name":"Plugin","library":"lion"}}})")
          .Example("{beta1: 0.9, beta2: 0.99}")
          .Invalid("{beta1: high}", "must be a number"));
  fields->push_back(Number("spec.optimizer.parameters{}", "One number."));
  fields->push_back(Number("spec.optimizer.clipNorm",
                           "Gradients whose 2-norm over all parameters is larger are scaled down "
                           "to this norm. Unset: no gradient is scaled.")
                        .Above(0)
                        .Example("1.0")
                        .Invalid("0", "must be more than 0"));
}

void AddScheduleAndGroups(std::vector<Field>* fields) {
  fields->push_back(
      Object("spec.optimizer.schedule",
             "How the learning rate changes over the steps. Unset: it is constant. Not for Add."));
  fields->push_back(
      String("spec.optimizer.schedule.type",
             "`Constant`. `Step`: multiplied by `gamma` every `stepSize` steps. `Cosine`: half a "
             "cosine from 1 to `minFactor` over `totalSteps` steps, then constant.")
          .Default(R"("Constant")")
          .OneOf(NamesOf<v1::Schedule::Type>())
          .Example("Constant")
          .Invalid("Linear", "must be one of Constant, Step, Cosine"));
  fields->push_back(Integer("spec.optimizer.schedule.warmupSteps",
                            "Steps in which the learning rate rises to its full value, before the "
                            "schedule of any type.")
                        .Default("0")
                        .Min(0)
                        .Example("500")
                        .Invalid("-5", "at least 0"));
  fields->push_back(Integer("spec.optimizer.schedule.stepSize", "Step: steps between two changes.")
                        .Min(1)
                        .Context(kStepSchedule)
                        .Example("1000"));
  fields->push_back(Number("spec.optimizer.schedule.gamma", "Step: factor of each change.")
                        .Implied("0.1")
                        .Above(0)
                        .Context(kStepSchedule)
                        .Example("0.5")
                        .Invalid("0", "must be more than 0"));
  fields->push_back(Integer("spec.optimizer.schedule.totalSteps",
                            "Cosine: steps until the lowest rate, including the warm-up.")
                        .Min(1)
                        .Context(kCosineSchedule)
                        .Example("10000"));
  fields->push_back(Number("spec.optimizer.schedule.minFactor",
                           "Cosine: the lowest rate, as a multiple of the learning rate.")
                        .Implied("0")
                        .Min(0)
                        .Max(1)
                        .Context(kCosineSchedule)
                        .Example("0.01")
                        .Invalid("2", "at most 1"));
  fields->push_back(List("spec.optimizer.groups",
                         "Other options for some parameters. A parameter belongs to the first "
                         "group with a pattern that matches its name. Options that the group does "
                         "not set are those of the optimizer. Not for Add and Plugin.")
                        .Size(0, 64)
                        .Example("[{patterns: [\"*.bias\"], weightDecay: 0}]")
                        .Invalid("{patterns: [a]}", "must be a list"));
  fields->push_back(Object("spec.optimizer.groups[]", "One group."));
  fields->push_back(List("spec.optimizer.groups[].patterns",
                         "Names of parameters, as in PyTorch's state_dict; `*` matches any "
                         "characters, `?` matches one.")
                        .Required()
                        .Size(1, 64));
  fields->push_back(String("spec.optimizer.groups[].patterns[]", "One pattern.").Size(1, 253));
  fields->push_back(Number("spec.optimizer.groups[].learningRate", "Step size of these parameters.")
                        .Min(0)
                        .Alias("lr"));
  fields->push_back(
      Number("spec.optimizer.groups[].weightDecay", "Weight decay of these parameters.").Min(0));
  fields->push_back(
      Number("spec.optimizer.groups[].momentum", "SGD: momentum of these parameters.").Min(0));
}

void AddTrainingBasics(std::vector<Field>* fields) {
  fields->push_back(Object("spec.training", "How to train, and for how long.").Required());
  fields->push_back(
      String("spec.training.mode",
             "`Synchronous`: each step applies the gradient of one global batch. The result is the "
             "same for any number of workers, up to rounding, and to the bit with `determinism: "
             "BitExact`. `Asynchronous`: each worker applies updates at its own pace. "
             "`BoundedStaleness`: as Asynchronous, but no worker gets far ahead. A change takes "
             "effect through a checkpoint.")
          .Default(R"("Synchronous")")
          .OneOf(NamesOf<v1::Mode>())
          .Example("Asynchronous")
          .Invalid("Async", "must be one of Synchronous, Asynchronous, BoundedStaleness"));
  fields->push_back(Object("spec.training.boundedStaleness",
                           "Bounds of mode BoundedStaleness. Only with that mode."));
  fields->push_back(
      Integer("spec.training.boundedStaleness.maxStaleness",
              "A worker waits while it is more than this many updates ahead of the slowest worker.")
          .Required()
          .Min(0)
          .Max(1e6)
          .Context(
              R"({"spec":{"training":{"mode":"BoundedStaleness","boundedStaleness":{"maxStaleness":1}}}})")
          .Example("4")
          .Invalid("-1", "at least 0"));
  fields->push_back(Integer("spec.training.globalBatchSize",
                            "Samples of one step, over all workers. In other modes than "
                            "Synchronous: samples of one worker's update.")
                        .Fixed()
                        .Default("64")
                        .Min(1)
                        .Max(1 << 24)
                        .Alias("batchSize")
                        .Alias("batch")
                        .Example("256")
                        .Invalid("0", "at least 1")
                        .Invalid("64.5", "must be an integer"));
  fields->push_back(
      Integer("spec.training.microbatchSize",
              "Samples of a microbatch. A global batch is divided into microbatches (the last may "
              "be smaller), which are assigned to workers in proportion to their speed. A worker "
              "computes all of its microbatches as one batch, but with BitExact one by one, so "
              "larger ones are faster.")
          .Fixed()
          .Implied("globalBatchSize / 16, rounded up")
          .Min(1)
          .Max(1 << 24)
          .Alias("microBatchSize")
          .Example("16")
          .Invalid("0", "at least 1"));
  constexpr char kBalanced[] =
      R"({"spec":{"training":{"mode":"Asynchronous","maxBatchSize":128}}})";
  fields->push_back(
      Integer(
          "spec.training.maxBatchSize",
          "In other modes than Synchronous: the maximum samples of an update. Each worker's batch "
          "size follows its measured speed, so that the updates of all workers take equally long; "
          "at the mean speed it is `globalBatchSize`. Unset: always `globalBatchSize`.")
          .Min(1)
          .Max(1 << 24)
          .Context(R"({"spec":{"training":{"mode":"Asynchronous"}}})")
          .Example("128")
          .Invalid("0", "at least 1"));
  fields->push_back(Integer("spec.training.minBatchSize",
                            "With `maxBatchSize`: the minimum samples of an update. Unset: 1.")
                        .Min(1)
                        .Max(1 << 24)
                        .Context(kBalanced)
                        .Example("8")
                        .Invalid("0", "at least 1"));
  fields->push_back(Integer("spec.training.steps",
                            "Train for this many steps (in other modes than Synchronous: updates). "
                            "Either this or `epochs`.")
                        .Min(1)
                        .Alias("maxSteps")
                        .Example("10000")
                        .Invalid("0", "at least 1")
                        .Invalid("many", "must be an integer, not the string \"many\""));
  fields->push_back(Integer("spec.training.epochs", "Passes over the data. Either this or `steps`.")
                        .Min(1)
                        .Context(R"({"spec":{"training":{"steps":null}}})")
                        .Example("5")
                        .Invalid("1.5", "must be an integer"));
  fields->push_back(
      Integer("spec.training.seed",
              "The seed for the initial parameters, the order of samples and dropout.")
          .Fixed()
          .Default("0")
          .Min(0)
          .Example("42")
          .Invalid("-1", "at least 0"));
}

void AddCompression(std::vector<Field>* fields) {
  fields->push_back(
      Object("spec.training.compression",
             "How gradients and parameters are encoded when they are sent. `None`: not at all.")
          .Default("{}"));
  fields->push_back(
      String("spec.training.compression.push",
             "Encoding of gradients, from workers to shards. `Float16`, `BFloat16`: rounded to 16 "
             "bits. `Int8`: rounded to 8 bits, with a scale. `TopK`: the largest elements only. "
             "`OneBit`: signs and two means. `SignThreshold`: the signs of elements beyond a "
             "threshold, for demonstrations. Not with BitExact.")
          .Default(R"("None")")
          .OneOf(NamesOf<v1::Codec>())
          .Example("Int8")
          .Invalid("fp16", "must be one of None, Float16, BFloat16, TopK, Int8"));
  fields->push_back(
      String("spec.training.compression.pull", "Encoding of parameters, from shards to workers.")
          .Default(R"("None")")
          .OneOf({"None", "Float16", "BFloat16"})
          .Example("BFloat16")
          .Invalid("Int8", "must be one of None, Float16, BFloat16"));
  fields->push_back(Number("spec.training.compression.fraction",
                           "TopK: the fraction of each block's elements that is sent, rounded up.")
                        .Implied("0.01 for TopK")
                        .Above(0)
                        .Max(0.5)
                        .Context(R"({"spec":{"training":{"compression":{"push":"TopK"}}}})")
                        .Example("0.05")
                        .Invalid("0", "must be more than 0")
                        .Invalid("0.6", "at most 0.5"));
  fields->push_back(
      Number("spec.training.compression.threshold",
             "SignThreshold: the magnitude beyond which an element is sent, and the value that is "
             "sent for it. It is compared with the pushed gradient, which is the sum over a "
             "worker's samples.")
          .Above(0)
          .Max(1e30)
          .Context(
              R"({"spec":{"training":{"compression":{"push":"SignThreshold","threshold":1}}}})")
          .Example("0.5")
          .Invalid("0", "must be more than 0"));
  fields->push_back(
      Boolean("spec.training.compression.errorFeedback",
              "Whether the part of a gradient that the encoding omits is added to the next "
              "gradient. This takes a worker 4 bytes of memory per parameter, 8 while it pushes.")
          .Implied("true for TopK, Int8 and OneBit, else false")
          .Context(R"({"spec":{"training":{"compression":{"push":"Int8"}}}})")
          .Example("false"));
}

void AddStalenessRule(std::vector<Field>* fields) {
  constexpr char kAsynchronous[] = R"({"spec":{"training":{"mode":"Asynchronous"}}})";
  fields->push_back(Object("spec.training.stalenessRule",
                           "How the staleness of an update (the updates applied since its "
                           "parameters were pulled) changes it. Not in mode Synchronous."));
  fields->push_back(
      String("spec.training.stalenessRule.name",
             "`Damped`: the learning rate is divided by 1 + `factor` times the staleness. "
             "`Inverse`: it is divided by the staleness, if that is more than 1. "
             "`DelayCompensation`: the gradient g becomes g + `lambda` g^2 (current parameters - "
             "parameters that it was computed on). `MomentumCorrection`: SGD's momentum is reduced "
             "by the momentum that staleness s adds, s / (1 + s), but not below 0.")
          .Required()
          .OneOf(NamesOf<v1::TrainingSpec::Staleness::Rule>())
          .Context(kAsynchronous)
          .Example("Inverse")
          .Invalid("DCASGD", "must be one of None, Damped, Inverse, DelayCompensation"));
  fields->push_back(
      Number("spec.training.stalenessRule.factor",
             "Damped: the weight of each update of staleness.")
          .Implied("0.1 for Damped")
          .Min(0)
          .Max(1e6)
          .Context(
              R"({"spec":{"training":{"mode":"Asynchronous","stalenessRule":{"name":"Damped"}}}})")
          .Example("0.5")
          .Invalid("-1", "at least 0"));
  fields->push_back(
      Number("spec.training.stalenessRule.lambda",
             "DelayCompensation: the strength of the compensation.")
          .Implied("0.04 for DelayCompensation")
          .Min(0)
          .Max(1e6)
          .Context(
              R"({"spec":{"training":{"mode":"Asynchronous","stalenessRule":{"name":"DelayCompensation"}}}})")
          .Example("0.1")
          .Invalid("-1", "at least 0"));
}

void AddTrainingDetails(std::vector<Field>* fields) {
  fields->push_back(String("spec.training.determinism",
                           "`BitExact`: gradients are added in a fixed order, so the parameters "
                           "have the same bits for any number of workers and shards and after any "
                           "failure. This is slower. `Default`: the same up to rounding.")
                        .Fixed()
                        .Default(R"("Default")")
                        .OneOf({"Default", "BitExact"})
                        .Example("BitExact")
                        .Invalid("Bitexact", "did you mean `BitExact`?"));
  fields->push_back(String("spec.training.aggregation",
                           "`Mean`: the mean gradient over the samples of a step. `Sum`: the sum "
                           "of the microbatches' mean gradients.")
                        .Fixed()
                        .Default(R"("Mean")")
                        .OneOf(NamesOf<v1::TrainingSpec::Aggregation>())
                        .Example("Sum"));
  fields->push_back(String("spec.training.nonFinite",
                           "The reaction to a gradient with NaN or infinity. `Fail`: the job fails "
                           "and names the tensor. `Skip`: the step is skipped for all parameters.")
                        .Fixed()
                        .Default(R"("Fail")")
                        .OneOf(NamesOf<v1::TrainingSpec::NonFinite>())
                        .Example("Skip"));
  AddExecution(fields);
  AddCompression(fields);
  AddStalenessRule(fields);
  AddStragglers(fields);
  AddDense(fields);
  fields->push_back(Integer("spec.training.threads",
                            "Threads that a worker computes with. With more than one, only runs "
                            "with the same number are BitExact.")
                        .Implied("under `sluice run` cores / workers of the job, on a cluster the "
                                 "CPUs of its container, by hand all cores; 1 with BitExact")
                        .Min(1)
                        .Max(1024)
                        .Example("2")
                        .Invalid("0", "at least 1"));
  fields->push_back(Number("spec.training.stepDelaySeconds",
                           "A pause in each step, which slows a job down for demonstrations.")
                        .Default("0")
                        .Min(0)
                        .Max(60)
                        .Example("0.1")
                        .Invalid("61", "at most 60"));
  fields->push_back(
      Object("spec.training.target", "Stop early when an evaluation reaches this value."));
  fields->push_back(String("spec.training.target.metric",
                           "`accuracy` in percent, `loss`, or `perplexity` of a "
                           "language model, e ^ loss.")
                        .Required()
                        .OneOf({"accuracy", "loss", "perplexity"})
                        .Context(kTarget)
                        .Example("loss")
                        .Invalid("auc", "must be one of accuracy, loss, perplexity"));
  fields->push_back(String("spec.training.target.goal",
                           "Whether the metric must become at least or at most `value`.")
                        .Required()
                        .OneOf({"AtLeast", "AtMost"})
                        .Context(kTarget)
                        .Example("AtMost")
                        .Invalid("\">=\"", "must be one of AtLeast, AtMost"));
  fields->push_back(Number("spec.training.target.value", "The value to reach.")
                        .Required()
                        .Context(kTarget)
                        .Example("0.25")
                        .Invalid("high", "must be a number"));
}

void AddSizesAndCheckpoint(std::vector<Field>* fields) {
  AddCoordinator(fields);
  fields->push_back(
      Object("spec.parameterServer", "The shards, which store the parameters.").Default("{}"));
  fields->push_back(Integer("spec.parameterServer.replicas", "Number of shards.")
                        .Default("1")
                        .Min(1)
                        .Max(1024)
                        .Example("2")
                        .Invalid("0", "at least 1")
                        .Invalid("two", "must be an integer"));
  AddReplicaBounds("spec.parameterServer", "shards", fields);
  fields->push_back(Integer("spec.parameterServer.partitions",
                            "The number of partitions into which the parameters are divided. Each "
                            "partition belongs to one shard. The number is fixed for the life of "
                            "the job, so it limits the number of shards.")
                        .Fixed()
                        .Default("64")
                        .Min(1)
                        .Max(1024)
                        .Example("256")
                        .Invalid("2048", "at most 1024"));
  AddPodTemplate("spec.parameterServer", "ps", fields);
  fields->push_back(Object("spec.worker", "The workers, which compute gradients.").Default("{}"));
  fields->push_back(Integer("spec.worker.replicas", "Number of workers.")
                        .Default("1")
                        .Min(1)
                        .Max(1024)
                        .Example("4")
                        .Invalid("0", "at least 1"));
  AddReplicaBounds("spec.worker", "workers", fields);
  fields->push_back(List("spec.worker.command",
                         "The program that runs as a worker, and its arguments, for a Custom "
                         "model. Environment variables describe the job (SLUICE_COORDINATOR, "
                         "SLUICE_JOB, SLUICE_WORKER_INDEX); in Python, `sluice.join()` reads them.")
                        .Size(1, 256)
                        .Context(kCustom)
                        .Example("[python3, train.py]")
                        .Invalid("[]", "must have at least 1 item")
                        .Invalid("python3 train.py", "must be a list"));
  fields->push_back(String("spec.worker.command[]", "The program, or one argument.").Size(1, 4096));
  AddPodTemplate("spec.worker", "worker", fields);
  fields->push_back(Object("spec.checkpoint",
                           "Checkpoints, from which the job is restored after the loss of a shard "
                           "or of the coordinator.")
                        .Default("{}"));
  fields->push_back(
      Object("spec.checkpoint.storage",
             "Where checkpoints are stored. A cluster needs a claim or a `path`. If neither is "
             "set, it may be set later, and cannot be changed then.")
          .FixedUnless("oldSelf.storage.type == 'Local' && !has(oldSelf.storage.path)")
          .Default("{}"));
  fields->push_back(
      String(
          "spec.checkpoint.storage.type",
          "`Local`: a directory of the file system. `PersistentVolumeClaim`: a claim of the job's "
          "namespace, which all of its pods mount; under `sluice run` the job's own directory.")
          .Default(R"("Local")")
          .OneOf({"Local", "PersistentVolumeClaim"})
          .Example("Local")
          .Invalid("S3", "must be one of Local, PersistentVolumeClaim"));
  fields->push_back(String("spec.checkpoint.storage.path",
                           "Local: the directory. It is created if it is missing. All processes of "
                           "the job must have access to it.")
                        .Implied("in the job's own directory, `.sluice/<name>/checkpoints`")
                        .Path()
                        .Example("/var/lib/checkpoints/fashion-mnist")
                        .Invalid("~/checkpoints", "are not expanded"));
  AddCheckpointClaim(fields);
  fields->push_back(Integer("spec.checkpoint.intervalSteps",
                            "Steps between checkpoints. Either this or `intervalSeconds`.")
                        .Min(1)
                        .Example("1000")
                        .Invalid("0", "at least 1"));
  fields->push_back(Number("spec.checkpoint.intervalSeconds",
                           "Seconds between checkpoints. Either this or `intervalSteps`.")
                        .Implied("300 if `intervalSteps` is unset")
                        .Above(0)
                        .Max(1e6)
                        .Example("60")
                        .Invalid("0", "must be more than 0"));
  fields->push_back(
      Integer("spec.checkpoint.maxToKeep", "Number of checkpoints to keep; older ones are deleted.")
          .Default("3")
          .Min(1)
          .Max(1000)
          .Example("5")
          .Invalid("0", "at least 1"));
  fields->push_back(String("spec.checkpoint.restoreFrom",
                           "A directory with the checkpoints of another job. Training begins with "
                           "the newest of them instead of random parameters.")
                        .Fixed()
                        .Path()
                        .Example("/var/lib/checkpoints/pretrained"));
  fields->push_back(
      String("spec.checkpoint.onExisting",
             "What the job does with the checkpoints of an earlier job of the same name (an object "
             "that was deleted and created again, or a finished job that is run again with more "
             "steps). `Resume`: continue from them, also from the end of a finished job; the "
             "settings that a checkpoint depends on must be the same. `Fail`: fail without "
             "changing anything. `Replace`: train from the beginning; the earlier job's "
             "checkpoints are removed when the first new one is complete.")
          .Implied("continue from an unfinished job with the same settings, otherwise as `Fail`")
          .OneOf(NamesOf<v1::CheckpointSpec::OnExisting>())
          .Example("Resume")
          .Invalid("resume", "did you mean `Resume`?")
          .Invalid("Overwrite", "must be one of Resume, Fail, Replace"));
}

void AddLimits(std::vector<Field>* fields) {
  fields->push_back(Integer("spec.backoffLimit",
                            "How often the job may be restored from a checkpoint, after the loss "
                            "of a shard or of the coordinator, before it fails.")
                        .Default("6")
                        .Min(0)
                        .Max(1000)
                        .Example("0")
                        .Invalid("-1", "at least 0"));
  fields->push_back(
      Object("spec.timeouts", "When a process is considered lost. The defaults suit most jobs.")
          .Default("{}"));
  const auto timeout = [&](const char* name, const char* description, const char* value) {
    fields->push_back(Number(std::string("spec.timeouts.") + name, description)
                          .Default(value)
                          .Above(0)
                          .Max(86400)
                          .Example(value)
                          .Invalid("0", "must be more than 0")
                          .Invalid("1s", "must be a number"));
  };
  timeout("heartbeatSeconds", "Time between two heartbeats of a process.", "0.5");
  timeout("suspectSeconds", "Time for a worker whose connection broke to reconnect.", "1");
  timeout("heartbeatTimeoutSeconds", "A process that sends no heartbeat for this long is lost.",
          "5");
  timeout("pauseSeconds", "A shard that does not answer a Pause for this long is lost.", "5");
  timeout("initializationSeconds",
          "A worker that does not push the initial parameters within this time is replaced.",
          "120");
  timeout(
      "evaluationSeconds",
      "Samples that a worker does not evaluate within this time are assigned to another worker.",
      "600");
  timeout("suspendCheckpointSeconds",
          "Time for a job that is suspended to save its last checkpoint.", "60");
  fields->push_back(
      Number("spec.timeouts.weightsSeconds",
             "Synchronous: a shard that does not send a worker a version for this long, although "
             "it has the version or does not report, is lost. Unset: no limit.")
          .Above(0)
          .Max(86400)
          .Example("35")
          .Invalid("0", "must be more than 0"));
  fields->push_back(
      Number(
          "spec.timeouts.gradientsSeconds",
          "A member that contributes nothing for this long is lost, if a step waits for its "
          "gradients, or if it has a lease on samples and applies none. This must be longer than a "
          "step of the slowest worker. Unset: 600 (with aggregation AllReduce: no limit).")
          .Above(0)
          .Max(86400)
          .Example("15")
          .Invalid("0", "must be more than 0"));
  fields->push_back(
      Number(
          "spec.timeouts.startSeconds",
          "A process that has not registered with the coordinator this long after its start is "
          "killed and started again. Unset: 60, and 600 for a worker with the job's own `command`.")
          .Above(0)
          .Max(86400)
          .Example("60")
          .Invalid("0", "must be more than 0"));
  fields->push_back(Boolean("spec.suspend",
                            "Save a checkpoint and stop all processes until this is false again. "
                            "The job then continues at the same sample.")
                        .Default("false")
                        .Example("true"));
  fields->push_back(
      Integer("spec.activeDeadlineSeconds", "A job that runs longer fails. Unset: no limit.")
          .Min(1)
          .Max(1e9)
          .Example("86400")
          .Invalid("0", "at least 1"));
  AddClusterLimits(fields);
}

}  // namespace

std::vector<Field> TrainingFields() {
  std::vector<Field> fields;
  AddLossAndOptimizer(&fields);
  AddScheduleAndGroups(&fields);
  AddTrainingBasics(&fields);
  AddTrainingDetails(&fields);
  AddSizesAndCheckpoint(&fields);
  AddLimits(&fields);
  return fields;
}

}  // namespace sluice::api
