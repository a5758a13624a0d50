#include "services/worker/collective/gloo_group.h"

#include <net/if.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <csignal>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "services/common/threads/mutex.h"
#include "services/protocol/layout.h"

namespace sluice::worker {
namespace {

// Tensors of several blocks.
v1::TensorTable Table() {
  v1::TensorTable table;
  for (const int64_t elements : {int64_t{200000}, int64_t{1}, int64_t{150001}, int64_t{7}}) {
    v1::TensorSpec& tensor = *table.add_tensors();
    tensor.set_name(absl::StrCat("t", table.tensors_size()));
    tensor.add_shape(elements);
    tensor.set_dtype(v1::FLOAT64);
  }
  return table;
}

absl::Cord Filled(int64_t elements, double value) {
  const std::vector<double> values(static_cast<size_t>(elements), value);
  return absl::Cord(
      std::string(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(double)));
}

// Members of one view in one process.
class Members {
 public:
  explicit Members(size_t count, absl::Duration idle_timeout = absl::Milliseconds(7654))
      : idle_timeout_(idle_timeout), layout_(*MakeLayout(table_, 16)), groups_(count) {
    signal(SIGPIPE, SIG_IGN);
    std::vector<uint64_t> incarnations;
    for (size_t i = 0; i < count; ++i) incarnations.push_back(100 + i);
    for (uint32_t rank = 0; rank < count; ++rank) {
      plans_.push_back(std::make_shared<ReductionPlan>(
          MakeReductionPlan(table_, layout_, {0, 1, 2, 3}, incarnations, rank)));
    }
  }

  void Start(uint32_t rank) {
    GlooGroup::Options options;
    options.plan = plans_[rank];
    options.host = [] { return "127.0.0.1"; };
    options.meet = [this, rank](uint64_t plan_hash, const std::vector<std::string>& addresses) {
      return Meet(rank, plan_hash, addresses);
    };
    options.done = [this, rank](uint64_t step, absl::StatusOr<ReducedPart> part) {
      MutexLock lock(&mutex_);
      done_[{rank, step}] = std::move(part);
      changed_.SignalAll();
    };
    options.connect_timeout = absl::Seconds(10);
    options.idle_timeout = idle_timeout_;
    groups_[rank] = std::make_unique<GlooGroup>(std::move(options));
  }
  void StartAll() {
    for (uint32_t rank = 0; rank < groups_.size(); ++rank) Start(rank);
  }
  void Stop(uint32_t rank) { groups_[rank].reset(); }
  GlooGroup& group(uint32_t rank) { return *groups_[rank]; }
  ReductionPlan& plan(uint32_t rank) { return *plans_[rank]; }

  // Gradients of tensors 0 and 2 by all members, of 1 by rank 0 only, of 3 by no member.
  void Reduce(uint32_t rank, uint64_t step, double value) {
    DenseGradients gradients(4);
    gradients[0] = Filled(200000, value);
    if (rank == 0) gradients[1] = Filled(1, value);
    gradients[2] = Filled(150001, 10 * value);
    groups_[rank]->Reduce(step, std::move(gradients));
  }

  absl::StatusOr<ReducedPart> Wait(uint32_t rank, uint64_t step) {
    MutexLock lock(&mutex_);
    const absl::Time until = absl::Now() + absl::Seconds(60);
    while (done_.count({rank, step}) == 0) {
      if (changed_.WaitWithDeadline(&mutex_, until)) return absl::DeadlineExceededError("hangs");
    }
    return done_[{rank, step}];
  }

  // Checks the sums of tensors 0, 1, 2 after all members have reduced, and that no part is missing.
  void ExpectSums(uint64_t step, double zero, double one, double two) {
    uint64_t elements = 0;
    for (uint32_t rank = 0; rank < groups_.size(); ++rank) {
      const absl::StatusOr<ReducedPart> part = Wait(rank, step);
      ASSERT_TRUE(part.ok()) << part.status();
      const ReductionPlan::Part& own = plans_[rank]->own();
      ASSERT_EQ(part->size(), own.pieces.size());
      for (size_t i = 0; i < part->size(); ++i) {
        const uint32_t tensor = own.pieces[i].place;
        ASSERT_EQ((*part)[i].has_value(), tensor != 3) << tensor;
        if (tensor == 3) continue;
        const std::string bytes(*(*part)[i]);
        std::vector<double> values(bytes.size() / sizeof(double));
        std::memcpy(values.data(), bytes.data(), bytes.size());
        const double expected = tensor == 0 ? zero : tensor == 1 ? one : two;
        ASSERT_EQ(values, std::vector<double>(own.pieces[i].count, expected)) << tensor;
        elements += values.size();
      }
    }
    EXPECT_EQ(elements, 200000u + 1 + 150001);
  }

