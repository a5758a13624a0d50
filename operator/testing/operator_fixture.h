// The fixture of tests that run the operator in a FakeCluster.
#ifndef SLUICE_OPERATOR_TESTING_OPERATOR_FIXTURE_H_
#define SLUICE_OPERATOR_TESTING_OPERATOR_FIXTURE_H_

#include <gtest/gtest.h>

#include "operator/testing/fake_cluster.h"

namespace sluice {

class OperatorFixture : public ::testing::Test {
 protected:
  // Creates job "a" with one shard and two workers and `patch` merged into it, and lets it train.
  void Train(const kube::Json& patch = kube::Json::object()) {
    ASSERT_TRUE(cluster_.Train("a", patch));
  }

  FakeCluster cluster_;
};

}  // namespace sluice

#endif  // SLUICE_OPERATOR_TESTING_OPERATOR_FIXTURE_H_
