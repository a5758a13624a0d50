// Streams of hostile peers: a process that the coordinator has not admitted gets no stream; the
// memory that peers can occupy is bounded.
#include <gmock/gmock.h>
#include <google/protobuf/message.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "services/ps/core/base/bounds.h"
#include "services/ps/core/session/frame_checks.h"
#include "services/ps/core/shard_core.h"
#include "services/ps/core/testing/hostile_test.h"

namespace sluice::ps {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using ::testing::StartsWith;

constexpr auto kExhausted = absl::StatusCode::kResourceExhausted;

// ---------------------------------------------------------------- admission of streams

TEST_F(HostileTest, RefusesUnadmittedProcessAfterTimeout) {
  Begin();
  shard.admits = false;
  const StreamId stranger = shard.Open(666);
  shard.Send(stranger, shard.MakePush(0, 0, kRange(0, 2), 2), CordOf({9, 9, 9, 9}));
  EXPECT_TRUE(shard.StatusOf(stranger).ok()) << "the process may still be admitted";
  EXPECT_THAT(shard.TakeFrames(stranger), IsEmpty()) << "no HelloReply";
  Pass(absl::Seconds(4.9));
  EXPECT_TRUE(shard.StatusOf(stranger).ok());
  Pass(absl::Seconds(0.1));
  EXPECT_EQ(shard.StatusOf(stranger).code(), kDenied);
  EXPECT_THAT(std::string(shard.StatusOf(stranger).message()), HasSubstr("admitted"));
  EXPECT_EQ(shard.core().Status().waiting_frames, 0);
}

TEST_F(HostileTest, AnswersEarlyHelloWhenItsProcessIsAdmitted) {
  Begin();
  shard.admits = false;
  const StreamId early = shard.Open(9);
  shard.Pull(early, 0);
  EXPECT_THAT(shard.TakeFrames(early), IsEmpty());
  shard.Admit(9);
  const std::vector<v1::Header> frames = shard.TakeFrames(early);
  ASSERT_THAT(frames, SizeIs(2));
  EXPECT_TRUE(frames[0].has_hello_reply());
  EXPECT_TRUE(frames[1].has_refused())
      << "the frame after the Hello is handled: the sender is no member";
  Pass(absl::Seconds(10));
  EXPECT_TRUE(shard.StatusOf(early).ok());
}

// Regression: a worker with its own certificate trained under the identity of another worker.
TEST_F(HostileTest, RefusesProcessThatUsesIdentityOfAnotherProcess) {
  shard.admits = false;
  shard.Admit(999);
  shard.Admit(7, v1::WORKER, 0);
  shard.Admit(8, v1::WORKER, 1);
  shard.Begin({7, 8});
  one = shard.OpenSilent();
  shard.Send(one, shard.MakeHello(7, v1::WORKER, 0));
  ASSERT_TRUE(shard.TakeFrames(one).at(0).has_hello_reply());

  const struct {
    v1::Role role;
    uint32_t index;
    uint64_t incarnation;
  } liars[] = {{v1::WORKER, 1, 7},   // the other worker's certificate
               {v1::WORKER, 0, 8},   // an admitted incarnation of another index
               {v1::READER, 0, 7},   // a reader's certificate
               {v1::WORKER, 0, 77},  // an incarnation of no process
               {v1::READER, 0, 5000}};

  for (const auto& liar : liars) {
    SCOPED_TRACE(absl::StrCat(liar.role, " ", liar.index, " ", liar.incarnation));
    const StreamId stream = shard.OpenSilent();
    shard.Send(stream, shard.MakeHello(liar.incarnation, liar.role, liar.index));
    EXPECT_THAT(shard.TakeFrames(stream), IsEmpty());
    EXPECT_TRUE(shard.StatusOf(one).ok()) << "the member's stream stays";
    Pass(absl::Seconds(5));
    EXPECT_EQ(shard.StatusOf(stream).code(), kDenied);
  }

  const StreamId shard_liar = shard.OpenSilent();
  shard.Send(shard_liar, shard.MakeHello(7, v1::SHARD));
  EXPECT_EQ(shard.StatusOf(shard_liar).code(), kDenied) << "it is not a shard of the view";
}

TEST_F(HostileTest, ReaderCannotCloseStreamOfWorker) {
  Begin();
  const StreamId reader = shard.Open(7, v1::READER);
  EXPECT_TRUE(shard.StatusOf(reader).ok());
  EXPECT_TRUE(shard.StatusOf(one).ok());
  const StreamId again = shard.Open(7, v1::READER);
  EXPECT_EQ(shard.StatusOf(reader).code(), absl::StatusCode::kAborted);
  EXPECT_TRUE(shard.StatusOf(again).ok());
  EXPECT_TRUE(shard.StatusOf(one).ok());
  Step(0, 1);
  EXPECT_EQ(shard.Version(0), 1);
}

TEST_F(HostileTest, OpenStreamsRemainWhenAdmittedProcessesChange) {
  Begin();
  v1::CoordinatorMessage admitted;
  admitted.mutable_admitted();
  shard.Deliver(admitted);
  Step(0, 1);
  EXPECT_EQ(shard.Version(0), 1);
  shard.admits = false;
  const StreamId again = shard.Open(7);
  EXPECT_THAT(shard.TakeFrames(again), IsEmpty());
  EXPECT_TRUE(shard.StatusOf(one).ok());
}

// ---------------------------------------------------------------- bounds

TEST_F(HostileTest, ClosesStreamWithoutHelloAfterTimeout) {
  Begin();
  const StreamId silent = shard.OpenSilent();
  EXPECT_EQ(shard.core().NextDeadline(), shard.now + absl::Milliseconds(500)) << "the heartbeat";
  Pass(absl::Seconds(4.9));
  EXPECT_TRUE(shard.StatusOf(silent).ok());
  EXPECT_EQ(shard.core().NextDeadline(), shard.now + absl::Milliseconds(100));
  Pass(absl::Milliseconds(100));
  EXPECT_EQ(shard.StatusOf(silent).code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(shard.StatusOf(silent).message()), StartsWith("hello_timeout"));
}

// Regression: 4,096 streams without a Hello kept a new worker from connecting.
TEST_F(HostileTest, SilentStreamsDoNotShutOutMembers) {
  shard.options.max_silent_streams = 3;
  shard.options.max_streams = 8;
  Begin();
  std::vector<StreamId> silent;
  for (int i = 0; i < 20; ++i) silent.push_back(shard.OpenSilent());
  EXPECT_EQ(shard.core().Status().streams, 6);
  EXPECT_EQ(shard.StatusOf(silent[0]).code(), kExhausted);
  EXPECT_THAT(std::string(shard.StatusOf(silent[0]).message()), StartsWith("max_silent_streams"));
  EXPECT_TRUE(shard.StatusOf(silent.back()).ok());
  EXPECT_EQ(Use(Bound::kSilentStreams).reached, 17);
  const StreamId again = shard.Open(7);
  shard.Push(again, 0, 0, {1, 1, 1, 1}, kRange(0, 2), 2);
  EXPECT_TRUE(shard.StatusOf(again).ok());
}

TEST_F(HostileTest, ReadersHaveTheirOwnLimit) {
  shard.options.max_reader_streams = 2;
  Begin();
  shard.Open(50, v1::READER);
  shard.Open(51, v1::READER);
  const StreamId third = shard.Open(52, v1::READER);
  EXPECT_EQ(shard.StatusOf(third).code(), kExhausted);
  EXPECT_THAT(std::string(shard.StatusOf(third).message()), StartsWith("max_reader_streams"));
  EXPECT_TRUE(shard.StatusOf(shard.Open(51, v1::READER)).ok())
      << "the new stream replaces the old one";
  EXPECT_TRUE(shard.StatusOf(shard.Open(9)).ok());
}

TEST_F(HostileTest, BoundsWaitingHellos) {
  shard.options.max_unadmitted_streams = 2;
  Begin();
  shard.admits = false;
  shard.Open(60);
  shard.Open(61);
  const StreamId third = shard.Open(62);
  EXPECT_EQ(shard.StatusOf(third).code(), kExhausted);
  EXPECT_THAT(std::string(shard.StatusOf(third).message()), StartsWith("max_unadmitted_streams"));
  EXPECT_TRUE(shard.StatusOf(shard.Open(8)).ok()) << "an admitted process does not wait";
}

// Regression: such a frame waited for ever, and every later frame of its sender behind it.
TEST_F(HostileTest, RefusesFramesOfViewsThatTheCoordinatorHasNotAnnounced) {
  Begin();
  v1::Header push = shard.MakePush(0, 0, kRange(0, 2), 2);
  push.mutable_push()->clear_blocks();
  const std::vector<Hostile> table = {
      {"the next", [](auto& h) { h.mutable_view()->set_number(2); },
       "view 2 of attempt 1 is ahead"},
      {"far ahead", [](auto& h) { h.mutable_view()->set_number(kHuge); }, "is ahead"},
      {"of a later attempt", [](auto& h) { h.mutable_view()->set_attempt(2); }, "of attempt 2 is"},
      {"of a later term", [](auto& h) { h.mutable_view()->mutable_term()->set_counter(9); },
       "is ahead"}};
  ExpectRefused(table, 7, push);
  shard.Pause(2);
  shard.TakeMessages();
  push.mutable_view()->set_number(3);
  ExpectRefused({{"after the next", [](auto&) {}, "view 3 of attempt 1 is ahead"}}, 7, push);
}

TEST_F(HostileTest, BoundsHeaderBytesOfWaitingFrames) {
  shard.options.max_waiting_header_bytes = 100000;
  Begin();
  v1::Header early = shard.MakePush(0, 0, kRange(0, 2), 2);
  *early.mutable_view() = shard.HeaderOf(2).view();
  early.mutable_push()->clear_blocks();
  shard.Pause(2);
  for (int i = 0; i < 1000; ++i) early.mutable_push()->add_blocks();  // 2 bytes each on the wire
  shard.Send(one, early);
  EXPECT_TRUE(shard.StatusOf(one).ok());
  EXPECT_GT(Use(Bound::kWaitingHeaderBytes).used, 30000);
  for (int i = 0; i < 5; ++i) shard.Send(one, early);
  EXPECT_EQ(shard.StatusOf(one).code(), kExhausted);
  EXPECT_THAT(std::string(shard.StatusOf(one).message()), StartsWith("max_waiting_header_bytes"));
  EXPECT_EQ(shard.core().Status().waiting_frames, 0);
}

TEST_F(HostileTest, WaitingFramesOfNonMembersShareOneBound) {
  shard.options.max_waiting_bytes = 10000;
  Begin();
  v1::Header early = shard.MakePush(0, 0, kRange(0, 2), 2);
  *early.mutable_view() = shard.HeaderOf(2).view();
  shard.Pause(2);

  std::vector<StreamId> closed;
  for (uint64_t stranger = 100; stranger < 140; ++stranger) {
    const StreamId stream = shard.Open(stranger);
    shard.Send(stream, early, CordOf({1, 1, 1, 1}));
    if (!shard.StatusOf(stream).ok()) closed.push_back(stream);
  }

  ASSERT_THAT(closed, ::testing::Not(IsEmpty()));
  EXPECT_THAT(std::string(shard.StatusOf(closed[0]).message()), StartsWith("max_waiting_bytes"));
  EXPECT_LE(Use(Bound::kWaitingBytes).used, 10000);

  shard.Send(one, early, CordOf({1, 1, 1, 1}));
  EXPECT_TRUE(shard.StatusOf(one).ok()) << "members have their own bound";
}

TEST_F(HostileTest, BoundsParkedPullsByNumberAndBytes) {
  shard.options.max_parked_pulls = 4;
  shard.options.max_parked_bytes = 4096;
  Begin();
  for (uint64_t request = 0; request < 3; ++request) shard.Pull(one, 1, request);
  EXPECT_EQ(shard.StatusOf(one).code(), kExhausted);
  EXPECT_THAT(std::string(shard.StatusOf(one).message()), StartsWith("max_parked_pulls"));
  v1::Header rows = NewHeader();
  rows.mutable_pull()->set_version(1);
  rows.mutable_pull()->add_rows()->set_count(1000);
  shard.Send(two, rows, absl::Cord(std::string(8000, '\0')));
  EXPECT_EQ(shard.StatusOf(two).code(), kExhausted);
  EXPECT_THAT(std::string(shard.StatusOf(two).message()), StartsWith("max_parked_bytes"));
}

// Sets each field that is a message, an element of each list of messages too; calls `visit` for
// every message, the outermost one too.
void FillMessages(google::protobuf::Message* message, int depth,
                  const std::function<void(google::protobuf::Message*)>& visit) {
  visit(message);
  const auto* const type = message->GetDescriptor();
  const auto* const reflection = message->GetReflection();
  for (int i = 0; depth > 0 && i < type->field_count(); ++i) {
    const auto* const field = type->field(i);
    const bool is_body = field->containing_oneof() != nullptr &&
                         reflection->HasOneof(*message, field->containing_oneof()) &&
                         !reflection->HasField(*message, field);
    if (field->cpp_type() != field->CPPTYPE_MESSAGE || is_body) continue;
    if (!field->is_repeated()) {
      FillMessages(reflection->MutableMessage(message, field), depth - 1, visit);
    } else if (reflection->FieldSize(*message, field) == 0) {
      FillMessages(reflection->AddMessage(message, field), depth - 1, visit);
    } else {
      FillMessages(reflection->MutableRepeatedMessage(message, field, 0), depth - 1, visit);
    }
  }
}

// Regression: the unknown fields of a header took memory that no bound counted.
TEST(BoundsTest, MemoryOfUnknownFieldsIsCountedInEveryPartOfAHeader) {
  std::string unknown;
  for (int i = 0; i < 1000; ++i) unknown += absl::StrCat("\xc1\x3e", "8 bytes.");  // of field 1000
  const auto* const body = v1::Header::descriptor()->FindOneofByName("body");
  for (int i = 0; i < body->field_count(); ++i) {
    SCOPED_TRACE(body->field(i)->name());
    const auto fill = [&](const std::function<void(google::protobuf::Message*)>& visit) {
      v1::Header header;
      header.GetReflection()->MutableMessage(&header, body->field(i));
      FillMessages(&header, 4, visit);
      return HeaderMemory(header);
    };
    int messages = 0;
    fill([&messages](auto*) { ++messages; });
    for (int chosen = 0; chosen < messages; ++chosen) {
      std::string name;
      int at = 0;
      const size_t memory = fill([&](google::protobuf::Message* message) {
        if (at++ != chosen) return;
        name = message->GetTypeName();
        EXPECT_TRUE(message->MergeFromString(unknown));
      });
      EXPECT_GE(memory, unknown.size()) << "in " << name;
    }
  }
}

TEST(BoundsTest, EveryBoundHasNameAndLimit) {
  ShardHarness shard;
  shard.Begin({7});
  const ShardStatus status = shard.core().Status();
  for (size_t bound = 0; bound < kBounds; ++bound) {
    EXPECT_NE(kBoundNames[bound], "");
    if (static_cast<Bound>(bound) == Bound::kReceivedBytes)
      continue;  // the shard process sets this limit
    EXPECT_GT(status.bounds[bound].limit, 0u) << kBoundNames[bound];
  }
}

}  // namespace
}  // namespace sluice::ps
