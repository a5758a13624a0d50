#include "services/common/process/program.h"

#include <curl/curl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <fstream>
#include <string>
#include <thread>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace sluice {
namespace {

// A role that ends at once, with an exit code; a kubelet has just probed it.
class BriefRole {
 public:
  using Result = int;

  BriefRole(int exit_code, std::string port_file)
      : exit_code_(exit_code), port_file_(std::move(port_file)) {}

  absl::Status Ready() const {
    return ended_ ? absl::UnavailableError("it has ended") : absl::OkStatus();
  }
  absl::Status Alive() const { return Ready(); }
  Result Wait() {
    std::ifstream(port_file_) >> port_;
    EXPECT_EQ(Probe(), 200);
    absl::SleepFor(absl::Milliseconds(1200));
    ended_ = true;
    return exit_code_;
  }

  // As a kubelet every 4 s; returns the answer's code, 0 if nothing listens.
  long Probe() const {
    long code = 0;
    CURL* curl = curl_easy_init();
    curl_easy_setopt(curl, CURLOPT_URL,
                     absl::StrCat("http://127.0.0.1:", port_, "/readyz?period=4").c_str());
    curl_easy_setopt(curl, CURLOPT_NOPROXY, "*");
    curl_easy_setopt(curl, CURLOPT_NOBODY, 1L);
    if (curl_easy_perform(curl) == CURLE_OK) {
      curl_easy_getinfo(curl, CURLINFO_RESPONSE_CODE, &code);
    }
    curl_easy_cleanup(curl);
    return code;
  }

 private:
  const int exit_code_;
  const std::string port_file_;
  int port_ = 0;
  std::atomic<bool> ended_{false};
};

class WaitForEndTest : public ::testing::Test {
 protected:
  // Returns how long the process lived on after its role's end.
  absl::Duration End(BriefRole* role) {
    ProgramFlags flags;
    flags.metrics_address = "127.0.0.1:0";
    flags.metrics_port_file = port_file_;
    const absl::Time start = absl::Now();
    const absl::StatusOr<int> result = WaitForEnd(
        role, flags, &metrics_, &stop_, [](int) {}, [](const int& code) { return code; });
    EXPECT_TRUE(result.ok()) << result.status();
    return absl::Now() - start - absl::Milliseconds(1200);
  }

  const std::string port_file_ = absl::StrCat(::testing::TempDir(), "/port-", getpid());
  const Metrics metrics_{{}, {}};
  StopRequests stop_;
};

TEST_F(WaitForEndTest, AProcessThatEndsWellAnswersTheProbeThatIsDueSoon) {
  BriefRole role(kExitOk, port_file_);
  std::thread kubelet([&] {
    absl::SleepFor(absl::Milliseconds(2200));
    EXPECT_EQ(role.Probe(), 200) << "although the role is no longer ready";
  });
  const absl::Duration lived_on = End(&role);
  kubelet.join();
  EXPECT_GT(lived_on, absl::Milliseconds(700));
  EXPECT_LT(lived_on, absl::Seconds(3)) << "the next probe is due later";
}

TEST_F(WaitForEndTest, AProcessThatFailsEndsAtOnce) {
  BriefRole role(kExitFailed, port_file_);
  EXPECT_LT(End(&role), absl::Milliseconds(700));
}

}  // namespace
}  // namespace sluice
