#include "services/manifest/codec.h"

#include <gmock/gmock.h>
#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

#include "proto/common.pb.h"
#include "proto/job.pb.h"
#include "services/manifest/enum_names.h"
#include "services/manifest/field_table.h"
#include "services/manifest/manifest.h"
#include "services/manifest/testing/example_manifests.h"

namespace sluice::api {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::EnumDescriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using Json = nlohmann::json;

// Adds the names of the fields that are set in `message`, and in the messages in it.
void AddSetFields(const Message& message, std::set<std::string>* names) {
  std::vector<const FieldDescriptor*> fields;
  message.GetReflection()->ListFields(message, &fields);
  for (const FieldDescriptor* field : fields) {
    names->insert(field->full_name());
    if (field->cpp_type() != FieldDescriptor::CPPTYPE_MESSAGE || field->is_map()) continue;
    if (!field->is_repeated()) {
      AddSetFields(message.GetReflection()->GetMessage(message, field), names);
    }
    for (int i = 0; field->is_repeated() && i < message.GetReflection()->FieldSize(message, field);
         ++i) {
      AddSetFields(message.GetReflection()->GetRepeatedMessage(message, field, i), names);
    }
  }
}

void AddAllFields(const Descriptor* type, std::set<std::string>* names) {
  for (int i = 0; i < type->field_count(); ++i) {
    const FieldDescriptor* const field = type->field(i);
    const bool first = names->insert(field->full_name()).second;
    if (first && field->message_type() != nullptr && !field->is_map()) {
      AddAllFields(field->message_type(), names);
    }
  }
}

TEST(Codec, ReadsEveryFieldOfAJobFromManifests) {
  std::set<std::string> set;
  for (const Field& field : Fields()) {
    for (const Example& example : field.examples) {
      const ParsedManifest parsed = ParseManifest(ManifestWith(field, example.yaml), {});
      ASSERT_TRUE(parsed.ok()) << field.path;
      AddSetFields(parsed.job.spec, &set);
    }
  }
  // The groups and the stages of the examples have other options.
  AddSetFields(FromJson(Json::parse(R"({"spec":{
        "optimizer":{"groups":[
            {"patterns":["a"],"name":"SGD","learningRate":0,"momentum":0,"dampening":0,
             "nesterov":false,"weightDecay":0,"schedule":{}},
            {"patterns":["b"],"betas":[0,0],"eps":0,"amsgrad":false,"momentumDecay":0,
             "decoupledWeightDecay":false},
            {"patterns":["c"],"lrDecay":0,"initialAccumulatorValue":0,"alpha":0,"centered":false,
             "rho":0}]},
        "model":{"stages":[{"layers":["a"],"device":"cuda"}]}}})"))
                   .spec,
               &set);
  std::set<std::string> all;
  AddAllFields(v1::JobSpec::descriptor(), &all);
  std::vector<std::string> missing;
  for (const std::string& name : all) {
    if (set.count(name) == 0) missing.push_back(name);
  }
  // The API server gives the job its uid; the operator decides on TLS.
  EXPECT_THAT(missing, ::testing::ElementsAre("sluice.v1.JobSpec.tls", "sluice.v1.JobSpec.uid"));
}

TEST(Codec, CopiesAreTwoUnlessAShardCannotHaveThem) {
  const auto copies = [](const char* spec) {
    const Json manifest = {{"spec", Json::parse(spec)}};
    return FromJson(manifest).spec.parameter_server().copies();
  };
  EXPECT_EQ(copies(R"({"parameterServer":{"replicas":2}})"), 2u);
  EXPECT_EQ(copies(R"({})"), 2u) << "it counts once there are two shards";
  EXPECT_EQ(copies(R"({"parameterServer":{"replicas":2,"copies":1}})"), 1u);
  EXPECT_EQ(copies(R"({"training":{"mode":"BoundedStaleness"}})"), 2u);
  EXPECT_EQ(copies(R"({"training":{"execution":"Server"}})"), 1u);
  EXPECT_EQ(copies(R"({"training":{"mode":"Asynchronous",
                       "stalenessRule":{"name":"DelayCompensation"}}})"),
            1u);
}

TEST(Codec, FillsInDefaultsOnlyWhereTheRulesAllowTheField) {
  const auto optimizer = [](const char* json) {
    Json object = {{"spec", {{"optimizer", Json::parse(json)}}}};
    return ToJson(FromJson(object))["spec"]["optimizer"];
  };
  EXPECT_EQ(optimizer(R"({"name":"Adam"})"),
            Json::parse(R"({"name":"Adam","learningRate":0.001,"weightDecay":0.0,
                            "betas":[0.9,0.999],"eps":1e-8,"amsgrad":false})"));
  EXPECT_EQ(optimizer(R"({"name":"Adagrad","schedule":{"type":"Step","stepSize":5}})"),
            Json::parse(R"({"name":"Adagrad","learningRate":0.01,"weightDecay":0.0,"eps":1e-10,
                            "lrDecay":0.0,"initialAccumulatorValue":0.0,"schedule":
                            {"type":"Step","stepSize":5,"gamma":0.1,"warmupSteps":0}})"));
  EXPECT_EQ(optimizer(R"({"name":"Add"})"), Json::parse(R"({"name":"Add"})"));
  EXPECT_EQ(optimizer(R"({"name":"Plugin","library":"lion"})"),
            Json::parse(R"({"name":"Plugin","library":"lion","learningRate":0.001})"));
}

