#include "services/coordinator/core/decisions/model_difference.h"

#include "gtest/gtest.h"

namespace sluice::coordinator {
namespace {

v1::Ready Model() {
  v1::Ready ready;
  v1::TensorSpec& weight = *ready.mutable_table()->add_tensors();
  weight.set_name("fc.weight");
  weight.add_shape(10);
  weight.add_shape(192);
  weight.set_dtype(v1::FLOAT32);
  v1::TensorSpec& bias = *ready.mutable_table()->add_tensors();
  bias.set_name("fc.bias");
  bias.add_shape(10);
  bias.set_dtype(v1::FLOAT32);
  ready.set_training_samples(60000);
  ready.set_evaluation_samples(10000);
  return ready;
}

TEST(Difference, IsEmptyForSameModelAndData) { EXPECT_EQ(Difference(Model(), Model()), ""); }

TEST(Difference, NamesTensorAndBothForms) {
  v1::Ready other = Model();
  other.mutable_table()->mutable_tensors(0)->set_shape(1, 128);
  EXPECT_EQ(Difference(Model(), other),
            "tensor fc.weight is float32[10, 128], not float32[10, 192]");
  other = Model();
  other.mutable_table()->mutable_tensors(1)->set_kind(v1::BUFFER);
  EXPECT_EQ(Difference(Model(), other), "tensor fc.bias is float32[10] buffer, not float32[10]");
}

TEST(Difference, NamesMissingOrNewTensor) {
  v1::Ready other = Model();
  other.mutable_table()->mutable_tensors()->RemoveLast();
  EXPECT_EQ(Difference(Model(), other), "tensor fc.bias is missing");
  EXPECT_EQ(Difference(other, Model()), "tensor fc.bias is not expected");
}

TEST(Difference, NamesSampleCounts) {
  v1::Ready other = Model();
  other.set_training_samples(59999);
  EXPECT_EQ(Difference(Model(), other), "it has 59999 training samples, not 60000");
  other = Model();
  other.set_evaluation_samples(0);
  EXPECT_EQ(Difference(Model(), other), "it has 0 evaluation samples, not 10000");
}

void AddDigest(const char* name, uint64_t hash, v1::Ready* ready) {
  v1::DataDigest& digest = *ready->add_digests();
  digest.set_name(name);
  digest.set_hash(hash);
}

TEST(Difference, NamesDigestThatBothHaveAndThatDiffers) {
  v1::Ready model = Model();
  AddDigest("the vocabulary", 1, &model);
  AddDigest("the encoding of the columns", 2, &model);
  EXPECT_EQ(Difference(model, Model()), "");
  EXPECT_EQ(Difference(Model(), model), "");
  v1::Ready other = Model();
  AddDigest("the encoding of the columns", 2, &other);
  AddDigest("the content of the samples", 5, &other);
  EXPECT_EQ(Difference(model, other), "");
  other.mutable_digests(0)->set_hash(3);
  EXPECT_EQ(Difference(model, other), "the encoding of the columns differs");
}

TEST(Difference, ComparesWhatModelRequiresAndNotWhereItRuns) {
  v1::Ready other = Model();
  other.set_smallest_batch(1);
  other.mutable_environment()->set_threads(8);
  other.add_notes("a note");
  EXPECT_EQ(Difference(Model(), other), "");
  other.set_smallest_batch(2);
  EXPECT_EQ(Difference(Model(), other), "it cannot compute fewer samples at once than 2, not 1");
}

}  // namespace
}  // namespace sluice::coordinator
