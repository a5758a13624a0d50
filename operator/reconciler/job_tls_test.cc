#include "operator/reconciler/job_tls.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "services/transport/security/identity.h"

namespace sluice::reconciler {
namespace {

using kube::Json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

const absl::Time kNow = absl::FromUnixSeconds(1700000000);
constexpr absl::Duration kDay = absl::Hours(24);

// A cluster that stores the writes of plans.
class JobTlsTest : public ::testing::Test {
 protected:
  JobTlsTest() {
    job_.key = {"ns", "a"};
    job_.uid = "u-1";
  }

  TlsPlan ReconcilePlan() {
    absl::StatusOr<TlsPlan> plan = PlanTls(job_, shards_, workers_, live_, now_);
    EXPECT_TRUE(plan.ok()) << plan.status();
    return *std::move(plan);
  }
  // Repeats until nothing is left to do; returns the names of the written Secrets.
  std::vector<std::string> Settle() {
    std::vector<std::string> written;
    for (TlsPlan plan = ReconcilePlan(); !plan.writes.empty(); plan = ReconcilePlan()) {
      for (Json& secret : plan.writes) {
        const std::string name = kube::KeyOf(secret).name;
        const bool there = live_.count(name) > 0;
        EXPECT_EQ(kube::ResourceVersionOf(secret),
                  there ? kube::ResourceVersionOf(*live_[name]) : "")
            << "a Secret that was not seen is never replaced";
        secret["metadata"]["resourceVersion"] = absl::StrCat(++version_);
        live_[name] = std::make_shared<const Json>(std::move(secret));
        written.push_back(name);
      }
    }
    return written;
  }
  std::string Data(const std::string& secret, const std::string& key) {
    if (live_.count(secret) == 0) return "";
    std::string text;
    absl::Base64Unescape(kube::GetString(*live_[secret], {"data", key}), &text);
    return text;
  }
  // The certificate that worker `index` mounts.
  std::string Worker(uint32_t index) { return Data("a-tls-worker", absl::StrCat(index, ".crt")); }
  // Whether worker 0 and shard 0 trust each other with their own bundles.
  bool PeersAgree() {
    return tls::CheckTrusted(Data("a-tls-ps", "0.crt"), Data("a-tls-worker", "ca.crt"), now_)
               .ok() &&
           tls::CheckTrusted(Worker(0), Data("a-tls-ps", "ca.crt"), now_).ok();
  }
  void SetData(const std::string& secret, const std::string& key, const std::string& text) {
    Json changed = *live_[secret];
    changed["data"][key] = absl::Base64Escape(text);
    changed["metadata"]["resourceVersion"] = absl::StrCat(++version_);
    live_[secret] = std::make_shared<const Json>(std::move(changed));
  }