 private:
  absl::StatusOr<std::optional<std::vector<MetMember>>> Meet(
      uint32_t rank, uint64_t plan_hash, const std::vector<std::string>& addresses) {
    MutexLock lock(&mutex_);
    said_[rank] = {plan_hash, addresses};
    if (said_.size() < groups_.size()) return std::nullopt;
    std::vector<MetMember> all;
    for (const auto& [other, said] : said_) all.push_back({said.first, said.second[rank]});
    return all;
  }

  const absl::Duration idle_timeout_;
  const v1::TensorTable table_ = Table();
  const v1::Layout layout_;
  std::vector<std::shared_ptr<ReductionPlan>> plans_;
  Mutex mutex_;
  CondVar changed_;
  // Plan hash and addresses, by rank.
  std::map<uint32_t, std::pair<uint64_t, std::vector<std::string>>> said_ ABSL_GUARDED_BY(mutex_);
  std::map<std::pair<uint32_t, uint64_t>, absl::StatusOr<ReducedPart>> done_
      ABSL_GUARDED_BY(mutex_);
  std::vector<std::unique_ptr<GlooGroup>> groups_;
};

TEST(GlooGroupTest, SingleMemberGetsItsOwnGradients) {
  Members members(1);
  members.StartAll();
  members.Reduce(0, 5, 3);
  members.ExpectSums(5, 3, 3, 30);
  EXPECT_EQ(members.group(0).sent_bytes(), 0u);
}

TEST(GlooGroupTest, EachMemberGetsTheSumOfItsPart) {
  for (const size_t count : {2, 3, 5}) {
    Members members(count);
    members.StartAll();
    double sum = 0;
    for (uint32_t rank = 0; rank < count; ++rank) {
      sum += rank + 1;
      members.Reduce(rank, 5, rank + 1);
    }
    members.ExpectSums(5, sum, 1, 10 * sum);
  }
}

TEST(GlooGroupTest, StepsFollowEachOther) {
  Members members(2);
  members.StartAll();
  for (uint64_t step = 0; step < 20; ++step) {
    // One member is early in even steps, the other in odd steps.
    const auto early = static_cast<uint32_t>(step % 2);
    members.Reduce(early, step, static_cast<double>(step));
    members.Reduce(1 - early, step, 1);
    members.ExpectSums(step, static_cast<double>(step) + 1,
                       early == 0 ? static_cast<double>(step) : 1,
                       10 * (static_cast<double>(step) + 1));
  }
}

TEST(GlooGroupTest, SendsOnlyTheOtherMembersParts) {
  Members members(3);
  members.StartAll();
  for (uint32_t rank = 0; rank < 3; ++rank) members.Reduce(rank, 1, 1);
  members.ExpectSums(1, 3, 1, 30);
  const ReductionPlan& plan = members.plan(0);
  // With the 4 tensors' flags, rounded up to 8 bytes, in each message.
  EXPECT_EQ(members.group(0).sent_bytes(), plan.parts[1].bytes + plan.parts[2].bytes + 2 * 8);
}

TEST(GlooGroupTest, MemberThatVanishesDuringStepIsAnErrorForAllOtherMembers) {
  Members members(3);
  members.StartAll();
  for (uint32_t rank = 0; rank < 3; ++rank) members.Reduce(rank, 1, 1);
  members.ExpectSums(1, 3, 1, 30);
  members.Reduce(0, 2, 1);
  members.Reduce(1, 2, 1);
  members.Stop(2);
  for (const uint32_t rank : {0u, 1u}) {
    const absl::StatusOr<ReducedPart> part = members.Wait(rank, 2);
    EXPECT_TRUE(absl::IsUnavailable(part.status())) << part.status();
    // The group stays broken.
    members.Reduce(rank, 3, 1);
    EXPECT_TRUE(absl::IsUnavailable(members.Wait(rank, 3).status()));
  }
}

// Counts this process's sockets that break when the peer acknowledges nothing for so long.
int SocketsThatEndWhenSilent(int milliseconds) {
  int count = 0;
  for (int fd = 0; fd < 1024; ++fd) {
    int value = 0;
    socklen_t size = sizeof(value);
    const bool limited =
        getsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &value, &size) == 0 && value == milliseconds;
    size = sizeof(value);
    const bool kept = getsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &value, &size) == 0 && value != 0;
    if (limited && kept) ++count;
  }
  return count;
}

