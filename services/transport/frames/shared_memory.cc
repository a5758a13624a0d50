#include "services/transport/frames/shared_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <random>
#include <string>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"

namespace sluice {
namespace {

// Set by the client that makes the file. A file that a server maps must have the first two.
constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

size_t RoundUp(size_t bytes) {
  return (bytes + SharedMemory::kGranule - 1) / SharedMemory::kGranule * SharedMemory::kGranule;
}

size_t GranulesOf(uint64_t bytes) { return RoundUp(bytes) / SharedMemory::kGranule; }

absl::Status Errno(absl::string_view what) {
  return absl::UnavailableError(absl::StrCat(what, ": ", std::strerror(errno)));
}

absl::Status NotAsOffered(absl::string_view what) {
  return absl::FailedPreconditionError(absl::StrCat("the offered shared memory ", what));
}

uint64_t RandomToken() {
  std::random_device random;
  return uint64_t{random()} << 32 | random();
}

}  // namespace

SharedMemory::SharedMemory(char* base, size_t half_bytes, int descriptor, bool client)
    : base_(base), half_bytes_(half_bytes), client_(client), descriptor_(descriptor) {}

SharedMemory::~SharedMemory() {
  CloseDescriptor();
  munmap(base_, FileBytes(half_bytes_));
}

size_t SharedMemory::FlagBytes(size_t half_bytes) {
  return RoundUp(half_bytes / kGranule * sizeof(Flag));
}

size_t SharedMemory::FileBytes(size_t half_bytes) {
  return kGranule + 2 * FlagBytes(half_bytes) + 2 * half_bytes;
}

SharedMemory::Flag* SharedMemory::Flags(bool mine) const {
  const size_t half = client_ == mine ? 0 : 1;
  return reinterpret_cast<Flag*>(base_ + kGranule + half * FlagBytes(half_bytes_));
}

char* SharedMemory::Half(bool mine) const {
  const size_t half = client_ == mine ? 0 : 1;
  return base_ + kGranule + 2 * FlagBytes(half_bytes_) + half * half_bytes_;
}

absl::StatusOr<std::shared_ptr<SharedMemory>> SharedMemory::Create(size_t half_bytes) {
  half_bytes = RoundUp(half_bytes);
  if (half_bytes == 0 || half_bytes > kMaxHalfBytes) {
    return absl::ResourceExhaustedError(absl::StrCat("shared memory of ", half_bytes, " bytes"));
  }

  const int file = memfd_create("sluice-stream", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (file < 0) return Errno("no shared memory");
  auto close_file = absl::MakeCleanup([file] { close(file); });
  const size_t bytes = FileBytes(half_bytes);
  if (ftruncate(file, static_cast<off_t>(bytes)) != 0 || fcntl(file, F_ADD_SEALS, kSeals) != 0) {
    return Errno("no shared memory");
  }

  void* base = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (base == MAP_FAILED) return Errno("shared memory cannot be mapped");

  const uint64_t token = RandomToken();
  std::memcpy(base, &token, sizeof(token));
  std::move(close_file).Cancel();
  return std::shared_ptr<SharedMemory>(
      new SharedMemory(static_cast<char*>(base), half_bytes, file, /*client=*/true));
}

absl::StatusOr<std::shared_ptr<SharedMemory>> SharedMemory::Open(const v1::SharedMemory& offer) {
  const size_t half_bytes = offer.half_bytes();
  if (half_bytes == 0 || half_bytes > kMaxHalfBytes || half_bytes % kGranule != 0) {
    return NotAsOffered(absl::StrCat("has halves of ", offer.half_bytes(),
                                     " bytes; a half has a multiple of ", kGranule, ", ",
                                     kMaxHalfBytes, " at most"));
  }

  const std::string path = absl::StrCat("/proc/", offer.pid(), "/fd/", offer.file());
  // Whatever file the number names, opening it must neither block nor have an effect.
  struct stat named {};
  if (stat(path.c_str(), &named) != 0 || !S_ISREG(named.st_mode)) {
    return NotAsOffered("does not exist");
  }

  const int file = open(path.c_str(), O_RDWR | O_CLOEXEC | O_NONBLOCK);
  if (file < 0) return NotAsOffered(absl::StrCat("cannot be opened: ", std::strerror(errno)));
  const auto close_file = absl::MakeCleanup([file] { close(file); });

  constexpr int kNeeded = F_SEAL_SHRINK | F_SEAL_GROW;
  const int seals = fcntl(file, F_GET_SEALS);
  if (seals < 0 || (seals & kNeeded) != kNeeded) return NotAsOffered("may change its size");

  const size_t bytes = FileBytes(half_bytes);
  struct stat opened {};
  if (fstat(file, &opened) != 0 || static_cast<size_t>(opened.st_size) != bytes) {
    return NotAsOffered("has a different size");
  }

  void* base = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (base == MAP_FAILED) return Errno("shared memory cannot be mapped");
  std::shared_ptr<SharedMemory> memory(
      new SharedMemory(static_cast<char*>(base), half_bytes, /*descriptor=*/-1, /*client=*/false));

  uint64_t token = 0;
  std::memcpy(&token, base, sizeof(token));
  if (token != offer.token()) return NotAsOffered("is a different one");
  return memory;
}

v1::SharedMemory SharedMemory::Offer() const {
  v1::SharedMemory offer;
  offer.set_pid(static_cast<uint64_t>(getpid()));
  offer.set_half_bytes(half_bytes_);

  uint64_t token = 0;
  std::memcpy(&token, base_, sizeof(token));
  offer.set_token(token);

  MutexLock lock(&mutex_);
  offer.set_file(static_cast<uint32_t>(descriptor_));
  return offer;
}

void SharedMemory::CloseDescriptor() {
  MutexLock lock(&mutex_);
  if (descriptor_ >= 0) close(descriptor_);
  descriptor_ = -1;
}

void SharedMemory::Reclaim() {
  const Flag* flags = Flags(/*mine=*/true);
  while (!sent_.empty() && flags[sent_.front().first].load(std::memory_order_acquire) == 0) {
    sent_.pop_front();
  }
  if (sent_.empty()) next_ = 0;  // start over where the memory is still cached
}

std::optional<size_t> SharedMemory::Allocate(size_t count) {
  Reclaim();
  const size_t granules = half_bytes_ / kGranule;
  const size_t oldest = sent_.empty() ? granules : sent_.front().first;

  // In the ring, a piece is never split: the room behind the newest piece counts, then that before
  // the oldest one.
  size_t first = next_;
  if (!sent_.empty() && next_ <= oldest) {  // wrapped around: room up to the oldest
    if (oldest - next_ < count) return std::nullopt;
  } else if (granules - next_ < count) {
    if (sent_.empty() || oldest < count) return std::nullopt;
    first = 0;
  }

  sent_.push_back({first, count});
  next_ = first + count;
  return first;
}

std::optional<v1::SharedPayload> SharedMemory::Put(const absl::Cord& payload) {
  std::optional<size_t> first;
  {
    MutexLock lock(&mutex_);
    first = Allocate(GranulesOf(payload.size()));
    if (!first) return std::nullopt;
    // Marks it as taken before another thread can reclaim.
    Flags(/*mine=*/true)[*first].store(1, std::memory_order_relaxed);
  }

  char* to = Half(/*mine=*/true) + *first * kGranule;
  for (const absl::string_view chunk : payload.Chunks()) {
    std::memcpy(to, chunk.data(), chunk.size());
    to += chunk.size();
  }

  // So that a peer that learns of the place sees the payload's bytes.
  Flags(/*mine=*/true)[*first].store(1, std::memory_order_release);

  v1::SharedPayload place;
  place.set_offset(*first * kGranule);
  place.set_bytes(payload.size());
  return place;
}

absl::StatusOr<absl::Cord> SharedMemory::Take(const v1::SharedPayload& place) {
  if (place.bytes() == 0 || place.offset() % kGranule != 0 || place.offset() > half_bytes_ ||
      place.bytes() > half_bytes_ - place.offset()) {
    return absl::InvalidArgumentError(absl::StrCat("a payload of ", place.bytes(), " bytes at ",
                                                   place.offset(), " of ", half_bytes_,
                                                   " bytes of shared memory is not inside it"));
  }

  Flag* const flag = Flags(/*mine=*/false) + place.offset() / kGranule;
  flag->load(std::memory_order_acquire);  // see the bytes written before the place was sent

  const absl::string_view bytes(Half(/*mine=*/false) + place.offset(), place.bytes());
  return absl::MakeCordFromExternal(
      bytes, [flag, self = shared_from_this()] { flag->store(0, std::memory_order_release); });
}

}  // namespace sluice
