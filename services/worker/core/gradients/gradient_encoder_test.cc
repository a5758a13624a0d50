#include "services/worker/core/gradients/gradient_encoder.h"

#include <cmath>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace sluice::worker {
namespace {

using Floats = std::vector<float>;

constexpr MicrobatchRange kPartialSum = {0, 4};
constexpr MicrobatchRange kOtherPartialSum = {4, 6};

absl::Cord CordOf(const Floats& values) {
  return absl::Cord(
      absl::string_view(reinterpret_cast<const char*>(values.data()), values.size() * 4));
}

class GradientEncoderTest : public testing::Test {
 protected:
  void Begin(v1::Codec codec, bool error_feedback) {
    training_.set_push_codec(codec);
    training_.mutable_compression()->set_fraction(0.25);
    training_.mutable_compression()->set_threshold(1);
    training_.mutable_compression()->set_error_feedback(error_feedback);
    encoder_.emplace(training_);
    tensor_.set_dtype(v1::FLOAT32);
  }

  EncodedBlock Encode(const Floats& gradient, const MicrobatchRange& partial_sum = kPartialSum,
                      uint32_t number = 3) {
    v1::Block block;
    block.set_count(gradient.size());
    tensor_.clear_shape();
    tensor_.add_shape(static_cast<int64_t>(gradient.size()));
    return encoder_->Encode(partial_sum, number, block, tensor_, CordOf(gradient),
                            /*as_rows=*/false);
  }

  Floats Decoded(const EncodedBlock& encoded, size_t count) {
    Floats values(count);
    const absl::Status status =
        (*FindCodec(encoded.codec))->Decode(encoded.payload, absl::MakeSpan(values));
    EXPECT_TRUE(status.ok()) << status;
    return values;
  }
  Floats Sent(const Floats& gradient, const MicrobatchRange& partial_sum = kPartialSum,
              uint32_t number = 3) {
    return Decoded(Encode(gradient, partial_sum, number), gradient.size());
  }

