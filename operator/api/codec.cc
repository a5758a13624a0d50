#include "operator/api/codec.h"

#include <cmath>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "operator/api/enum_names.h"
#include "operator/api/field_table.h"

namespace sluice::api {
namespace {

using Json = nlohmann::json;

// An object that may be missing or of another type; then it has no fields.
class JsonCursor {
 public:
  explicit JsonCursor(const Json* json) : json_(json) {}

  bool Has(const char* name) const { return Find(name) != nullptr; }
  JsonCursor operator[](const char* name) const { return JsonCursor(Find(name)); }

  std::string Str(const char* name) const {
    const Json* value = Find(name);
    return value != nullptr && value->is_string() ? value->get<std::string>() : "";
  }
  bool Bool(const char* name, bool unset) const {
    const Json* value = Find(name);
    return value != nullptr && value->is_boolean() ? value->get<bool>() : unset;
  }
  double Num(const char* name, double unset) const {
    const Json* value = Find(name);
    return value != nullptr && value->is_number() ? value->get<double>() : unset;
  }
  uint64_t Uint(const char* name, uint64_t unset) const {
    const Json* value = Find(name);
    return value != nullptr ? ToUint(*value, unset) : unset;
  }
  template <typename Enum>
  Enum Named(const char* name, Enum unset) const {
    FromName(Str(name), &unset);
    return unset;
  }
  // The items of a list, or values of a map.
  const Json& Items(const char* name) const {
    static const Json& none = *new Json(Json::array());
    const Json* value = Find(name);
    return value != nullptr && value->is_structured() ? *value : none;
  }

  static uint64_t ToUint(const Json& value, uint64_t unset) {
    if (value.is_number_unsigned()) return value.get<uint64_t>();
    if (value.is_number_integer()) {
      return value.get<int64_t>() < 0 ? unset : static_cast<uint64_t>(value.get<int64_t>());
    }
    if (!value.is_number()) return unset;
    const double number = value.get<double>();  // 64.0
    return number >= 0 && number <= 9007199254740992.0 ? static_cast<uint64_t>(number) : unset;
  }

 private:
  const Json* Find(const char* name) const {
    if (json_ == nullptr || !json_->is_object()) return nullptr;
    const auto found = json_->find(name);
    return found == json_->end() ? nullptr : &*found;
  }

