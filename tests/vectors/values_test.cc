// The values of values.json, which describe formats that are specified to the bit.

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/cord.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "services/protocol/codec/codec.h"
#include "services/protocol/elements.h"
#include "services/protocol/layout.h"
#include "services/protocol/samples/sequence.h"
#include "services/transport/frames/frame_wire.h"
#include "services/worker/core/gradients/gradient_encoder.h"
#include "services/worker/core/gradients/gradient_sum.h"
#include "services/worker/core/gradients/step_gradients.h"
#include "services/worker/models/initial_values.h"

namespace sluice {
namespace {

using Json = nlohmann::json;

std::string Bytes(const Json& hex) { return absl::HexStringToBytes(hex.get<std::string>()); }
std::string Hex(const absl::Cord& cord) { return absl::BytesToHexString(std::string(cord)); }

Json Section(const std::string& name) {
  std::ifstream file("tests/vectors/values.json");
  Json rows = Json::parse(file).at(name);
  EXPECT_FALSE(rows.empty());
  return rows;
}

// The bytes in memory that is aligned for any type of element.
std::vector<uint64_t> Aligned(const std::string& bytes) {
  std::vector<uint64_t> memory(bytes.size() / 8 + 1);
  std::memcpy(memory.data(), bytes.data(), bytes.size());
  return memory;
}

TEST(ValueVectorsTest, SamplesHaveTheOrderOfTheFile) {
  for (const Json& row : Section("orders")) {
    const auto order = SampleOrder::Create(
        {.samples = row.at("samples"), .seed = row.at("seed"), .shuffle = row.at("shuffle")});
    ASSERT_TRUE(order.ok());
    const uint64_t begin = row.at("begin");
    const std::vector<uint64_t> wanted = row.at("indices");
    EXPECT_EQ(order->IndicesOf({begin, begin + wanted.size()}), wanted) << row;
  }
}

TEST(ValueVectorsTest, StepsAreDividedAsInTheFile) {
  for (const Json& row : Section("plans")) {
    const auto plan = StepSchedule::Create({.samples = row.at("samples"),
                                            .global_batch_size = row.at("batch"),
                                            .microbatch_size = row.at("microbatch")});
    ASSERT_TRUE(plan.ok());
    EXPECT_EQ(plan->StepsPerEpoch(), row.at("steps_per_epoch"));
    EXPECT_EQ(plan->MicrobatchesPerStep(), row.at("microbatches_per_step"));
    for (const Json& step : row.at("steps")) {
      const uint64_t number = step.at(0);
      EXPECT_EQ(plan->PositionsOf(number), (PositionRange{step.at(1), step.at(2)})) << row;
      EXPECT_EQ(plan->MicrobatchesOfStep(number), step.at(3)) << row;
      EXPECT_EQ(plan->PositionsOf(number, {1, 3}), (PositionRange{step.at(4), step.at(5)})) << row;
    }
  }
}

TEST(ValueVectorsTest, TensorsAreDividedAndAssignedAsInTheFile) {
  for (const Json& row : Section("layouts")) {
    v1::TensorTable table;
    ASSERT_TRUE(table.ParseFromString(Bytes(row.at("table"))));
    const auto layout = MakeLayout(table, row.at("partitions"));
    ASSERT_TRUE(layout.ok());
    Json blocks = Json::array();
    for (const v1::Block& block : layout->blocks()) {
      blocks.push_back({block.tensor(), block.offset(), block.count(), block.partition()});
    }
    EXPECT_EQ(blocks, row.at("blocks"));
    const LayoutIndex index(table, *layout);
    EXPECT_EQ(Json(PlacePartitions(index, 2)), row.at("owners_of_2"));
    EXPECT_EQ(Json(PlacePartitions(index, 3)), row.at("owners_of_3"));
  }
}

TEST(ValueVectorsTest, MaximalSubtreesAreThoseOfTheFile) {
  for (const Json& row : Section("subtrees")) {
    std::vector<PositionRange> ranges;
    for (const Json& range : row.at("ranges")) ranges.push_back({range.at(0), range.at(1)});
    Json roots = Json::array();
    for (const PositionRange& root : worker::MaximalSubtrees(ranges)) {
      roots.push_back({root.begin, root.end});
    }
    EXPECT_EQ(roots, row.at("roots")) << row;
  }
}

TEST(ValueVectorsTest, CodecsRoundAsInTheFile) {
  for (const Json& row : Section("codecs")) {
    const auto dtype = static_cast<v1::DataType>(row.at("dtype").get<int>());
    const auto codec = FindCodec(static_cast<v1::Codec>(row.at("codec").get<int>()));
    ASSERT_TRUE(codec.ok());
    const std::string values = Bytes(row.at("values"));
    const size_t count = values.size() / ElementBytes(dtype);
    std::string encoded(2 * count, '\0');
    std::vector<uint64_t> memory = Aligned(values);
    ASSERT_TRUE((*codec)
                    ->Encode(ConstElements(dtype, memory.data(), count),
                             absl::MakeSpan(encoded.data(), encoded.size()))
                    .ok());
    EXPECT_EQ(absl::BytesToHexString(encoded), row.at("encoded"));
    ASSERT_TRUE((*codec)->Decode(absl::Cord(encoded), Elements(dtype, memory.data(), count)).ok());
    EXPECT_EQ(std::memcmp(memory.data(), Bytes(row.at("decoded")).data(), values.size()), 0);
  }
}

std::unique_ptr<const Codec> MakeCodecOf(const Json& row) {
  CodecOptions options;
  options.fraction = row.at("fraction");
  options.threshold = row.at("threshold");
  auto codec = MakeCodec(static_cast<v1::Codec>(row.at("codec").get<int>()), options);
  EXPECT_TRUE(codec.ok()) << codec.status();
  return *std::move(codec);
}

// The numbers that these bytes encode; every NaN is replaced by the same number.
std::vector<double> Numbers(v1::DataType dtype, const std::string& bytes) {
  const std::vector<uint64_t> memory = Aligned(bytes);
  const ConstElements elements(dtype, memory.data(), bytes.size() / ElementBytes(dtype));
  std::vector<double> numbers;
  for (size_t i = 0; i < elements.count(); ++i) {
    const double number = dtype == v1::FLOAT64 ? elements.As<double>()[i]
                                               : static_cast<double>(elements.As<float>()[i]);
    numbers.push_back(std::isnan(number) ? 1e300 : number);
  }
  return numbers;
}

TEST(ValueVectorsTest, LossyCodecsProduceTheBytesOfTheFile) {
  for (const Json& row : Section("lossy")) {
    const auto dtype = static_cast<v1::DataType>(row.at("dtype").get<int>());
    const auto codec = MakeCodecOf(row);
    std::vector<uint64_t> memory = Aligned(Bytes(row.at("values")));
    const size_t count = Bytes(row.at("values")).size() / ElementBytes(dtype);
    std::string encoded(*codec->EncodedBytes(count, dtype), '\0');
    const auto written = codec->Encode(ConstElements(dtype, memory.data(), count),
                                       absl::MakeSpan(encoded.data(), encoded.size()));
    ASSERT_TRUE(written.ok()) << written.status();
    encoded.resize(*written);
    EXPECT_EQ(absl::BytesToHexString(encoded), row.at("encoded")) << row.at("codec");
    ASSERT_TRUE(codec->Decode(absl::Cord(encoded), Elements(dtype, memory.data(), count)).ok());
    const std::string decoded(reinterpret_cast<const char*>(memory.data()),
                              count * ElementBytes(dtype));
    EXPECT_EQ(Numbers(dtype, decoded), Numbers(dtype, Bytes(row.at("decoded"))));
  }
}

TEST(ValueVectorsTest, ResidualsAreThoseOfTheFile) {
  for (const Json& row : Section("feedback")) {
    v1::TrainingSpec training;
    training.set_push_codec(static_cast<v1::Codec>(row.at("codec").get<int>()));
    training.mutable_compression()->set_fraction(row.at("fraction"));
    training.mutable_compression()->set_threshold(row.at("threshold"));
    training.mutable_compression()->set_error_feedback(true);
    worker::GradientEncoder encoder(training);
    v1::TensorSpec tensor;
    tensor.set_dtype(static_cast<v1::DataType>(row.at("dtype").get<int>()));
    for (size_t step = 0; step < row.at("payloads").size(); ++step) {
      const std::string gradient = Bytes(row.at("gradients").at(step));
      v1::Block block;
      block.set_count(gradient.size() / ElementBytes(tensor.dtype()));
      tensor.clear_shape();
      tensor.add_shape(static_cast<int64_t>(block.count()));
      for (int time = 0; time < 2; ++time) {
        const worker::EncodedBlock encoded =
            encoder.Encode({0, 4}, 0, block, tensor, absl::Cord(gradient), /*as_rows=*/false);
        EXPECT_EQ(Hex(encoded.payload), row.at("payloads").at(step))
            << row.at("codec") << " in step " << step;
      }
      if (step == row.at("rolled_back")) {
        encoder.Rollback();
      } else {
        encoder.Commit();
      }
    }
  }
}

TEST(ValueVectorsTest, GradientSumsHaveTheBitsOfTheFile) {
  for (const Json& row : Section("sums")) {
    const auto sum =
        worker::AddGradients(static_cast<v1::DataType>(row.at("dtype").get<int>()),
                             absl::Cord(Bytes(row.at("left"))), absl::Cord(Bytes(row.at("right"))));
    ASSERT_TRUE(sum.ok());
    EXPECT_EQ(Hex(*sum), row.at("sum")) << row.at("dtype");
  }
}

TEST(ValueVectorsTest, InitialValuesAreThoseOfTheFile) {
  for (const Json& row : Section("uniforms")) {
    const std::string wanted = Bytes(row.at("values"));
    std::vector<double> values(wanted.size() / sizeof(double));
    FillUniform(row.at("seed"), row.at("name").get<std::string>(), row.at("bound"), 0,
                absl::MakeSpan(values));
    EXPECT_EQ(std::memcmp(values.data(), wanted.data(), wanted.size()), 0) << row;
  }
}

TEST(ValueVectorsTest, FramesHaveTheBytesOfTheFile) {
  for (const Json& row : Section("frames")) {
    v1::Header header;
    ASSERT_TRUE(header.ParseFromString(Bytes(row.at("header"))));
    const absl::Cord payload(Bytes(row.at("payload")));
    EXPECT_EQ(Hex(EncodeFrameToCord(header, payload)), row.at("frame"));
    const auto decoded = DecodeFrame(absl::Cord(Bytes(row.at("frame"))));
    ASSERT_TRUE(decoded.ok());
    EXPECT_EQ(decoded->header.SerializeAsString(), header.SerializeAsString());
    EXPECT_EQ(decoded->payload, payload);
  }
}

TEST(ValueVectorsTest, BatchesContainTheFramesOfTheFile) {
  for (const Json& row : Section("batches")) {
    std::string message;
    for (const Json& frame : row.at("frames")) {
      absl::StrAppend(&message, EncodeBatchPrefix(Bytes(frame).size()), Bytes(frame));
    }
    EXPECT_EQ(absl::BytesToHexString(message), row.at("message"));
    const auto decoded = DecodeFrames(absl::Cord(message));
    ASSERT_TRUE(decoded.ok()) << decoded.status();
    ASSERT_EQ(decoded->size(), row.at("frames").size());
    for (size_t i = 0; i < decoded->size(); ++i) {
      EXPECT_EQ(Hex(EncodeFrameToCord((*decoded)[i].header, (*decoded)[i].payload)),
                row.at("frames")[i]);
    }
  }
}

// Shared memory that is zero everywhere. Records the last place that was taken.
class ZerosEverywhere final : public SharedPayloads {
 public:
  absl::StatusOr<absl::Cord> Take(const v1::SharedPayload& place) override {
    taken = place;
    return absl::Cord(std::string(place.bytes(), '\0'));
  }

