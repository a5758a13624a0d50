#include "cli/cluster/port_forward.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

namespace sluice::cli {
namespace {

using ::testing::HasSubstr;

class PortForwardTest : public ::testing::Test {
 protected:
  PortForwardTest()
      : directory_(absl::StrCat(std::getenv("TEST_TMPDIR"), "/",
                                ::testing::UnitTest::GetInstance()->current_test_info()->name())) {
    std::filesystem::create_directories(directory_);
    options_.kubectl = directory_ + "/kubectl";
    options_.flags = {"--context", "here"};
    options_.pod = {"team", "mnist-coordinator"};
    options_.port = 29500;
  }

  void WriteKubectl(const std::string& script) {
    std::ofstream(directory_ + "/kubectl") << "#!/bin/sh\n" << script << "\n";
    chmod(options_.kubectl.c_str(), 0755);
  }
  std::string Read(const std::string& name) const {
    std::ifstream file(directory_ + "/" + name);
    return {std::istreambuf_iterator<char>(file), {}};
  }

  const std::string directory_;
  PortForward::Options options_;
};

TEST_F(PortForwardTest, KubectlOpensThePortAndEndsWithTheObject) {
  WriteKubectl(absl::StrCat("echo \"$@\" > ", directory_, "/arguments; echo $$ > ", directory_,
                            "/pid; echo 'Forwarding from 127.0.0.1:41234 -> 29500'; "
                            "exec sleep 1000"));
  pid_t pid = 0;
  {
    const auto forward = PortForward::Start(options_);
    ASSERT_TRUE(forward.ok()) << forward.status();
    EXPECT_EQ((*forward)->address(), "127.0.0.1:41234");
    EXPECT_EQ(Read("arguments"),
              "port-forward --context here --namespace team --address 127.0.0.1 "
              "pod/mnist-coordinator :29500\n");
    ASSERT_TRUE(absl::SimpleAtoi(Read("pid"), &pid));
    EXPECT_EQ(kill(pid, 0), 0);
  }
  EXPECT_NE(kill(pid, 0), 0);
}

TEST_F(PortForwardTest, ErrorContainsKubectlsOutput) {
  WriteKubectl("echo 'error: unable to forward port because pod is not running' >&2; exit 1");
  const auto forward = PortForward::Start(options_);
  EXPECT_TRUE(absl::IsUnavailable(forward.status()));
  EXPECT_THAT(forward.status().message(), HasSubstr("pod/mnist-coordinator: error: unable to"));
}

TEST_F(PortForwardTest, TimesOutIfKubectlOpensNoPort) {
  WriteKubectl("exec sleep 1000");
  options_.timeout = absl::Milliseconds(50);
  EXPECT_TRUE(absl::IsDeadlineExceeded(PortForward::Start(options_).status()));
}

TEST_F(PortForwardTest, FindsKubectlInPath) {
  EXPECT_THAT(FindKubectl(directory_).status().message(), HasSubstr("kubectl is not in PATH"));
  WriteKubectl("exit 0");
  EXPECT_EQ(*FindKubectl("/nowhere:" + directory_), directory_ + "/kubectl");
}

}  // namespace
}  // namespace sluice::cli