  ObservedJob job_;
  uint32_t shards_ = 1;
  uint32_t workers_ = 2;
  LiveSecrets live_;
  absl::Time now_ = kNow;
  int version_ = 0;
};

TEST_F(JobTlsTest, StoresTheAuthorityBeforeItSigns) {
  const TlsPlan first = ReconcilePlan();
  ASSERT_EQ(first.writes.size(), 1u);
  EXPECT_EQ(kube::KeyOf(first.writes[0]).name, "a-tls-ca");
  EXPECT_EQ(kube::ControllerUidOf(first.writes[0]), "u-1");
  EXPECT_THAT(Settle(), ElementsAre("a-tls-ca", "a-tls-coordinator", "a-tls-ps", "a-tls-worker",
                                    "a-tls-reader"));
  EXPECT_TRUE(PeersAgree());
}

TEST_F(JobTlsTest, OnlyTheAuthoritysSecretHasItsKey) {
  Settle();
  const std::string key = kube::GetString(*live_["a-tls-ca"], {"data", "ca.key"});
  ASSERT_FALSE(key.empty());
  for (const auto& [name, secret] : live_) {
    if (name == "a-tls-ca") continue;
    EXPECT_THAT(secret->dump(), Not(HasSubstr(key))) << name;
  }
}

TEST_F(JobTlsTest, ACertificateNamesRoleAndIndex) {
  Settle();
  const auto identity = security::IdentityOf(*tls::ReadCertificate(Worker(1)));
  ASSERT_TRUE(identity.ok()) << identity.status();
  EXPECT_EQ(identity->ToString(), "worker 1 of ns/a");
}

TEST_F(JobTlsTest, APodMountsOnlyItsOwnEntries) {
  const Json volume = TlsVolume("sluice-tls", "a", {v1::WORKER, 3});
  EXPECT_EQ(kube::GetString(volume, {"secret", "secretName"}), "a-tls-worker");
  std::vector<std::string> items;
  for (const Json& item : volume["secret"]["items"]) {
    items.push_back(absl::StrCat(std::string(item["key"]), ">", std::string(item["path"])));
  }
  EXPECT_THAT(items, ElementsAre("ca.crt>ca.crt", "3.crt>tls.crt", "3.key>tls.key"));
}

TEST_F(JobTlsTest, KeepsValidSecrets) {
  Settle();
  now_ += 19 * kDay;
  EXPECT_THAT(Settle(), IsEmpty());
  EXPECT_EQ(ReconcilePlan().look_again,
            kNow + kCertificateLife - (kCertificateLife + absl::Minutes(5)) / 3);
  EXPECT_EQ(ReconcilePlan().expiry, kNow + kCertificateLife);
  now_ = kNow + kCertificateLife - kDay;
  EXPECT_FALSE(ReconcilePlan().writes.empty());
  EXPECT_EQ(ReconcilePlan().expiry, kNow + kCertificateLife)
      << "as long as the renewal is not written";
}

TEST_F(JobTlsTest, AddsCertificatesForNewWorkersAndKeepsThoseOfRemovedOnes) {
  Settle();
  const std::string before = Worker(1);
  workers_ = 3;
  EXPECT_THAT(Settle(), ElementsAre("a-tls-worker"));
  EXPECT_EQ(Worker(1), before);
  const std::string third = Worker(2);
  EXPECT_FALSE(third.empty());
  workers_ = 1;
  EXPECT_THAT(Settle(), IsEmpty()) << "leaving pods still mount theirs";
  workers_ = 3;
  Settle();
  EXPECT_EQ(Worker(2), third);
}

TEST_F(JobTlsTest, SpreadsManyWorkersOverSeveralSecrets) {
  workers_ = 300;
  Settle();
  EXPECT_EQ(TlsSecretName("a", v1::WORKER, 255), "a-tls-worker");
  EXPECT_EQ(TlsSecretName("a", v1::WORKER, 256), "a-tls-worker-1");
  EXPECT_FALSE(Worker(255).empty());
  EXPECT_TRUE(Worker(256).empty());
  EXPECT_FALSE(Data("a-tls-worker-1", "299.crt").empty());
  EXPECT_LT(live_["a-tls-worker"]->dump().size(), 1u << 20);
}

TEST_F(JobTlsTest, RenewsCertificatesInTheLastThirdOfTheirValidity) {
  Settle();
  const std::string before = Worker(0);
  now_ = ReconcilePlan().look_again;
  EXPECT_THAT(Settle(),
              ElementsAre("a-tls-coordinator", "a-tls-ps", "a-tls-worker", "a-tls-reader"));
  EXPECT_NE(Worker(0), before);
  EXPECT_TRUE(PeersAgree());
  workers_ = 1;  // the surplus certificate is not renewed
  now_ = ReconcilePlan().look_again;
  Settle();
  EXPECT_FALSE(Worker(0).empty());
  EXPECT_TRUE(Worker(1).empty());
}

TEST_F(JobTlsTest, TheNextAuthorityIsTrustedEverywhereBeforeItSigns) {
  Settle();
  const std::string old_authority = Data("a-tls-ca", "ca.crt");
  std::set<std::string> bundles;
  bool changed = false;
  // Two years, hour by hour: a process with the bundle of an hour ago still trusts all others.
  std::string bundle_before = Data("a-tls-worker", "ca.crt");
  for (const absl::Time end = kNow + 730 * kDay; now_ < end; now_ += absl::Hours(1)) {
    if (const TlsPlan plan = ReconcilePlan(); plan.writes.empty()) {
      // Nothing is due before: skip ahead.
      now_ = std::max(now_, plan.look_again - absl::Hours(1));
    }
    Settle();
    ASSERT_TRUE(PeersAgree()) << now_;
    ASSERT_TRUE(tls::CheckTrusted(Worker(0), bundle_before, now_).ok()) << now_;
    ASSERT_TRUE(tls::CheckTrusted(Data("a-tls-ps", "0.crt"), bundle_before, now_).ok()) << now_;
    bundle_before = Data("a-tls-worker", "ca.crt");
    bundles.insert(bundle_before);
    changed = changed || Data("a-tls-ca", "ca.crt") != old_authority;
  }
  EXPECT_TRUE(changed);
  EXPECT_THAT(Data("a-tls-worker", "ca.crt"), Not(HasSubstr(old_authority)))
      << "expired certificates are no longer trusted";
  EXPECT_GE(bundles.size(), 4u);
}

TEST_F(JobTlsTest, RecreatesMissingSecrets) {
  Settle();
  live_.erase("a-tls-worker");
  EXPECT_THAT(Settle(), ElementsAre("a-tls-worker"));
  EXPECT_TRUE(PeersAgree());
}

TEST_F(JobTlsTest, ReplacesALostAuthorityAndStillTrustsItsCertificates) {
  Settle();
  const std::string signed_before = Worker(0);
  const std::string trusted_before = Data("a-tls-worker", "ca.crt");
  live_.erase("a-tls-ca");
  Settle();
  EXPECT_EQ(Worker(0), signed_before);
  EXPECT_TRUE(PeersAgree());
  EXPECT_THAT(Data("a-tls-worker", "ca.crt"), HasSubstr(trusted_before));
  EXPECT_THAT(Data("a-tls-worker", "ca.crt"), HasSubstr(Data("a-tls-ca", "ca.crt")));
}

TEST_F(JobTlsTest, ReplacesDamagedEntries) {
  Settle();
  const std::string other = Worker(1);
  for (const std::string& spoilt : {std::string("garbage"), other, std::string()}) {
    SetData("a-tls-worker", "0.crt", spoilt);
    EXPECT_THAT(Settle(), ElementsAre("a-tls-worker"));
    EXPECT_EQ(security::IdentityOf(*tls::ReadCertificate(Worker(0)))->index, 0u);
    EXPECT_EQ(Worker(1), other);
  }
  SetData("a-tls-ca", "ca.key", "garbage");
  Settle();
  EXPECT_TRUE(PeersAgree());
}

TEST_F(JobTlsTest, TheOperatorPresentsACertificateOfTheJob) {
  Settle();
  const auto credentials = IssueForOperator(job_, *live_["a-tls-ca"], now_);
  ASSERT_TRUE(credentials.ok()) << credentials.status();
  EXPECT_TRUE(
      tls::CheckTrusted(credentials->pair.certificate, Data("a-tls-coordinator", "ca.crt"), now_)
          .ok());
  EXPECT_EQ(security::IdentityOf(*tls::ReadCertificate(credentials->pair.certificate))->role,
            v1::OPERATOR);
  EXPECT_GT(credentials->renew_at, now_);
  EXPECT_EQ(IssueForOperator(job_, Json(), now_).status().code(), absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace sluice::reconciler
