#include "services/common/process/processors.h"

#include <map>
#include <memory>
#include <string>

#include "absl/strings/cord.h"
#include "gtest/gtest.h"
#include "services/common/io/fake_file_system.h"

namespace sluice {
namespace {

// The quota of a process in the groups `membership`, with these files below /cgroup.
int QuotaWith(const std::map<std::string, std::string>& contents, const std::string& membership) {
  FakeFileSystem files;
  for (const auto& [name, content] : contents) {
    const std::string path = JoinPath("/cgroup", name);
    EXPECT_TRUE(files.CreateDirectories(DirectoryOf(path)).ok());
    EXPECT_TRUE(AtomicWriteFile(&files, path, absl::Cord(content), "t").ok());
  }
  return ProcessorQuota(&files, membership, "/cgroup");
}

TEST(ProcessorQuotaTest, IsThatOfVersion2RoundedUp) {
  EXPECT_EQ(QuotaWith({{"pod/cpu.max", "200000 100000\n"}}, "0::/pod\n"), 2);
  EXPECT_EQ(QuotaWith({{"pod/cpu.max", "150000 100000\n"}}, "0::/pod\n"), 2);
  EXPECT_EQ(QuotaWith({{"pod/cpu.max", "1000 100000\n"}}, "0::/pod\n"), 1);
  EXPECT_EQ(QuotaWith({{"pod/cpu.max", "max 100000\n"}}, "0::/pod\n"), 0);
  EXPECT_EQ(QuotaWith({}, "0::/pod\n"), 0);
  EXPECT_EQ(QuotaWith({{"cpu.max", "300000 100000\n"}}, "0::/\n"), 3) << "in a container";
}

TEST(ProcessorQuotaTest, IsTheSmallestOfTheGroupsAbove) {
  const std::map<std::string, std::string> files = {{"a/cpu.max", "400000 100000\n"},
                                                    {"a/b/cpu.max", "200000 100000\n"},
                                                    {"a/b/c/cpu.max", "max 100000\n"}};
  EXPECT_EQ(QuotaWith(files, "0::/a/b/c\n"), 2);
  EXPECT_EQ(QuotaWith(files, "0::/a\n"), 4);
  EXPECT_EQ(QuotaWith(files, "0::/\n"), 0);
}

TEST(ProcessorQuotaTest, IsThatOfVersion1) {
  const std::map<std::string, std::string> files = {
      {"cpu,cpuacct/pod/cpu.cfs_quota_us", "250000\n"},
      {"cpu,cpuacct/pod/cpu.cfs_period_us", "100000\n"},
      {"cpu,cpuacct/cpu.cfs_quota_us", "-1\n"},
      {"cpu,cpuacct/cpu.cfs_period_us", "100000\n"}};
  EXPECT_EQ(QuotaWith(files, "7:memory:/x\n4:cpu,cpuacct:/pod\n0::/\n"), 3);
  EXPECT_EQ(QuotaWith(files, "4:cpu,cpuacct:/\n"), 0);
}

// A container sees its own group as the root, and the host's path in /proc.
TEST(ProcessorQuotaTest, IsThatOfTheMountIfThePathIsTheHosts) {
  EXPECT_EQ(QuotaWith({{"cpu/cpu.cfs_quota_us", "100000"}, {"cpu/cpu.cfs_period_us", "100000"}},
                      "4:cpu:/docker/0123\n"),
            1);
}

TEST(ProcessorQuotaTest, IgnoresFilesThatItCannotRead) {
  EXPECT_EQ(QuotaWith({{"cpu.max", ""}}, "0::/\n"), 0);
  EXPECT_EQ(QuotaWith({{"cpu.max", "100000"}}, "0::/\n"), 0);
  EXPECT_EQ(QuotaWith({{"cpu.max", "100000 0"}}, "0::/\n"), 0);
  EXPECT_EQ(QuotaWith({}, "nonsense\n::\n4:cpu:\n"), 0);
}

TEST(AvailableProcessorsTest, AreAtLeastOne) { EXPECT_GE(AvailableProcessors(), 1); }

}  // namespace
}  // namespace sluice
