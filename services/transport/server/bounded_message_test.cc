#include "services/transport/server/bounded_message.h"

#include <gtest/gtest.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "proto/control.pb.h"

namespace sluice {
namespace {

grpc::ByteBuffer Wire(const std::string& bytes) {
  // Slices within elements.
  const size_t cut = bytes.size() / 3;
  const grpc::Slice slices[] = {grpc::Slice(bytes.substr(0, cut)), grpc::Slice(bytes.substr(cut))};
  return grpc::ByteBuffer(slices, 2);
}

std::string Repeat(const std::string& piece, int count) {
  std::string bytes;
  for (int i = 0; i < count; ++i) bytes += piece;
  return bytes;
}

absl::Status Check(const v1::MemberMessage& message, size_t max_bytes) {
  return CheckParsedSize(*message.GetDescriptor(), Wire(message.SerializeAsString()), max_bytes);
}

// Elements that take much more memory than bytes of a message.
TEST(BoundedMessageTest, CountsAtLeastTheMemoryThatTheMessageTakes) {
  constexpr int kPieces = 1000;
  v1::MemberMessage tensors;
  for (int i = 0; i < kPieces; ++i) tensors.mutable_ready()->mutable_table()->add_tensors();
  v1::MemberMessage numbers;
  for (int i = 0; i < kPieces; ++i) numbers.mutable_worker_progress()->add_owing(i);
  v1::MemberMessage steps;
  for (int i = 0; i < kPieces; ++i) steps.mutable_worker_progress()->add_steps();
  v1::MemberMessage texts = tensors;
  for (auto& tensor : *texts.mutable_ready()->mutable_table()->mutable_tensors()) {
    tensor.set_name(std::string(20, 'x'));
  }
  v1::MemberMessage unknown;
  // A field 100 that no version has.
  ASSERT_TRUE(unknown.ParseFromString(Repeat(std::string("\xa2\x06\0", 3), kPieces)));
  v1::MemberMessage unknown_below = steps;
  ASSERT_TRUE(unknown_below.mutable_worker_progress()->mutable_steps(0)->MergeFromString(
      Repeat(std::string("\xfa\x01\0", 3), kPieces)));
  v1::MemberMessage groups;
  ASSERT_TRUE(groups.ParseFromString(Repeat("\xa3\x06\xa4\x06", kPieces)));

  for (const auto* message :
       {&tensors, &numbers, &steps, &texts, &unknown, &unknown_below, &groups}) {
    const size_t memory = message->SpaceUsedLong();
    ASSERT_GT(memory, 8 * kPieces);
    EXPECT_FALSE(Check(*message, memory - sizeof(*message)).ok()) << memory;
    EXPECT_TRUE(Check(*message, 10 * memory + 1000).ok()) << memory;
  }
}

TEST(BoundedMessageTest, LargeTableFits) {
  v1::MemberMessage message;
  for (int i = 0; i < 150000; ++i) {
    v1::TensorSpec& tensor = *message.mutable_ready()->mutable_table()->add_tensors();
    tensor.set_name(absl::StrCat("encoder.layer.weight", i));
    tensor.add_shape(1024);
    tensor.add_shape(4);
    tensor.set_dtype(v1::FLOAT32);
  }
  EXPECT_TRUE(Check(message, kMaxParsedBytes).ok());
}

// The parser reports these.
TEST(BoundedMessageTest, MalformedMessageIsLeftToTheParser) {
  v1::MemberMessage message;
  message.mutable_failure()->set_reason("broken");
  const std::string whole = message.SerializeAsString();
  for (size_t bytes = 0; bytes <= whole.size(); ++bytes) {
    EXPECT_TRUE(CheckParsedSize(*message.GetDescriptor(), Wire(whole.substr(0, bytes)), 1000).ok());
  }
}

}  // namespace
}  // namespace sluice
