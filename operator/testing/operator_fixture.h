// The fixture of tests that run the operator in a FakeCluster.
#ifndef SLUICE_OPERATOR_TESTING_OPERATOR_FIXTURE_H_
#define SLUICE_OPERATOR_TESTING_OPERATOR_FIXTURE_H_

#include <gtest/gtest.h>

#include <cstdint>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "operator/kube/http_client.h"
#include "operator/kube/object.h"
#include "operator/testing/fake_cluster.h"

namespace sluice {

class OperatorFixture : public ::testing::Test {
 protected:
  // Creates job "a" with one shard and two workers and `patch` merged into it, and lets it train.
  void Train(const kube::Json& patch = kube::Json::object()) {
    ASSERT_TRUE(cluster_.Train("a", patch));
  }

  // The restarts and the last failure of job "a".
  int64_t Restarts(const std::string& role) {
    return kube::GetInt(cluster_.Status("a"), {"restarts", role});
  }
  kube::Json LastFailure() { return cluster_.Status("a")["lastFailures"][0]; }
  // The notes of the events with this reason, one a line.
  std::string NotesOf(const std::string& reason) {
    std::string notes;
    for (const kube::Json& event : cluster_.Events()) {
      if (kube::GetString(event, {"reason"}) != reason) continue;
      absl::StrAppend(&notes, notes.empty() ? "" : "\n", kube::GetString(event, {"note"}));
    }
    return notes;
  }
  std::string Summary() { return kube::GetString(cluster_.Status("a"), {"summary"}); }

  // A user with kubectl.
  kube::HttpClient Admin() {
    kube::HttpClient::Options options;
    options.sleep = [](absl::Duration) {};
    return kube::HttpClient(&cluster_.server, options);
  }

  FakeCluster cluster_;
};

}  // namespace sluice

#endif  // SLUICE_OPERATOR_TESTING_OPERATOR_FIXTURE_H_
