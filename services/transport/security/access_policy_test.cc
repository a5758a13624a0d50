#include "services/transport/security/access_policy.h"

#include <gmock/gmock.h>
#include <google/protobuf/descriptor.h>
#include <gtest/gtest.h>

#include <map>
#include <set>
#include <string>

#include "absl/strings/str_cat.h"
#include "proto/jobcontrol.pb.h"
#include "proto/rendezvous.pb.h"
#include "proto/stage.pb.h"

namespace sluice::security {
namespace {

using ::testing::HasSubstr;

constexpr v1::Role kRoles[] = {v1::COORDINATOR, v1::SHARD, v1::WORKER, v1::READER, v1::OPERATOR};

PeerIdentity Peer(v1::Role role) { return {"default/mnist", role, 0}; }

// The RPCs of every service in proto/, as on the wire.
std::set<std::string> AllRpcs() {
  std::set<std::string> methods;
  for (const google::protobuf::FileDescriptor* file :
       {v1::Header::descriptor()->file(), v1::MemberMessage::descriptor()->file(),
        v1::JobProgress::descriptor()->file(), v1::MeetRequest::descriptor()->file(),
        v1::StageTensor::descriptor()->file()}) {
    for (int i = 0; i < file->service_count(); ++i) {
      const google::protobuf::ServiceDescriptor* service = file->service(i);
      for (int j = 0; j < service->method_count(); ++j) {
        methods.insert(absl::StrCat("/", service->full_name(), "/", service->method(j)->name()));
      }
    }
  }
  return methods;
}

// The table again, written by hand. Columns: "coordinator ps worker reader operator".
const std::map<std::string, std::string>& Expected() {
  static const auto* const expected = new std::map<std::string, std::string>{
      {"/sluice.v1.Coordinator/Join", "- ps worker - -"},
      {"/sluice.v1.JobControl/SetDesired", "- - - - operator"},
      {"/sluice.v1.JobControl/GetProgress", "coordinator ps worker reader operator"},
      {"/sluice.v1.JobControl/OpenSnapshot", "- - worker reader -"},
      {"/sluice.v1.ParameterServer/Exchange", "- ps worker reader -"},
      {"/sluice.v1.Rendezvous/Meet", "- - worker - -"},
      {"/sluice.v1.Stage/Open", "- - worker - -"},
      {"/sluice.v1.Stage/Forward", "- - worker - -"},
      {"/sluice.v1.Stage/Backward", "- - worker - -"},
      {"/sluice.v1.Stage/ContextGradients", "- - worker - -"},
  };
  return *expected;
}

TEST(RulesTest, EveryRpcIsInTable) {
  std::set<std::string> ruled;
  for (const RpcRule& rule : RpcRules()) ruled.insert(rule.method);
  EXPECT_EQ(ruled, AllRpcs());
  EXPECT_EQ(Expected().size(), AllRpcs().size());
}

TEST(RulesTest, EveryRoleMayCallOnlyMethodsInTable) {
  for (const auto& [method, expected] : Expected()) {
    std::string allowed;
    for (const v1::Role role : kRoles) {
      const absl::Status status = MayCall(Peer(role), method);
      absl::StrAppend(&allowed, allowed.empty() ? "" : " ", status.ok() ? NameOf(role) : "-");
      EXPECT_TRUE(status.ok() || absl::IsPermissionDenied(status)) << status;
    }
    EXPECT_EQ(allowed, expected) << method;
  }
}

TEST(RulesTest, RefusalNamesCallerAndAllowedRoles) {
  const absl::Status status = MayCall(Peer(v1::WORKER), "/sluice.v1.JobControl/SetDesired");
  EXPECT_THAT(status.message(), HasSubstr("not for worker 0 of default/mnist"));
  EXPECT_THAT(status.message(), HasSubstr("it is for: operator"));
}

TEST(RulesTest, RefusesMethodThatIsNotInTable) {
  for (const v1::Role role : kRoles) {
    EXPECT_FALSE(MayCall(Peer(role), "/sluice.v1.JobControl/Forgotten").ok());
    EXPECT_FALSE(MayCall(Peer(role), "").ok());
  }
}

// One message of each kind.
std::map<std::string, v1::MemberMessage> EveryMessage() {
  std::map<std::string, v1::MemberMessage> messages;
  const google::protobuf::OneofDescriptor* body = v1::MemberMessage::descriptor()->oneof_decl(0);
  for (int i = 0; i < body->field_count(); ++i) {
    const google::protobuf::FieldDescriptor* field = body->field(i);
    v1::MemberMessage message;
    (void)message.GetReflection()->MutableMessage(&message, field);
    messages[field->name()] = message;
  }
  return messages;
}

TEST(RulesTest, MemberSendsOnlyMessagesOfItsRole) {
  const std::set<std::string> of_workers = {"ready", "worker_progress", "evaluation_result",
                                            "metric_values", "job_request"};
  const std::set<std::string> of_shards = {"state_ready",    "pause_reply",     "installed",
                                           "shard_progress", "snapshot_pinned", "snapshot_written",
                                           "snapshot_failed"};
  const std::set<std::string> of_both = {"heartbeat", "failure", "leave"};
  auto messages = EveryMessage();
  EXPECT_EQ(messages.size(), of_workers.size() + of_shards.size() + of_both.size() + 1);
  messages.erase("register");
  for (const auto& [name, message] : messages) {
    EXPECT_EQ(MaySend(Peer(v1::WORKER), message).ok(), of_shards.count(name) == 0) << name;
    EXPECT_EQ(MaySend(Peer(v1::SHARD), message).ok(), of_workers.count(name) == 0) << name;
    EXPECT_TRUE(MaySend(std::nullopt, message).ok()) << name;
  }
}

TEST(RulesTest, MemberRegistersUnderItsOwnName) {
  v1::MemberMessage message;
  message.mutable_register_()->mutable_process()->set_role(v1::SHARD);
  EXPECT_TRUE(MaySend(Peer(v1::SHARD), message).ok());
  EXPECT_EQ(MaySend(Peer(v1::WORKER), message).code(), absl::StatusCode::kPermissionDenied);
  message.mutable_register_()->mutable_process()->set_index(1);
  EXPECT_EQ(MaySend(Peer(v1::SHARD), message).code(), absl::StatusCode::kPermissionDenied);
}

TEST(RulesTest, HelloNamesItsSenderOrAReader) {
  v1::Header hello;
  v1::ProcessId* sender = hello.mutable_hello()->mutable_sender();
  sender->set_role(v1::SHARD);
  EXPECT_FALSE(MaySend(Peer(v1::WORKER), hello).ok());
  EXPECT_FALSE(MaySend(Peer(v1::READER), hello).ok());
  EXPECT_TRUE(MaySend(Peer(v1::SHARD), hello).ok());
  sender->set_role(v1::READER);
  EXPECT_TRUE(MaySend(Peer(v1::WORKER), hello).ok());
  EXPECT_TRUE(MaySend(Peer(v1::READER), hello).ok());
  EXPECT_FALSE(MaySend(Peer(v1::SHARD), hello).ok());
  v1::Header push;
  push.mutable_push();
  EXPECT_TRUE(MaySend(Peer(v1::WORKER), push).ok());
}

}  // namespace
}  // namespace sluice::security