TEST(Codec, GroupsWithANameHaveTheDefaultsOfTheirOptimizer) {
  const Json groups = Json::parse(R"([
      {"patterns":["a"],"name":"Adagrad"},
      {"patterns":["b"],"name":"Lion","learningRate":1,"schedule":{"type":"MultiStep","milestones":[5,9]}},
      {"patterns":["c"],"betas":[0.5,0.5]}])");
  const Json object = {{"spec", {{"optimizer", {{"name", "AdamW"}, {"groups", groups}}}}}};
  const TrainingJob job = FromJson(object);
  const auto& made = job.spec.optimizer().groups();
  ASSERT_EQ(made.size(), 3);
  EXPECT_EQ(made[0].name(), v1::OptimizerSpec::ADAGRAD);
  EXPECT_EQ(made[0].learning_rate(), 0.01);
  EXPECT_EQ(made[0].eps(), 1e-10);
  EXPECT_FALSE(made[0].has_beta1());
  EXPECT_EQ(made[1].learning_rate(), 1);
  EXPECT_EQ(made[1].beta2(), 0.99);
  EXPECT_EQ(made[1].weight_decay(), 0) << "Lion's, not AdamW's";
  EXPECT_EQ(made[1].schedule().milestones(1), 9u);
  EXPECT_EQ(made[1].schedule().gamma(), 0.1);
  EXPECT_FALSE(made[2].has_learning_rate());
  EXPECT_EQ(made[2].beta1(), 0.5);
  EXPECT_FALSE(made[2].has_schedule());
  // The same again.
  const Json written = ToJson(job);
  EXPECT_EQ(written["spec"]["optimizer"]["groups"][2], groups[2]);
  EXPECT_EQ(FromJson(written).spec.optimizer().SerializeAsString(),
            job.spec.optimizer().SerializeAsString());
}

TEST(Codec, SchedulesAreTheSameAfterReadingAndWriting) {
  const Json schedule =
      Json::parse(R"({"type":"Sequential","warmupSteps":0,"milestones":[10],"parts":[
      {"type":"Linear","startFactor":0.1,"endFactor":1.0,"totalSteps":10,"warmupSteps":0},
      {"type":"Points","points":[[0.0,1.0],[5.0,0.5]],"warmupSteps":0}]})");
  const Json object = {{"spec", {{"optimizer", {{"name", "SGD"}, {"schedule", schedule}}}}}};
  const TrainingJob job = FromJson(object);
  const v1::Schedule& read = job.spec.optimizer().schedule();
  ASSERT_EQ(read.parts_size(), 2);
  EXPECT_EQ(read.parts(0).start_factor(), 0.1);
  ASSERT_EQ(read.parts(1).points_size(), 2);
  EXPECT_EQ(read.parts(1).points(1).step(), 5u);
  EXPECT_EQ(read.parts(1).points(1).factor(), 0.5);
  EXPECT_EQ(ToJson(job)["spec"]["optimizer"]["schedule"], schedule);

  // An object that nothing has validated.
  const Json odd = Json::parse(R"({"spec":{"optimizer":{"name":"SGD","schedule":{"type":"Points",
      "points":[[-1,2],["a",1],[1e300,1],3,[1]]}}}})");
  const auto points = FromJson(odd).spec.optimizer().schedule().points();
  ASSERT_EQ(points.size(), 3);
  EXPECT_EQ(points[0].step(), 0u);
  EXPECT_EQ(points[0].factor(), 2);
  EXPECT_EQ(points[2].step(), 0u);
}

TEST(EnumNames, EveryNameOfAManifestIsAValueOfItsOwn) {
  const auto check = [](const char* path, const EnumDescriptor& type) {
    std::set<int> values;
    for (const std::string& name : FindSchema(path)->field->values) {
      const auto* const value = FindEnumValue(type, name);
      ASSERT_NE(value, nullptr) << path << ": " << name;
      EXPECT_TRUE(values.insert(value->number()).second) << path << ": " << name;
      EXPECT_EQ(EnumName(path, type, value->number()), name);
    }
  };
  check("spec.model.type", *v1::ModelSpec::Type_descriptor());
  check("spec.model.dtype", *v1::DataType_descriptor());
  check("spec.data.format", *v1::DataSpec::Format_descriptor());
  check("spec.data.csv.categories", *v1::DataSpec::Csv::Categories_descriptor());
  check("spec.optimizer.name", *v1::OptimizerSpec::Name_descriptor());
  check("spec.optimizer.schedule.type", *v1::Schedule::Type_descriptor());
  check("spec.training.mode", *v1::Mode_descriptor());
  check("spec.training.compression.push", *v1::Codec_descriptor());
  check("spec.training.stalenessRule.name", *v1::TrainingSpec::Staleness::Rule_descriptor());
  check("spec.checkpoint.onExisting", *v1::CheckpointSpec::OnExisting_descriptor());
  EXPECT_EQ(FindEnumValue(*v1::Codec_descriptor(), "None")->name(), "CODEC_RAW");
  EXPECT_EQ(FindEnumValue(*v1::Codec_descriptor(), "Int4"), nullptr);
  EXPECT_EQ(EnumName("spec.training.mode", v1::MODE_UNSPECIFIED), "");
}

}  // namespace
}  // namespace sluice::api