  const Json* json_;
};

template <typename Repeated>
void ReadStrings(const Json& items, Repeated* out) {
  for (const Json& item : items) {
    if (item.is_string()) *out->Add() = item.get<std::string>();
  }
}
template <typename Repeated>
void ReadNumbers(const Json& items, Repeated* out) {
  for (const Json& item : items) {
    if (item.is_number()) out->Add(item.get<double>());
  }
}

void ReadModel(JsonCursor cursor, v1::ModelSpec* model) {
  model->set_type(cursor.Named("type", v1::ModelSpec::BUILTIN));
  model->set_name(cursor.Str("name"));
  model->set_path(cursor.Str("path"));
  const Json& dimensions = cursor.Items("dimensions");
  for (auto it = dimensions.begin(); dimensions.is_object() && it != dimensions.end(); ++it) {
    (*model->mutable_dimensions())[it.key()] =
        static_cast<int64_t>(JsonCursor::ToUint(it.value(), 0));
  }
  model->set_dtype(cursor.Named("dtype", v1::DATA_TYPE_UNSPECIFIED));
  model->set_device(cursor.Str("device"));
  model->set_embeddings(cursor.Named("embeddings", v1::ModelSpec::ROWS));
  for (const Json& item : cursor.Items("stages")) {
    const JsonCursor from(&item);
    v1::ModelSpec::Stage* stage = model->add_stages();
    ReadStrings(from.Items("layers"), stage->mutable_layers());
    stage->set_device(from.Str("device"));
  }
}

void ReadSource(JsonCursor cursor, v1::DataSource* source) {
  source->set_path(cursor.Str("path"));
  source->set_labels(cursor.Str("labels"));
}

void ReadCsv(JsonCursor cursor, v1::DataSpec::Csv* csv) {
  csv->set_label_column(cursor.Str("labelColumn"));
  ReadStrings(cursor.Items("categoricalColumns"), csv->mutable_categorical_columns());
  ReadStrings(cursor.Items("numericColumns"), csv->mutable_numeric_columns());
  csv->set_no_header(!cursor.Bool("header", true));
  csv->set_delimiter(cursor.Str("delimiter"));
  csv->set_categories(cursor.Named("categories", v1::DataSpec::Csv::ONE_HOT));
  csv->set_standardize(cursor.Bool("standardize", false));
  csv->set_regression(cursor.Bool("regression", false));
}

void ReadSynthetic(JsonCursor cursor, v1::DataSpec::Synthetic* synthetic) {
  synthetic->set_samples(cursor.Uint("samples", 0));
  for (const Json& size : cursor.Items("shape")) {
    synthetic->add_shape(static_cast<int64_t>(JsonCursor::ToUint(size, 0)));
  }
  synthetic->set_classes(static_cast<uint32_t>(cursor.Uint("classes", 0)));
  synthetic->set_seed(cursor.Uint("seed", 0));
  synthetic->set_vocabulary(static_cast<uint32_t>(cursor.Uint("vocabulary", 0)));
}

void ReadText(JsonCursor cursor, v1::DataSpec::Text* text) {
  text->set_sequence_length(static_cast<uint32_t>(cursor.Uint("sequenceLength", 35)));
  text->set_vocabulary_size(static_cast<uint32_t>(cursor.Uint("vocabularySize", 10000)));
  text->set_vocabulary(cursor.Str("vocabulary"));
  text->set_state(cursor.Named("state", v1::DataSpec::Text::ZERO));
}

void ReadData(JsonCursor cursor, v1::DataSpec* data) {
  data->set_format(cursor.Named("format", v1::DataSpec::SYNTHETIC));
  if (cursor.Has("source")) ReadSource(cursor["source"], data->mutable_source());
  if (cursor.Has("normalize")) {
    ReadNumbers(cursor["normalize"].Items("mean"), data->mutable_normalize()->mutable_mean());
    ReadNumbers(cursor["normalize"].Items("std"), data->mutable_normalize()->mutable_std());
  }
  if (cursor.Has("csv")) ReadCsv(cursor["csv"], data->mutable_csv());
  if (data->format() == v1::DataSpec::TEXT) ReadText(cursor["text"], data->mutable_text());
  if (data->format() == v1::DataSpec::SYNTHETIC) {
    Json synthetic = cursor.Has("synthetic") ? cursor.Items("synthetic") : Json::object();
    if (!synthetic.is_object()) synthetic = Json::object();
    ApplyDefaults(*FindSchema("spec.data.synthetic"), &synthetic);
    ReadSynthetic(JsonCursor(&synthetic), data->mutable_synthetic());
  }
  data->set_partitioning(cursor.Named("partitioning", v1::DataSpec::SHARED));
  data->set_no_shuffle(!cursor.Bool("shuffle", true));
  data->set_max_samples(cursor.Uint("maxSamples", 0));
  data->set_classes(static_cast<uint32_t>(cursor.Uint("classes", 0)));
  if (cursor.Has("evaluation")) {
    const JsonCursor from = cursor["evaluation"];
    v1::DataSpec::Evaluation* evaluation = data->mutable_evaluation();
    if (from.Has("source")) ReadSource(from["source"], evaluation->mutable_source());
    evaluation->set_interval_steps(from.Uint("intervalSteps", 0));
    evaluation->set_interval_seconds(from.Num("intervalSeconds", 0));
    evaluation->set_max_samples(from.Uint("maxSamples", 0));
  }
}

void ReadSchedule(JsonCursor cursor, v1::Schedule* schedule) {
  schedule->set_type(cursor.Named("type", v1::Schedule::CONSTANT));
  schedule->set_warmup_steps(cursor.Uint("warmupSteps", 0));
  schedule->set_step_size(cursor.Uint("stepSize", 0));
  if (schedule->type() == v1::Schedule::STEP) schedule->set_gamma(cursor.Num("gamma", 0.1));
  schedule->set_total_steps(cursor.Uint("totalSteps", 0));
  schedule->set_min_factor(cursor.Num("minFactor", 0));
}

bool IsAdam(v1::OptimizerSpec::Name name) {
  return name == v1::OptimizerSpec::ADAM || name == v1::OptimizerSpec::ADAM_W;
}

// The defaults are those of PyTorch 2.
void ReadOptimizer(JsonCursor cursor, v1::OptimizerSpec* optimizer) {
  const v1::OptimizerSpec::Name name = cursor.Named("name", v1::OptimizerSpec::SGD);
  const bool adagrad = name == v1::OptimizerSpec::ADAGRAD;
  optimizer->set_name(name);
  // Add has no learning rate: it adds the updates unchanged.
  const double learning_rate = name == v1::OptimizerSpec::ADD ? 1 : adagrad ? 1e-2 : 1e-3;
  optimizer->set_learning_rate(cursor.Num("learningRate", learning_rate));
  optimizer->set_momentum(cursor.Num("momentum", 0));
  optimizer->set_dampening(cursor.Num("dampening", 0));
  optimizer->set_nesterov(cursor.Bool("nesterov", false));
  optimizer->set_weight_decay(
      cursor.Num("weightDecay", name == v1::OptimizerSpec::ADAM_W ? 1e-2 : 0));
  if (IsAdam(name)) {
    const Json& betas = cursor.Items("betas");
    const bool given =
        betas.is_array() && betas.size() == 2 && betas[0].is_number() && betas[1].is_number();
    optimizer->set_beta1(given ? betas[0].get<double>() : 0.9);
    optimizer->set_beta2(given ? betas[1].get<double>() : 0.999);
  }
  if (IsAdam(name) || adagrad) optimizer->set_eps(cursor.Num("eps", adagrad ? 1e-10 : 1e-8));
  optimizer->set_lr_decay(cursor.Num("lrDecay", 0));
  optimizer->set_initial_accumulator_value(cursor.Num("initialAccumulatorValue", 0));
  optimizer->set_amsgrad(cursor.Bool("amsgrad", false));
  if (cursor.Has("schedule")) ReadSchedule(cursor["schedule"], optimizer->mutable_schedule());
  optimizer->set_clip_norm(cursor.Num("clipNorm", 0));
  if (name == v1::OptimizerSpec::PLUGIN) {
    optimizer->set_library(cursor.Str("library"));
    const Json& parameters = cursor.Items("parameters");
    for (auto it = parameters.begin(); parameters.is_object() && it != parameters.end(); ++it) {
      if (it->is_number()) (*optimizer->mutable_parameters())[it.key()] = it->get<double>();
    }
  }
  for (const Json& item : cursor.Items("groups")) {
    const JsonCursor from(&item);
    v1::OptimizerSpec::Group* group = optimizer->add_groups();
    ReadStrings(from.Items("patterns"), group->mutable_patterns());
    if (from.Has("learningRate")) group->set_learning_rate(from.Num("learningRate", 0));
    if (from.Has("weightDecay")) group->set_weight_decay(from.Num("weightDecay", 0));
    if (from.Has("momentum")) group->set_momentum(from.Num("momentum", 0));
  }
}

void ReadCompression(JsonCursor cursor, v1::TrainingSpec* training) {
  const v1::Codec push = cursor.Named("push", v1::CODEC_RAW);
  training->set_push_codec(push);
  training->set_pull_codec(cursor.Named("pull", v1::CODEC_RAW));
  v1::TrainingSpec::Compression* compression = training->mutable_compression();
  if (push == v1::CODEC_TOP_K) compression->set_fraction(cursor.Num("fraction", 0.01));
  if (push == v1::CODEC_SIGN_THRESHOLD) compression->set_threshold(cursor.Num("threshold", 1));
  const bool needs_it =
      push == v1::CODEC_TOP_K || push == v1::CODEC_INT8 || push == v1::CODEC_ONE_BIT;
  compression->set_error_feedback(cursor.Bool("errorFeedback", needs_it));
}

void ReadStaleness(JsonCursor cursor, v1::TrainingSpec::Staleness* staleness) {
  using Staleness = v1::TrainingSpec::Staleness;
  const Staleness::Rule rule = cursor.Named("name", Staleness::NONE);
  staleness->set_rule(rule);
  if (rule == Staleness::DAMPED) staleness->set_factor(cursor.Num("factor", 0.1));
  if (rule == Staleness::DELAY_COMPENSATION) staleness->set_lambda(cursor.Num("lambda", 0.04));
}

void ReadTraining(JsonCursor cursor, v1::TrainingSpec* training) {
  training->set_mode(cursor.Named("mode", v1::SYNCHRONOUS));
  training->set_max_staleness(cursor["boundedStaleness"].Uint("maxStaleness", 0));
  training->set_global_batch_size(cursor.Uint("globalBatchSize", 64));
  // 16 microbatches: enough to balance a few workers of different speed.
  training->set_microbatch_size(
      cursor.Uint("microbatchSize", (training->global_batch_size() + 15) / 16));
  training->set_max_batch_size(cursor.Uint("maxBatchSize", 0));
  if (training->max_batch_size() > 0) {
    training->set_min_batch_size(cursor.Uint("minBatchSize", 1));
  }
  training->set_steps(cursor.Uint("steps", 0));
  training->set_epochs(cursor.Uint("epochs", 0));
  training->set_seed(cursor.Uint("seed", 0));
  training->set_bit_exact(cursor.Str("determinism") == "BitExact");
  training->set_aggregation(cursor.Named("aggregation", v1::TrainingSpec::MEAN));
  training->set_non_finite(cursor.Named("nonFinite", v1::TrainingSpec::FAIL));
  training->set_execution(cursor.Named("execution", v1::TrainingSpec::WORKER));
  training->set_verify_gradients(cursor.Bool("verifyGradients", false));
  ReadCompression(cursor["compression"], training);
  ReadStaleness(cursor["stalenessRule"], training->mutable_staleness());
  if (cursor.Has("stragglers")) {
    const JsonCursor from = cursor["stragglers"];
    using Stragglers = v1::TrainingSpec::Stragglers;
    training->mutable_stragglers()->set_policy(from.Named("policy", Stragglers::WAIT));
    training->mutable_stragglers()->set_backup(static_cast<uint32_t>(from.Uint("backup", 1)));
  }
  if (cursor.Has("dense")) {
    using Dense = v1::TrainingSpec::Dense;
    training->mutable_dense()->set_aggregation(
        cursor["dense"].Named("aggregation", Dense::PARAMETER_SERVER));
  }
  training->set_threads(static_cast<uint32_t>(cursor.Uint("threads", 0)));
  training->set_step_delay_seconds(cursor.Num("stepDelaySeconds", 0));
  if (cursor.Has("target")) {
    const JsonCursor target = cursor["target"];
    training->mutable_target()->set_metric(target.Str("metric"));
    training->mutable_target()->set_goal(target.Str("goal"));
    training->mutable_target()->set_value(target.Num("value", 0));
  }
}

void ReadCheckpoint(JsonCursor cursor, v1::CheckpointSpec* checkpoint) {
  checkpoint->set_directory(cursor["storage"].Str("path"));
  checkpoint->set_interval_steps(cursor.Uint("intervalSteps", 0));
  checkpoint->set_interval_seconds(
      cursor.Num("intervalSeconds", checkpoint->interval_steps() == 0 ? 300 : 0));
  checkpoint->set_max_to_keep(static_cast<uint32_t>(cursor.Uint("maxToKeep", 3)));
  checkpoint->set_restore_from(cursor.Str("restoreFrom"));
  checkpoint->set_on_existing(cursor.Named("onExisting", v1::CheckpointSpec::UNSET));
}

void ReadTimeouts(JsonCursor cursor, v1::TimeoutSpec* timeouts) {
  timeouts->set_heartbeat(cursor.Num("heartbeatSeconds", 0));
  timeouts->set_suspect(cursor.Num("suspectSeconds", 0));
  timeouts->set_heartbeat_timeout(cursor.Num("heartbeatTimeoutSeconds", 0));
  timeouts->set_pause(cursor.Num("pauseSeconds", 0));
  timeouts->set_initialization(cursor.Num("initializationSeconds", 0));
  timeouts->set_evaluation(cursor.Num("evaluationSeconds", 0));
  timeouts->set_suspend_checkpoint(cursor.Num("suspendCheckpointSeconds", 0));
  timeouts->set_weights(cursor.Num("weightsSeconds", 0));
  timeouts->set_gradients(cursor.Num("gradientsSeconds", 0));
  timeouts->set_start(cursor.Num("startSeconds", 0));
}

std::map<std::string, std::string> ReadMap(const Json& items) {
  std::map<std::string, std::string> result;
  for (auto it = items.begin(); items.is_object() && it != items.end(); ++it) {
    if (it.value().is_string()) result[it.key()] = it.value().get<std::string>();
  }
  return result;
}

// The cluster-only fields of `object`; null if there are none.
Json ClusterPart(const SchemaNode& schema, const Json& object) {
  Json part;
  for (const SchemaNode* child : schema.children) {
    const auto found = object.find(child->name);
    if (found == object.end()) continue;
    Json value = child->field->cluster_only ? *found
                 : found->is_object()       ? ClusterPart(*child, *found)
                                            : Json();
    if (!value.is_null()) part[child->name] = std::move(value);
  }
  return part;
}

// Adds to `paths` the fields that `part` sets to a value other than the default.
void AppendSet(const SchemaNode& schema, const Json& part, std::vector<std::string>* paths) {
  for (const SchemaNode* child : schema.children) {
    const auto found = part.find(child->name);
    if (found == part.end()) continue;
    const Field& field = *child->field;
    const bool structured = found->is_object() && !child->children.empty();
    if (structured && (!field.cluster_only || !field.default_json.empty())) {
      AppendSet(*child, *found, paths);
    } else if (field.default_json.empty() || *found != Json::parse(field.default_json)) {
      paths->push_back(field.path);
    }
  }
}

template <typename Repeated>
Json ToList(const Repeated& items) {
  Json list = Json::array();
  for (const auto& item : items) list.push_back(item);
  return list;
}

Json WriteSource(const v1::DataSource& source) {
  Json json = {{"path", source.path()}};
  if (!source.labels().empty()) json["labels"] = source.labels();
  return json;
}

Json WriteModel(const v1::ModelSpec& model) {
  Json json = {{"type", NameOf(model.type())}};
  if (!model.name().empty()) json["name"] = model.name();
  if (!model.path().empty()) json["path"] = model.path();
  for (const auto& [name, size] : model.dimensions()) json["dimensions"][name] = size;
  if (model.dtype() != v1::DATA_TYPE_UNSPECIFIED) json["dtype"] = NameOf(model.dtype());
  if (!model.device().empty()) json["device"] = model.device();
  json["embeddings"] = NameOf(model.embeddings());
  for (const v1::ModelSpec::Stage& from : model.stages()) {
    Json stage = {{"layers", ToList(from.layers())}};
    if (!from.device().empty()) stage["device"] = from.device();
    json["stages"].push_back(std::move(stage));
  }
  return json;
}

Json WriteCsv(const v1::DataSpec::Csv& csv) {
  Json json = {{"labelColumn", csv.label_column()},
               {"categories", NameOf(csv.categories())},
               {"standardize", csv.standardize()},
               {"regression", csv.regression()},
               {"header", !csv.no_header()}};
  if (csv.numeric_columns_size() > 0) json["numericColumns"] = ToList(csv.numeric_columns());
  if (csv.categorical_columns_size() > 0) {
    json["categoricalColumns"] = ToList(csv.categorical_columns());
  }
  if (!csv.delimiter().empty()) json["delimiter"] = csv.delimiter();
  return json;
}

Json WriteText(const v1::DataSpec::Text& text) {
  Json json = {{"sequenceLength", text.sequence_length()},
               {"vocabularySize", text.vocabulary_size()},
               {"state", NameOf(text.state())}};
  if (!text.vocabulary().empty()) json["vocabulary"] = text.vocabulary();
  return json;
}

Json WriteData(const v1::DataSpec& data) {
  Json json = {{"format", NameOf(data.format())},
               {"partitioning", NameOf(data.partitioning())},
               {"shuffle", !data.no_shuffle()}};
  if (data.has_source()) json["source"] = WriteSource(data.source());
  if (data.has_normalize()) {
    json["normalize"] = {{"mean", ToList(data.normalize().mean())},
                         {"std", ToList(data.normalize().std())}};
  }
  if (data.has_csv()) json["csv"] = WriteCsv(data.csv());
  if (data.has_text()) json["text"] = WriteText(data.text());
  if (data.has_synthetic()) {
    json["synthetic"] = {{"samples", data.synthetic().samples()},
                         {"classes", data.synthetic().classes()},
                         {"seed", data.synthetic().seed()}};
    if (data.synthetic().shape_size() > 0) {
      json["synthetic"]["shape"] = ToList(data.synthetic().shape());
    }
    if (data.synthetic().vocabulary() > 0) {
      json["synthetic"]["vocabulary"] = data.synthetic().vocabulary();
    }
  }
  if (data.max_samples() > 0) json["maxSamples"] = data.max_samples();
  if (data.classes() > 0) json["classes"] = data.classes();
  if (data.has_evaluation()) {
    const v1::DataSpec::Evaluation& from = data.evaluation();
    Json evaluation = Json::object();
    if (from.has_source()) evaluation["source"] = WriteSource(from.source());
    if (from.interval_steps() > 0) evaluation["intervalSteps"] = from.interval_steps();
    if (from.interval_seconds() > 0) evaluation["intervalSeconds"] = from.interval_seconds();
    if (from.max_samples() > 0) evaluation["maxSamples"] = from.max_samples();
    json["evaluation"] = std::move(evaluation);
  }
  return json;
}

Json WriteSchedule(const v1::Schedule& schedule) {
  Json json = {{"type", NameOf(schedule.type())}, {"warmupSteps", schedule.warmup_steps()}};
  if (schedule.type() == v1::Schedule::STEP) {
    json["stepSize"] = schedule.step_size();
    json["gamma"] = schedule.gamma();
  }
  if (schedule.type() == v1::Schedule::COSINE) {
    json["totalSteps"] = schedule.total_steps();
    json["minFactor"] = schedule.min_factor();
  }
  return json;
}

Json WriteOptimizer(const v1::OptimizerSpec& optimizer) {
  Json json = {{"name", NameOf(optimizer.name())}};
  if (optimizer.name() != v1::OptimizerSpec::ADD) {
    json["learningRate"] = optimizer.learning_rate();
    json["weightDecay"] = optimizer.weight_decay();
  }
  if (optimizer.name() == v1::OptimizerSpec::SGD) {
    json["momentum"] = optimizer.momentum();
    json["dampening"] = optimizer.dampening();
    json["nesterov"] = optimizer.nesterov();
  }
  if (IsAdam(optimizer.name())) {
    json["betas"] = {optimizer.beta1(), optimizer.beta2()};
    json["eps"] = optimizer.eps();
    json["amsgrad"] = optimizer.amsgrad();
  }
  if (optimizer.name() == v1::OptimizerSpec::ADAGRAD) {
    json["eps"] = optimizer.eps();
    json["lrDecay"] = optimizer.lr_decay();
    json["initialAccumulatorValue"] = optimizer.initial_accumulator_value();
  }
  if (optimizer.name() == v1::OptimizerSpec::PLUGIN) {
    json.erase("weightDecay");
    json["library"] = optimizer.library();
    for (const auto& [name, value] : optimizer.parameters()) json["parameters"][name] = value;
  }
  if (optimizer.has_schedule()) json["schedule"] = WriteSchedule(optimizer.schedule());
  if (optimizer.clip_norm() > 0) json["clipNorm"] = optimizer.clip_norm();
  for (const v1::OptimizerSpec::Group& from : optimizer.groups()) {
    Json group = {{"patterns", ToList(from.patterns())}};
    if (from.has_learning_rate()) group["learningRate"] = from.learning_rate();
    if (from.has_weight_decay()) group["weightDecay"] = from.weight_decay();
    if (from.has_momentum()) group["momentum"] = from.momentum();
    json["groups"].push_back(std::move(group));
  }
  return json;
}

Json WriteCompression(const v1::TrainingSpec& training) {
  Json json = {{"push", NameOf(training.push_codec())}, {"pull", NameOf(training.pull_codec())}};
  const v1::TrainingSpec::Compression& compression = training.compression();
  if (training.push_codec() == v1::CODEC_TOP_K) json["fraction"] = compression.fraction();
  if (training.push_codec() == v1::CODEC_SIGN_THRESHOLD) {
    json["threshold"] = compression.threshold();
  }
  if (training.push_codec() != v1::CODEC_RAW) json["errorFeedback"] = compression.error_feedback();
  return json;
}

Json WriteStaleness(const v1::TrainingSpec::Staleness& staleness) {
  using Staleness = v1::TrainingSpec::Staleness;
  Json json = {{"name", NameOf(staleness.rule())}};
  if (staleness.rule() == Staleness::DAMPED) json["factor"] = staleness.factor();
  if (staleness.rule() == Staleness::DELAY_COMPENSATION) json["lambda"] = staleness.lambda();
  return json;
}

Json WriteTraining(const v1::TrainingSpec& training) {
  Json json = {{"mode", NameOf(training.mode())},
               {"globalBatchSize", training.global_batch_size()},
               {"microbatchSize", training.microbatch_size()},
               {"seed", training.seed()},
               {"determinism", training.bit_exact() ? "BitExact" : "Default"},
               {"aggregation", NameOf(training.aggregation())},
               {"nonFinite", NameOf(training.non_finite())},
               {"execution", NameOf(training.execution())},
               {"verifyGradients", training.verify_gradients()},
               {"compression", WriteCompression(training)},
               {"stepDelaySeconds", training.step_delay_seconds()}};
  if (training.max_batch_size() > 0) {
    json["minBatchSize"] = training.min_batch_size();
    json["maxBatchSize"] = training.max_batch_size();
  }
  if (training.staleness().rule() != v1::TrainingSpec::Staleness::NONE) {
    json["stalenessRule"] = WriteStaleness(training.staleness());
  }
  if (training.has_stragglers()) {
    json["stragglers"] = {{"policy", NameOf(training.stragglers().policy())},
                          {"backup", training.stragglers().backup()}};
  }
  if (training.has_dense()) {
    json["dense"] = {{"aggregation", NameOf(training.dense().aggregation())}};
  }
  if (training.mode() == v1::BOUNDED_STALENESS) {
    json["boundedStaleness"] = {{"maxStaleness", training.max_staleness()}};
  }
  if (training.steps() > 0) json["steps"] = training.steps();
  if (training.epochs() > 0) json["epochs"] = training.epochs();
  if (training.threads() > 0) json["threads"] = training.threads();
  if (training.has_target()) {
    json["target"] = {{"metric", training.target().metric()},
                      {"goal", training.target().goal()},
                      {"value", training.target().value()}};
  }
  return json;
}

Json WriteCheckpoint(const v1::CheckpointSpec& checkpoint) {
  Json json = {{"storage", {{"type", "Local"}}}, {"maxToKeep", checkpoint.max_to_keep()}};
  if (!checkpoint.directory().empty()) json["storage"]["path"] = checkpoint.directory();
  if (checkpoint.interval_steps() > 0) json["intervalSteps"] = checkpoint.interval_steps();
  if (checkpoint.interval_seconds() > 0) json["intervalSeconds"] = checkpoint.interval_seconds();
  if (!checkpoint.restore_from().empty()) json["restoreFrom"] = checkpoint.restore_from();
  if (checkpoint.on_existing() != v1::CheckpointSpec::UNSET) {
    json["onExisting"] = NameOf(checkpoint.on_existing());
  }
  return json;
}

}  // namespace

TrainingJob FromJson(const Json& object) {
  TrainingJob job;
  const JsonCursor root(&object);
  const JsonCursor metadata = root["metadata"];
  const JsonCursor spec = root["spec"];
  job.spec.set_name(metadata.Str("name"));
  job.spec.set_namespace_(metadata.Str("namespace"));
  job.spec.set_uid(metadata.Str("uid"));
  job.labels = ReadMap(metadata.Items("labels"));
  job.annotations = ReadMap(metadata.Items("annotations"));
  ReadModel(spec["model"], job.spec.mutable_model());
  ReadData(spec["data"], job.spec.mutable_data());
  job.spec.set_loss(spec.Str("loss"));
  ReadOptimizer(spec["optimizer"], job.spec.mutable_optimizer());
  ReadTraining(spec["training"], job.spec.mutable_training());
  if (job.spec.data().text().state() == v1::DataSpec::Text::CARRIED) {
    // In this state, each batch has one sample of each stream.
    job.spec.mutable_data()->mutable_text()->set_streams(
        static_cast<uint32_t>(job.spec.training().global_batch_size()));
  }
  const JsonCursor server = spec["parameterServer"];
  job.spec.mutable_parameter_server()->set_replicas(
      static_cast<uint32_t>(server.Uint("replicas", 1)));
  job.spec.mutable_parameter_server()->set_partitions(
      static_cast<uint32_t>(server.Uint("partitions", 64)));
  job.spec.mutable_worker()->set_replicas(
      static_cast<uint32_t>(spec["worker"].Uint("replicas", 1)));
  ReadStrings(spec["worker"].Items("command"), job.spec.mutable_worker()->mutable_command());
  ReadCheckpoint(spec["checkpoint"], job.spec.mutable_checkpoint());
  ReadTimeouts(spec["timeouts"], job.spec.mutable_timeouts());
  job.spec.set_backoff_limit(static_cast<uint32_t>(spec.Uint("backoffLimit", 6)));
  job.image = spec.Str("image");
  job.suspend = spec.Bool("suspend", false);
  if (spec.Has("activeDeadlineSeconds")) {
    job.active_deadline_seconds = static_cast<int64_t>(spec.Uint("activeDeadlineSeconds", 0));
  }
  if (object.is_object() && object.contains("spec") && object["spec"].is_object()) {
    Json part = ClusterPart(*FindSchema("spec"), object["spec"]);
    if (part.is_object()) job.cluster = std::move(part);
  }
  return job;
}

Json ToJson(const TrainingJob& job) {
  Json metadata = {{"name", job.spec.name()}, {"namespace", job.spec.namespace_()}};
  if (!job.spec.uid().empty()) metadata["uid"] = job.spec.uid();
  if (!job.labels.empty()) metadata["labels"] = job.labels;
  if (!job.annotations.empty()) metadata["annotations"] = job.annotations;
  Json spec = {{"model", WriteModel(job.spec.model())},
               {"data", WriteData(job.spec.data())},
               {"optimizer", WriteOptimizer(job.spec.optimizer())},
               {"training", WriteTraining(job.spec.training())},
               {"parameterServer",
                {{"replicas", job.spec.parameter_server().replicas()},
                 {"partitions", job.spec.parameter_server().partitions()}}},
               {"worker", {{"replicas", job.spec.worker().replicas()}}},
               {"checkpoint", WriteCheckpoint(job.spec.checkpoint())},
               {"backoffLimit", job.spec.backoff_limit()},
               {"suspend", job.suspend}};
  if (job.spec.worker().command_size() > 0) {
    spec["worker"]["command"] = ToList(job.spec.worker().command());
  }
  const v1::TimeoutSpec& timeouts = job.spec.timeouts();
  spec["timeouts"] = {{"heartbeatSeconds", timeouts.heartbeat()},
                      {"suspectSeconds", timeouts.suspect()},
                      {"heartbeatTimeoutSeconds", timeouts.heartbeat_timeout()},
                      {"pauseSeconds", timeouts.pause()},
                      {"initializationSeconds", timeouts.initialization()},
                      {"evaluationSeconds", timeouts.evaluation()},
                      {"suspendCheckpointSeconds", timeouts.suspend_checkpoint()}};
  if (timeouts.weights() > 0) spec["timeouts"]["weightsSeconds"] = timeouts.weights();
  if (timeouts.gradients() > 0) spec["timeouts"]["gradientsSeconds"] = timeouts.gradients();
  if (timeouts.start() > 0) spec["timeouts"]["startSeconds"] = timeouts.start();
  if (!job.image.empty()) spec["image"] = job.image;
  if (!job.spec.loss().empty()) spec["loss"] = job.spec.loss();
  if (job.active_deadline_seconds.has_value()) {
    spec["activeDeadlineSeconds"] = *job.active_deadline_seconds;
  }
  spec.merge_patch(job.cluster);
  Json& storage = spec["checkpoint"]["storage"];
  if (storage.contains("claimName")) storage["type"] = "PersistentVolumeClaim";
  return {{"apiVersion", kApiVersion},
          {"kind", kKind},
          {"metadata", std::move(metadata)},
          {"spec", std::move(spec)}};
}

std::vector<std::string> ClusterFields(const TrainingJob& job) {
  std::vector<std::string> paths;
  if (job.cluster.is_object()) AppendSet(*FindSchema("spec"), job.cluster, &paths);
  return paths;
}

}  // namespace sluice::api
