#include "services/coordinator/core/decisions/codec_check.h"

#include "gtest/gtest.h"

namespace sluice::coordinator {
namespace {

v1::TensorTable Table(v1::DataType dtype) {
  v1::TensorTable table;
  v1::TensorSpec& weight = *table.add_tensors();
  weight.set_name("fc.weight");
  weight.set_dtype(dtype);
  v1::TensorSpec& counter = *table.add_tensors();
  counter.set_name("batches");
  counter.set_dtype(v1::INT64);
  counter.set_kind(v1::COUNTER);
  return table;
}

TEST(CodecCheckTest, EveryCodecCarriesFloat32AndFloat64ParametersBesideCounters) {
  for (int codec = 0; codec < v1::Codec_ARRAYSIZE; ++codec) {
    v1::TrainingSpec training;
    training.set_push_codec(static_cast<v1::Codec>(codec));
    for (const v1::DataType dtype : {v1::FLOAT32, v1::FLOAT64}) {
      EXPECT_TRUE(CheckCodecs(training, Table(dtype)).ok()) << v1::Codec_Name(codec);
    }
  }
}

TEST(CodecCheckTest, RawCarriesEverything) {
  EXPECT_TRUE(CheckCodecs(v1::TrainingSpec(), Table(v1::BFLOAT16)).ok());
}

TEST(CodecCheckTest, NamesParameterThatCodecCannotCarry) {
  v1::TrainingSpec training;
  training.set_push_codec(v1::CODEC_INT8);
  EXPECT_EQ(CheckCodecs(training, Table(v1::BFLOAT16)).message(),
            "training.compression.push cannot carry parameter 'fc.weight' (CODEC_INT8: a block of "
            "BFLOAT16, only FLOAT32 and FLOAT64 are carried)");
  training = v1::TrainingSpec();
  training.set_pull_codec(v1::CODEC_FLOAT16);
  EXPECT_FALSE(CheckCodecs(training, Table(v1::BFLOAT16)).ok());
}

}  // namespace
}  // namespace sluice::coordinator