  v1::SharedPayload taken;
};

TEST(ValueVectorsTest, FramesReferToMemoryAsInTheFile) {
  for (const Json& row : Section("shared")) {
    v1::Header header;
    ASSERT_TRUE(header.ParseFromString(Bytes(row.at("header"))));
    v1::SharedPayload place;
    place.set_offset(row.at("offset"));
    place.set_bytes(row.at("bytes"));
    EXPECT_EQ(absl::BytesToHexString(EncodeSharedFrame(header, place)), row.at("frame"));
    ZerosEverywhere memory;
    const auto decoded = DecodeFrame(absl::Cord(Bytes(row.at("frame"))), {}, &memory);
    ASSERT_TRUE(decoded.ok()) << decoded.status();
    EXPECT_EQ(decoded->header.SerializeAsString(), header.SerializeAsString());
    EXPECT_EQ(memory.taken.SerializeAsString(), place.SerializeAsString());
    EXPECT_EQ(decoded->payload.size(), place.bytes());
  }
}

TEST(ValueVectorsTest, RejectsInvalidFrames) {
  for (const Json& row : Section("malformed")) {
    EXPECT_FALSE(DecodeFrames(absl::Cord(Bytes(row))).ok()) << row;
  }
}

}  // namespace
}  // namespace sluice