TEST(GlooGroupTest, SilentPeerBreaksBothSidesOfEveryConnection) {
  Members members(3);
  members.StartAll();
  for (uint32_t rank = 0; rank < 3; ++rank) members.Reduce(rank, 1, 1);
  members.ExpectSums(1, 3, 1, 30);
  EXPECT_EQ(SocketsThatEndWhenSilent(7654), 2 * 3);
}

// Switches loopback in this process's own network namespace.
bool SetLoopback(bool up) {
  const int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  ifreq request = {};
  std::strncpy(request.ifr_name, "lo", IFNAMSIZ - 1);
  bool done = ioctl(fd, SIOCGIFFLAGS, &request) == 0;
  request.ifr_flags =
      static_cast<int16_t>(up ? request.ifr_flags | IFF_UP : request.ifr_flags & ~IFF_UP);
  done = done && ioctl(fd, SIOCSIFFLAGS, &request) == 0;
  close(fd);
  return done;
}

TEST(GlooGroupTest, NetworkOutageIsAnErrorForWaitingAndComputingMembers) {
  if (unshare(CLONE_NEWNET) != 0 && unshare(CLONE_NEWUSER | CLONE_NEWNET) != 0) {
    GTEST_SKIP() << "this process may have no network namespace of its own";
  }
  ASSERT_TRUE(SetLoopback(true));
  Members members(2, /*idle_timeout=*/absl::Seconds(2));
  members.StartAll();
  members.Reduce(0, 1, 1);
  members.Reduce(1, 1, 1);
  members.ExpectSums(1, 2, 1, 20);
  ASSERT_TRUE(SetLoopback(false));
  members.Reduce(0, 2, 1);
  EXPECT_TRUE(absl::IsUnavailable(members.Wait(0, 2).status()));
  members.Reduce(1, 2, 1);
  EXPECT_TRUE(absl::IsUnavailable(members.Wait(1, 2).status()));
  ASSERT_TRUE(SetLoopback(true));
}

TEST(GlooGroupTest, WaitingGroupEndsImmediatelyWhenGivenUp) {
  Members members(2);
  members.StartAll();
  members.Reduce(0, 1, 1);
  members.Reduce(1, 1, 1);
  members.ExpectSums(1, 2, 1, 20);
  members.Reduce(0, 2, 1);
  const absl::Time begin = absl::Now();
  members.Stop(0);
  EXPECT_LT(absl::Now() - begin, absl::Seconds(30));
}

TEST(GlooGroupTest, GroupThatNeverFormsCanBeGivenUp) {
  Members members(2);
  members.Start(0);
  members.Reduce(0, 1, 1);
  members.Stop(0);
}

TEST(GlooGroupTest, MemberThatLeavesBeforeAllAreConnectedIsAnError) {
  Members members(2);
  members.Start(0);
  members.Start(1);
  members.Stop(1);
  members.Reduce(0, 1, 1);
  EXPECT_TRUE(absl::IsUnavailable(members.Wait(0, 1).status()));
}

TEST(GlooGroupTest, MembersWithDifferentPlansDoNotSum) {
  Members members(2);
  members.plan(1).hash ^= 1;
  members.StartAll();
  for (const uint32_t rank : {0u, 1u}) {
    members.Reduce(rank, 1, 1);
    EXPECT_TRUE(absl::IsInvalidArgument(members.Wait(rank, 1).status()));
  }
}

}  // namespace
}  // namespace sluice::worker
