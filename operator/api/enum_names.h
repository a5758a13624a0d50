// The names of enumeration values in a manifest. The table takes its values from here, and the
// codec its numbers.
#ifndef SLUICE_OPERATOR_API_ENUM_NAMES_H_
#define SLUICE_OPERATOR_API_ENUM_NAMES_H_

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "proto/job.pb.h"

namespace sluice::api {

template <typename Enum>
using EnumNames = std::vector<std::pair<std::string, Enum>>;

inline const EnumNames<v1::ModelSpec::Type>& NamesOf(v1::ModelSpec::Type) {
  static const auto& names =
      *new EnumNames<v1::ModelSpec::Type>{{"Builtin", v1::ModelSpec::BUILTIN},
                                          {"TorchScript", v1::ModelSpec::TORCH_SCRIPT},
                                          {"Custom", v1::ModelSpec::CUSTOM}};
  return names;
}
inline const EnumNames<v1::ModelSpec::Embeddings>& NamesOf(v1::ModelSpec::Embeddings) {
  static const auto& names = *new EnumNames<v1::ModelSpec::Embeddings>{
      {"Rows", v1::ModelSpec::ROWS}, {"Dense", v1::ModelSpec::DENSE}};
  return names;
}
// float16 is missing: no CPU computes it with LibTorch 1.13.
inline const EnumNames<v1::DataType>& NamesOf(v1::DataType) {
  static const auto& names = *new EnumNames<v1::DataType>{
      {"float32", v1::FLOAT32}, {"float64", v1::FLOAT64}, {"bfloat16", v1::BFLOAT16}};
  return names;
}
inline const EnumNames<v1::DataSpec::Format>& NamesOf(v1::DataSpec::Format) {
  static const auto& names =
      *new EnumNames<v1::DataSpec::Format>{{"IDX", v1::DataSpec::IDX},
                                           {"CSV", v1::DataSpec::CSV},
                                           {"Text", v1::DataSpec::TEXT},
                                           {"Synthetic", v1::DataSpec::SYNTHETIC},
                                           {"Custom", v1::DataSpec::CUSTOM}};
  return names;
}
inline const EnumNames<v1::DataSpec::Csv::Categories>& NamesOf(v1::DataSpec::Csv::Categories) {
  static const auto& names = *new EnumNames<v1::DataSpec::Csv::Categories>{
      {"OneHot", v1::DataSpec::Csv::ONE_HOT}, {"Index", v1::DataSpec::Csv::INDEX}};
  return names;
}
inline const EnumNames<v1::DataSpec::Text::State>& NamesOf(v1::DataSpec::Text::State) {
  static const auto& names = *new EnumNames<v1::DataSpec::Text::State>{
      {"Zero", v1::DataSpec::Text::ZERO}, {"Carried", v1::DataSpec::Text::CARRIED}};
  return names;
}
inline const EnumNames<v1::DataSpec::Partitioning>& NamesOf(v1::DataSpec::Partitioning) {
  static const auto& names = *new EnumNames<v1::DataSpec::Partitioning>{
      {"Shared", v1::DataSpec::SHARED}, {"PerWorker", v1::DataSpec::PER_WORKER}};
  return names;
}
inline const EnumNames<v1::OptimizerSpec::Name>& NamesOf(v1::OptimizerSpec::Name) {
  static const auto& names = *new EnumNames<v1::OptimizerSpec::Name>{
      {"SGD", v1::OptimizerSpec::SGD},   {"Adagrad", v1::OptimizerSpec::ADAGRAD},
      {"Adam", v1::OptimizerSpec::ADAM}, {"AdamW", v1::OptimizerSpec::ADAM_W},
      {"Add", v1::OptimizerSpec::ADD},   {"Plugin", v1::OptimizerSpec::PLUGIN}};
  return names;
}
inline const EnumNames<v1::Schedule::Type>& NamesOf(v1::Schedule::Type) {
  static const auto& names =
      *new EnumNames<v1::Schedule::Type>{{"Constant", v1::Schedule::CONSTANT},
                                         {"Step", v1::Schedule::STEP},
                                         {"Cosine", v1::Schedule::COSINE}};
  return names;
}
inline const EnumNames<v1::Mode>& NamesOf(v1::Mode) {
  static const auto& names = *new EnumNames<v1::Mode>{{"Synchronous", v1::SYNCHRONOUS},
                                                      {"Asynchronous", v1::ASYNCHRONOUS},
                                                      {"BoundedStaleness", v1::BOUNDED_STALENESS}};
  return names;
}
inline const EnumNames<v1::TrainingSpec::Aggregation>& NamesOf(v1::TrainingSpec::Aggregation) {
  static const auto& names = *new EnumNames<v1::TrainingSpec::Aggregation>{
      {"Mean", v1::TrainingSpec::MEAN}, {"Sum", v1::TrainingSpec::SUM}};
  return names;
}
inline const EnumNames<v1::TrainingSpec::Execution>& NamesOf(v1::TrainingSpec::Execution) {
  static const auto& names = *new EnumNames<v1::TrainingSpec::Execution>{
      {"Worker", v1::TrainingSpec::WORKER}, {"Server", v1::TrainingSpec::SERVER}};
  return names;
}
inline const EnumNames<v1::TrainingSpec::Stragglers::Policy>& NamesOf(
    v1::TrainingSpec::Stragglers::Policy) {
  static const auto& names = *new EnumNames<v1::TrainingSpec::Stragglers::Policy>{
      {"Wait", v1::TrainingSpec::Stragglers::WAIT}, {"Drop", v1::TrainingSpec::Stragglers::DROP}};
  return names;
}
inline const EnumNames<v1::TrainingSpec::Dense::Aggregation>& NamesOf(
    v1::TrainingSpec::Dense::Aggregation) {
  using Dense = v1::TrainingSpec::Dense;
  static const auto& names = *new EnumNames<Dense::Aggregation>{
      {"ParameterServer", Dense::PARAMETER_SERVER}, {"AllReduce", Dense::ALL_REDUCE}};
  return names;
}
inline const EnumNames<v1::TrainingSpec::NonFinite>& NamesOf(v1::TrainingSpec::NonFinite) {
  static const auto& names = *new EnumNames<v1::TrainingSpec::NonFinite>{
      {"Fail", v1::TrainingSpec::FAIL}, {"Skip", v1::TrainingSpec::SKIP}};
  return names;
}
inline const EnumNames<v1::Codec>& NamesOf(v1::Codec) {
  static const auto& names = *new EnumNames<v1::Codec>{{"None", v1::CODEC_RAW},
                                                       {"Float16", v1::CODEC_FLOAT16},
                                                       {"BFloat16", v1::CODEC_BFLOAT16},
                                                       {"TopK", v1::CODEC_TOP_K},
                                                       {"Int8", v1::CODEC_INT8},
                                                       {"OneBit", v1::CODEC_ONE_BIT},
                                                       {"SignThreshold", v1::CODEC_SIGN_THRESHOLD}};
  return names;
}
inline const EnumNames<v1::TrainingSpec::Staleness::Rule>& NamesOf(
    v1::TrainingSpec::Staleness::Rule) {
  using Staleness = v1::TrainingSpec::Staleness;
  static const auto& names =
      *new EnumNames<Staleness::Rule>{{"None", Staleness::NONE},
                                      {"Damped", Staleness::DAMPED},
                                      {"Inverse", Staleness::INVERSE},
                                      {"DelayCompensation", Staleness::DELAY_COMPENSATION},
                                      {"MomentumCorrection", Staleness::MOMENTUM_CORRECTION}};
  return names;
}

inline const EnumNames<v1::CheckpointSpec::OnExisting>& NamesOf(v1::CheckpointSpec::OnExisting) {
  static const auto& names =
      *new EnumNames<v1::CheckpointSpec::OnExisting>{{"Resume", v1::CheckpointSpec::RESUME},
                                                     {"Fail", v1::CheckpointSpec::FAIL},
                                                     {"Replace", v1::CheckpointSpec::REPLACE}};
  return names;
}

// All names of an enumeration, for FieldBuilder::OneOf.
template <typename Enum>
std::vector<std::string> NamesOf() {
  std::vector<std::string> names;
  for (const auto& [name, value] : NamesOf(Enum{})) names.push_back(name);
  return names;
}

// Returns "" if `value` has no name.
template <typename Enum>
std::string NameOf(Enum value) {
  for (const auto& [name, candidate] : NamesOf(Enum{})) {
    if (candidate == value) return name;
  }
  return "";
}

// Returns false, and leaves `value` unchanged, if no value has that name.
template <typename Enum>
bool FromName(absl::string_view name, Enum* value) {
  for (const auto& [candidate, number] : NamesOf(Enum{})) {
    if (candidate == name) {
      *value = number;
      return true;
    }
  }
  return false;
}

}  // namespace sluice::api

#endif  // SLUICE_OPERATOR_API_ENUM_NAMES_H_
