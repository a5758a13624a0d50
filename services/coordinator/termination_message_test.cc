#include "services/coordinator/termination_message.h"

#include <google/protobuf/util/json_util.h>

#include <string>

#include "gtest/gtest.h"

namespace sluice::coordinator {
namespace {

v1::JobProgress Read(const std::string& message) {
  v1::JobProgress progress;
  EXPECT_TRUE(google::protobuf::util::JsonStringToMessage(message, &progress).ok()) << message;
  return progress;
}

TEST(TerminationMessageTest, ReportsOutcomeWithoutProcesses) {
  v1::JobProgress progress;
  progress.set_phase(v1::JobProgress::FAILED);
  progress.set_reason("the loss is not finite");
  progress.set_step(41);
  progress.mutable_checkpoint()->set_directory("/checkpoints/a1");
  progress.mutable_view()->mutable_id()->set_number(7);
  for (int i = 0; i < 1000; ++i) {
    progress.mutable_view()->add_workers();
    progress.add_processes();
    progress.add_events();
    progress.add_losses();
  }
  const v1::JobProgress read = Read(TerminationMessage(progress));
  EXPECT_EQ(read.phase(), v1::JobProgress::FAILED);
  EXPECT_EQ(read.reason(), "the loss is not finite");
  EXPECT_EQ(read.step(), 41u);
  EXPECT_EQ(read.checkpoint().directory(), "/checkpoints/a1");
  EXPECT_EQ(read.view().id().number(), 7u);
  EXPECT_EQ(read.view().workers_size() + read.processes_size() + read.events_size(), 0);
}

TEST(TerminationMessageTest, FitsForAnyTexts) {
  for (const std::string text : {"x", "\n", "\x01", "€", "\""}) {
    std::string long_text;
    while (long_text.size() < 20000) long_text += text;
    v1::JobProgress progress;
    progress.set_phase(v1::JobProgress::FAILED);
    progress.set_reason(long_text);
    progress.mutable_checkpoint()->set_error(long_text);
    progress.mutable_checkpoint()->set_directory("/" + std::string(3000, 'f'));
    const std::string message = TerminationMessage(progress);
    EXPECT_LE(message.size(), kMaxTerminationBytes);
    const v1::JobProgress read = Read(message);
    EXPECT_EQ(read.phase(), v1::JobProgress::FAILED);
    EXPECT_GE(read.reason().size(), 100u);
    EXPECT_EQ(read.reason(), long_text.substr(0, read.reason().size()));
  }
}

}  // namespace
}  // namespace sluice::coordinator
