#include "services/common/arithmetic/cord_reader.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "services/common/arithmetic/kernels.h"
#include "services/common/status_macros.h"

namespace sluice {
namespace {

// Small enough to share an L1 cache of 32 KiB with the results: then a misaligned chunk
// costs no more than an aligned one, while a scratch of 16 KiB costs a third more
// (bench:arithmetic_benchmark).
constexpr size_t kScratchBytes = 4 * 1024;

template <typename T>
bool IsAligned(const char* data) {
  return reinterpret_cast<uintptr_t>(data) % alignof(T) == 0;
}

// Splits chunks into runs of elements. Keeps the first bytes of an element until the rest comes.
template <typename T>
class RunReader {
 public:
  explicit RunReader(absl::FunctionRef<void(size_t, absl::Span<const T>)> visit) : visit_(visit) {}

  void Read(absl::string_view chunk) {
    if (carried_ > 0) {
      const size_t taken = std::min(sizeof(T) - carried_, chunk.size());
      std::memcpy(carry_ + carried_, chunk.data(), taken);
      carried_ += taken;
      chunk.remove_prefix(taken);
      if (carried_ < sizeof(T)) return;
      carried_ = 0;
      ReadWhole(carry_, 1);
    }

    // The carried element is whole; the rest of the chunk begins with the next one.
    const size_t count = chunk.size() / sizeof(T);
    ReadWhole(chunk.data(), count);
    chunk.remove_prefix(count * sizeof(T));

    std::memcpy(carry_, chunk.data(), chunk.size());
    carried_ = chunk.size();
  }

 private:
  void ReadWhole(const char* data, size_t count) {
    if (IsAligned<T>(data)) {
      if (count > 0) Visit(reinterpret_cast<const T*>(data), count);
      return;
    }

    // Not aligned: by way of the scratch buffer.
    while (count > 0) {
      const size_t part = std::min(count, kScratchBytes / sizeof(T));
      std::memcpy(scratch_, data, part * sizeof(T));
      Visit(scratch_, part);
      data += part * sizeof(T);
      count -= part;
    }
  }

  void Visit(const T* data, size_t count) {
    visit_(offset_, absl::MakeConstSpan(data, count));
    offset_ += count;
  }

  absl::FunctionRef<void(size_t, absl::Span<const T>)> visit_;
  size_t offset_ = 0;
  size_t carried_ = 0;
  alignas(T) char carry_[sizeof(T)];
  alignas(64) T scratch_[kScratchBytes / sizeof(T)];
};

absl::Status CheckSize(const absl::Cord& payload, size_t count, size_t element_bytes) {
  if (payload.size() == count * element_bytes) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("a payload of ", payload.size(), " bytes where ",
                                                 count, " elements of ", element_bytes,
                                                 " bytes are expected"));
}

}  // namespace

template <typename T>
absl::Status ForEachRun(const absl::Cord& payload,
                        absl::FunctionRef<void(size_t offset, absl::Span<const T> run)> visit) {
  if (payload.size() % sizeof(T) != 0) {
    return absl::InvalidArgumentError(absl::StrCat("a payload of ", payload.size(),
                                                   " bytes is not a whole number of elements of ",
                                                   sizeof(T), " bytes"));
  }
  RunReader<T> reader(visit);
  for (absl::string_view chunk : payload.Chunks()) reader.Read(chunk);
  return absl::OkStatus();
}

template <typename T>
absl::Status AddPayload(const absl::Cord& payload, absl::Span<ComputeType<T>> accumulator) {
  RETURN_IF_ERROR(CheckSize(payload, accumulator.size(), sizeof(T)));
  return ForEachRun<T>(payload, [accumulator](size_t offset, absl::Span<const T> run) {
    Add(run, accumulator.subspan(offset, run.size()));
  });
}

absl::Status CopyPayload(const absl::Cord& payload, absl::Span<char> to) {
  RETURN_IF_ERROR(CheckSize(payload, to.size(), 1));
  char* next = to.data();
  for (absl::string_view chunk : payload.Chunks()) {
    std::memcpy(next, chunk.data(), chunk.size());
    next += chunk.size();
  }
  return absl::OkStatus();
}

#define SLUICE_FOR_EACH_RUN(T)                           \
  template absl::Status ForEachRun<T>(const absl::Cord&, \
                                      absl::FunctionRef<void(size_t, absl::Span<const T>)>)
SLUICE_FOR_EACH_RUN(float);
SLUICE_FOR_EACH_RUN(double);
SLUICE_FOR_EACH_RUN(BFloat16);
SLUICE_FOR_EACH_RUN(Float16);
SLUICE_FOR_EACH_RUN(int64_t);
#undef SLUICE_FOR_EACH_RUN

template absl::Status AddPayload<float>(const absl::Cord&, absl::Span<float>);
template absl::Status AddPayload<double>(const absl::Cord&, absl::Span<double>);
template absl::Status AddPayload<BFloat16>(const absl::Cord&, absl::Span<float>);
template absl::Status AddPayload<Float16>(const absl::Cord&, absl::Span<float>);

}  // namespace sluice
