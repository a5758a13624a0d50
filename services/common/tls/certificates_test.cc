#include "services/common/tls/certificates.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"

namespace sluice::tls {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

const absl::Time kNow = absl::FromUnixSeconds(1700000000);
const Validity kYear = {kNow, kNow + absl::Hours(24 * 365)};
const Validity kMonth = {kNow, kNow + absl::Hours(24 * 30)};

KeyPair Authority(const Validity& validity = kYear) {
  absl::StatusOr<KeyPair> authority = MakeAuthority("sluice default/mnist", validity);
  EXPECT_TRUE(authority.ok()) << authority.status();
  return *authority;
}

KeyPair Leaf(const KeyPair& authority, const Validity& validity = kMonth) {
  absl::StatusOr<KeyPair> leaf =
      Issue(authority, {"worker-3", {"worker.sluice.internal"}, "spiffe://sluice/a,b"}, validity);
  EXPECT_TRUE(leaf.ok()) << leaf.status();
  return *leaf;
}

std::string WhyNot(const KeyPair& leaf, absl::string_view bundle, absl::Time now) {
  return std::string(CheckTrusted(leaf.certificate, bundle, now).message());
}

TEST(CertificatesTest, KeepsNamesAsGiven) {
  const absl::StatusOr<Certificate> read = ReadCertificate(Leaf(Authority()).certificate);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->subject, "CN = worker-3");
  EXPECT_THAT(read->dns_names, ElementsAre("worker.sluice.internal"));
  EXPECT_THAT(read->uris, ElementsAre("spiffe://sluice/a,b"));
  EXPECT_EQ(read->validity.from, kMonth.from);
  EXPECT_EQ(read->validity.until, kMonth.until);
  EXPECT_FALSE(read->is_authority);
}

TEST(CertificatesTest, IsTrustedIfBundleHasItsAuthorityAmongOthers) {
  const KeyPair authority = Authority();
  const KeyPair other = Authority();
  const KeyPair leaf = Leaf(authority);
  EXPECT_TRUE(CheckTrusted(leaf.certificate, authority.certificate, kNow).ok());
  EXPECT_TRUE(
      CheckTrusted(leaf.certificate, absl::StrCat(other.certificate, authority.certificate), kNow)
          .ok());
}

TEST(CertificatesTest, IsNotTrustedWithoutItsAuthority) {
  const KeyPair leaf = Leaf(Authority());
  EXPECT_THAT(WhyNot(leaf, Authority().certificate, kNow), HasSubstr("no authority of the bundle"));
  EXPECT_THAT(WhyNot(leaf, "", kNow), HasSubstr("no authority of the bundle"));
}

TEST(CertificatesTest, NamesTimeOfExpiryOrBeginning) {
  const KeyPair authority = Authority();
  const KeyPair leaf = Leaf(authority);
  EXPECT_THAT(WhyNot(leaf, authority.certificate, kMonth.until + absl::Seconds(1)),
              HasSubstr("worker-3 expired on 2023-12-14 22:13:20 UTC"));
  EXPECT_THAT(WhyNot(leaf, authority.certificate, kNow - absl::Hours(1)),
              HasSubstr("is not valid before 2023-11-14"));
}

TEST(CertificatesTest, ExpiresWithAuthorityAtTheLatest) {
  const KeyPair authority = Authority({kNow, kNow + absl::Hours(1)});
  const absl::StatusOr<Certificate> read = ReadCertificate(Leaf(authority).certificate);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->validity.until, kNow + absl::Hours(1));
}

TEST(CertificatesTest, IssuedCertificateCannotIssue) {
  const KeyPair leaf = Leaf(Authority());
  EXPECT_THAT(Issue(leaf, {"evil", {}, ""}, kMonth).status().message(),
              HasSubstr("not the certificate of an authority"));
}

TEST(CertificatesTest, AuthoritiesOfOneNameHaveDifferentSubjects) {
  EXPECT_NE(ReadCertificate(Authority().certificate)->subject,
            ReadCertificate(Authority().certificate)->subject);
}

TEST(CertificatesTest, DetectsKeyOfAnotherCertificate) {
  const KeyPair authority = Authority();
  const KeyPair leaf = Leaf(authority);
  EXPECT_TRUE(CheckKey(leaf).ok());
  EXPECT_THAT(CheckKey({leaf.certificate, Leaf(authority).private_key}).message(),
              HasSubstr("is not that of CN = worker-3"));
  EXPECT_FALSE(Issue({authority.certificate, leaf.private_key}, {"a", {}, ""}, kMonth).ok());
}

TEST(CertificatesTest, SplitsBundleIntoCertificates) {
  const KeyPair first = Authority();
  const KeyPair second = Authority();
  const auto split =
      SplitBundle(absl::StrCat("comment\n", first.certificate, "\n", second.certificate));
  ASSERT_TRUE(split.ok()) << split.status();
  EXPECT_THAT(*split, ElementsAre(first.certificate, second.certificate));
}

TEST(CertificatesTest, RefusesTextWithoutCertificate) {
  for (const char* text :
       {"", "garbage", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"}) {
    EXPECT_EQ(ReadCertificate(text).status().code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_EQ(SplitBundle(text).status().code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_EQ(CheckKey({text, text}).code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_FALSE(CheckTrusted(text, text, kNow).ok()) << text;
  }
}

}  // namespace
}  // namespace sluice::tls