  v1::TrainingSpec training_;
  v1::TensorSpec tensor_;
  std::optional<GradientEncoder> encoder_;
};

TEST_F(GradientEncoderTest, SendsEachBlocksReferenceUnchanged) {
  training_.set_execution(v1::TrainingSpec::SERVER);
  Begin(v1::CODEC_RAW, false);
  v1::Block block;
  block.set_offset(1000);
  block.set_count(500);
  const EncodedBlock encoded =
      encoder_->Encode(kPartialSum, 3, block, tensor_, absl::Cord("reference"), /*as_rows=*/false);
  EXPECT_EQ(encoded.codec, v1::CODEC_RAW);
  EXPECT_EQ(encoded.payload, "reference");
}

TEST_F(GradientEncoderTest, AddsResidualToTheNextGradients) {
  Begin(v1::CODEC_TOP_K, true);
  EXPECT_EQ(Sent({1, 4, 2, 3}), (Floats{0, 4, 0, 0}));
  encoder_->Commit();
  EXPECT_EQ(Sent({1, 1, 1, 1}), (Floats{0, 0, 0, 4}));
  encoder_->Commit();
  EXPECT_EQ(Sent({0, 0, 0, 0}), (Floats{0, 0, 3, 0}));
  encoder_->Commit();
  EXPECT_EQ(Sent({0, 0, 0, 0}), (Floats{2, 0, 0, 0}));
  encoder_->Commit();
  EXPECT_EQ(Sent({0, 0, 0, 0}), (Floats{0, 1, 0, 0}));
}

TEST_F(GradientEncoderTest, WithoutErrorFeedbackDropsTheResidual) {
  Begin(v1::CODEC_TOP_K, false);
  EXPECT_EQ(Sent({1, 4, 2, 3}), (Floats{0, 4, 0, 0}));
  encoder_->Commit();
  EXPECT_EQ(Sent({1, 2, 1, 1}), (Floats{0, 2, 0, 0}));
}

TEST_F(GradientEncoderTest, SendsTheSameBytesAgainUntilTheStepIsSettled) {
  Begin(v1::CODEC_INT8, true);
  Sent({0.4f, 127});
  encoder_->Commit();
  const absl::Cord first = Encode({0.3f, 127}).payload;
  EXPECT_EQ(Encode({0.3f, 127}).payload, first);
  encoder_->Rollback();
  EXPECT_EQ(Encode({0.3f, 127}).payload, first);
  encoder_->Commit();
  EXPECT_NE(Encode({0.3f, 127}).payload, first);
}

TEST_F(GradientEncoderTest, RolledBackContributionLeavesTheResidualsUnchanged) {
  Begin(v1::CODEC_TOP_K, true);
  Sent({1, 4, 2, 3});
  encoder_->Commit();
  Sent({9, 9, 9, 9});
  encoder_->Rollback();
  EXPECT_EQ(Sent({0, 0, 0, 0}), (Floats{0, 0, 0, 3}));
}

TEST_F(GradientEncoderTest, PartialSumsOfAStepPassTheResidualOn) {
  Begin(v1::CODEC_TOP_K, true);
  EXPECT_EQ(Sent({1, 4, 2, 3}), (Floats{0, 4, 0, 0}));
  EXPECT_EQ(Sent({1, 0, 0, 0}, kOtherPartialSum), (Floats{0, 0, 0, 3}));
  encoder_->Commit();
  EXPECT_EQ(Sent({1, 0, 0, 0}), (Floats{3, 0, 0, 0}));
}

TEST_F(GradientEncoderTest, BlocksHaveTheirOwnResiduals) {
  Begin(v1::CODEC_TOP_K, true);
  Sent({1, 4, 2, 3}, kPartialSum, 3);
  encoder_->Commit();
  EXPECT_EQ(Sent({0, 1, 0, 0}, kPartialSum, 4), (Floats{0, 1, 0, 0}));
}

TEST_F(GradientEncoderTest, AnotherAttemptBeginsWithoutResiduals) {
  Begin(v1::CODEC_TOP_K, true);
  Sent({1, 4, 2, 3});
  encoder_->Commit();
  encoder_->Reset();
  EXPECT_EQ(Sent({1, 0, 0, 0}), (Floats{1, 0, 0, 0}));
}

TEST_F(GradientEncoderTest, SendsInfinityButKeepsNoResidualOfIt) {
  Begin(v1::CODEC_INT8, true);
  const float infinity = std::numeric_limits<float>::infinity();
  EXPECT_TRUE(std::isnan(Sent({infinity, 1})[1]));
  encoder_->Commit();
  EXPECT_EQ(Sent({127, 1}), (Floats{127, 1}));
}

TEST_F(GradientEncoderTest, RoundingToHalfPrecisionHasResidualsToo) {
  Begin(v1::CODEC_FLOAT16, true);
  EXPECT_EQ(Sent({2049}), (Floats{2048}));
  encoder_->Commit();
  EXPECT_EQ(Sent({2049}), (Floats{2050}));
}

TEST_F(GradientEncoderTest, Float64GradientsHaveResidualsToo) {
  Begin(v1::CODEC_TOP_K, true);
  tensor_.set_dtype(v1::FLOAT64);
  tensor_.add_shape(2);
  v1::Block block;
  block.set_count(2);
  const auto sent = [&](std::vector<double> values) {
    const absl::Cord gradient(
        absl::string_view(reinterpret_cast<const char*>(values.data()), values.size() * 8));
    const EncodedBlock encoded =
        encoder_->Encode(kPartialSum, 0, block, tensor_, gradient, /*as_rows=*/false);
    EXPECT_TRUE((*FindCodec(encoded.codec))->Decode(encoded.payload, absl::MakeSpan(values)).ok());
    return values;
  };
  EXPECT_EQ(sent({1, 3}), (std::vector<double>{0, 3}));
  encoder_->Commit();
  EXPECT_EQ(sent({1, 0}), (std::vector<double>{2, 0}));
}

TEST_F(GradientEncoderTest, BuffersAndBitExactGradientsAreSentRaw) {
  Begin(v1::CODEC_INT8, true);
  tensor_.set_kind(v1::BUFFER);
  EXPECT_EQ(Encode({1, 2}).codec, v1::CODEC_RAW);
  EXPECT_EQ(Encode({1, 2}).payload, CordOf({1, 2}));
  training_.set_bit_exact(true);
  Begin(v1::CODEC_INT8, true);
  tensor_.set_kind(v1::PARAMETER);
  EXPECT_EQ(Encode({1, 2}).codec, v1::CODEC_RAW);
}

}  // namespace
}  // namespace sluice::worker
