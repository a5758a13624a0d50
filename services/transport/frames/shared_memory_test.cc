#include "services/transport/frames/shared_memory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"

namespace sluice {
namespace {

using ::testing::HasSubstr;

constexpr size_t kGranule = SharedMemory::kGranule;

struct Ends {
  std::shared_ptr<SharedMemory> client;
  std::shared_ptr<SharedMemory> server;
};

Ends BothEnds(size_t granules) {
  Ends ends;
  ends.client = *SharedMemory::Create(granules * kGranule);
  auto opened = SharedMemory::Open(ends.client->Offer());
  EXPECT_TRUE(opened.ok()) << opened.status();
  ends.server = *std::move(opened);
  ends.client->CloseDescriptor();
  return ends;
}

absl::Cord Payload(char letter, size_t bytes) { return absl::Cord(std::string(bytes, letter)); }

TEST(SharedMemoryTest, OneEndTakesPayloadOfTheOther) {
  Ends ends = BothEnds(8);
  absl::Cord chunks("in several ");
  chunks.Append(absl::MakeCordFromExternal("chunks", [] {}));
  const auto there = ends.client->Put(chunks);
  const auto back = ends.server->Put(Payload('b', 5000));
  ASSERT_TRUE(there.has_value());
  ASSERT_TRUE(back.has_value());
  EXPECT_EQ(*ends.server->Take(*there), "in several chunks");
  EXPECT_EQ(*ends.client->Take(*back), std::string(5000, 'b'));
}

TEST(SharedMemoryTest, LastReferenceFreesRoom) {
  Ends ends = BothEnds(4);
  absl::Cord kept;
  {
    const absl::Cord taken = *ends.server->Take(*ends.client->Put(Payload('a', 3 * kGranule)));
    kept = taken.Subcord(kGranule, 1000);
  }
  EXPECT_FALSE(ends.client->Put(Payload('b', 2 * kGranule)).has_value());
  EXPECT_EQ(kept, std::string(1000, 'a'));
  kept.Clear();
  EXPECT_TRUE(ends.client->Put(Payload('b', 4 * kGranule)).has_value());
}

TEST(SharedMemoryTest, OverwritesNothingWithoutRoom) {
  Ends ends = BothEnds(4);
  std::vector<absl::Cord> held;
  for (const char letter : {'a', 'b', 'c', 'd'}) {
    held.push_back(*ends.server->Take(*ends.client->Put(Payload(letter, kGranule))));
  }
  EXPECT_FALSE(ends.client->Put(Payload('e', 1)).has_value());
  held[1].Clear();  // room comes back in order: the first is still held
  EXPECT_FALSE(ends.client->Put(Payload('e', 1)).has_value());
  held[0].Clear();
  ASSERT_TRUE(ends.client->Put(Payload('e', 2 * kGranule)).has_value());
  EXPECT_FALSE(ends.client->Put(Payload('f', 1)).has_value());
  EXPECT_EQ(held[2], std::string(kGranule, 'c'));
  EXPECT_EQ(held[3], std::string(kGranule, 'd'));
}

TEST(SharedMemoryTest, WrapsAroundTheEnd) {
  Ends ends = BothEnds(5);
  std::vector<absl::Cord> held;
  size_t sent = 0;
  // Sizes that never end exactly at the end of the ring; two pieces are held at any time.
  for (int i = 0; i < 200; ++i) {
    const size_t bytes = (1 + i % 3) * kGranule - i;
    const auto place = ends.client->Put(Payload(static_cast<char>('a' + i % 26), bytes));
    if (place.has_value()) {
      ++sent;
      held.push_back(*ends.server->Take(*place));
      EXPECT_EQ(held.back(), std::string(bytes, static_cast<char>('a' + i % 26)));
    }
    if (!place.has_value() || held.size() > 1) held.erase(held.begin());
  }
  EXPECT_GT(sent, 100);
  held.clear();
  EXPECT_TRUE(ends.client->Put(Payload('z', 5 * kGranule)).has_value());
}

TEST(SharedMemoryTest, DirectionsDoNotOverlap) {
  Ends ends = BothEnds(2);
  const auto there = ends.client->Put(Payload('a', 2 * kGranule));
  const auto back = ends.server->Put(Payload('b', 2 * kGranule));
  EXPECT_EQ(*ends.server->Take(*there), std::string(2 * kGranule, 'a'));
  EXPECT_EQ(*ends.client->Take(*back), std::string(2 * kGranule, 'b'));
}

TEST(SharedMemoryTest, PayloadsOutliveOtherEnd) {
  Ends ends = BothEnds(4);
  const auto place = ends.client->Put(Payload('a', kGranule));
  ends.client.reset();
  absl::Cord taken = *ends.server->Take(*place);
  ends.server.reset();
  EXPECT_EQ(taken, std::string(kGranule, 'a'));
}

TEST(SharedMemoryTest, RefusesPlaceOutsideMemory) {
  Ends ends = BothEnds(4);
  const auto take = [&](uint64_t offset, uint64_t bytes) {
    v1::SharedPayload place;
    place.set_offset(offset);
    place.set_bytes(bytes);
    return ends.server->Take(place).status();
  };
  EXPECT_TRUE(take(0, 4 * kGranule).ok());
  for (const auto& [offset, bytes] :
       std::vector<std::pair<uint64_t, uint64_t>>{{0, 4 * kGranule + 1},
                                                  {kGranule, 4 * kGranule},
                                                  {4 * kGranule, 1},
                                                  {5 * kGranule, 1},
                                                  {~uint64_t{0} - kGranule + 1, kGranule},
                                                  {kGranule, ~uint64_t{0}},
                                                  {8, 8},
                                                  {0, 0}}) {
    EXPECT_EQ(take(offset, bytes).code(), absl::StatusCode::kInvalidArgument)
        << bytes << " at " << offset;
  }
}

TEST(SharedMemoryTest, RefusesIncorrectOffer) {
  const auto memory = *SharedMemory::Create(4 * kGranule);
  const auto refusal = [&](auto change) {
    v1::SharedMemory offer = memory->Offer();
    change(&offer);
    const auto opened = SharedMemory::Open(offer);
    EXPECT_EQ(opened.status().code(), absl::StatusCode::kFailedPrecondition) << opened.status();
    return std::string(opened.status().message());
  };
  EXPECT_THAT(refusal([](auto* o) { o->set_token(o->token() + 1); }), HasSubstr("a different one"));
  EXPECT_THAT(refusal([](auto* o) { o->set_half_bytes(8 * kGranule); }),
              HasSubstr("a different size"));
  EXPECT_THAT(refusal([](auto* o) { o->set_half_bytes(100); }), HasSubstr("halves of 100"));
  EXPECT_THAT(refusal([](auto* o) { o->set_half_bytes(0); }), HasSubstr("halves of 0"));
  EXPECT_THAT(refusal([](auto* o) { o->set_half_bytes(~uint64_t{0}); }), HasSubstr("halves of"));
  EXPECT_THAT(refusal([](auto* o) { o->set_half_bytes(SharedMemory::kMaxHalfBytes + kGranule); }),
              HasSubstr("67108864 at most"));
  EXPECT_THAT(refusal([](auto* o) { o->set_file(99999); }), HasSubstr("does not exist"));
  EXPECT_THAT(refusal([](auto* o) { o->set_pid(0); }), HasSubstr("does not exist"));
}

TEST(SharedMemoryTest, RefusesFileThatMayShrink) {
  // A peer that shortens it later would kill the reading process.
  const auto memory = *SharedMemory::Create(4 * kGranule);
  FILE* file = tmpfile();
  ASSERT_NE(file, nullptr);
  v1::SharedMemory offer = memory->Offer();
  offer.set_file(static_cast<uint32_t>(fileno(file)));
  EXPECT_THAT(std::string(SharedMemory::Open(offer).status().message()),
              HasSubstr("may change its size"));
  fclose(file);
}

TEST(SharedMemoryTest, RefusesPipeAtOnce) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  v1::SharedMemory offer = (*SharedMemory::Create(kGranule))->Offer();
  offer.set_file(static_cast<uint32_t>(ends[0]));
  EXPECT_THAT(std::string(SharedMemory::Open(offer).status().message()),
              HasSubstr("does not exist"));
  close(ends[0]);
  close(ends[1]);
}

TEST(SharedMemoryTest, RefusesUnreasonableSizes) {
  EXPECT_FALSE(SharedMemory::Create(0).ok());
  EXPECT_FALSE(SharedMemory::Create(size_t{1} << 40).ok());
}

}  // namespace
}  // namespace sluice
