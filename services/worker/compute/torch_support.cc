#include "services/worker/compute/torch_support.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <dlfcn.h>

#include <algorithm>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_join.h"
#include "services/common/threads/mutex.h"
#include "services/worker/models/torch_script.h"

namespace sluice {
namespace {

// LibTorch's own setting does not affect the threads of OpenBLAS.
void SetBlasThreads(int threads) {
  using Setter = void (*)(int);
  if (auto setter = reinterpret_cast<Setter>(dlsym(RTLD_DEFAULT, "openblas_set_num_threads"))) {
    setter(threads);
  }
}

constexpr char kWord[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.";

// Texts of warnings contain numbers. Beyond this many texts, a new one is printed each time.
constexpr size_t kMaxKnownWarnings = 1000;

class OnceHandler final : public c10::WarningHandler {
 public:
#if TORCH_VERSION_MAJOR >= 2
  void process(const c10::Warning& warning) override {
    if (IsNew(warning.msg())) c10::WarningHandler::process(warning);
  }
#else
  void process(const c10::SourceLocation& place, const std::string& text,
               const bool verbatim) override {
    if (IsNew(text)) c10::WarningHandler::process(place, text, verbatim);
  }
#endif

 private:
  bool IsNew(const std::string& text) {
    MutexLock lock(&mutex_);
    if (known_.size() >= kMaxKnownWarnings) return known_.count(text) == 0;
    return known_.insert(text).second;
  }

  Mutex mutex_;
  absl::flat_hash_set<std::string> known_ ABSL_GUARDED_BY(mutex_);
};

OnceHandler* TheOnceHandler() {
  static auto* const handler = new OnceHandler;  // threads may use it until the process ends
  return handler;
}

}  // namespace

WarningsOnce::WarningsOnce() : guard_(TheOnceHandler()) {}

absl::Cord CordOf(const at::Tensor& tensor) {
  const at::Tensor contiguous = tensor.contiguous();
  return absl::MakeCordFromExternal(
      absl::string_view(static_cast<const char*>(contiguous.data_ptr()), contiguous.nbytes()),
      [contiguous] {});
}

std::string ShapeText(absl::Span<const int64_t> shape) {
  return absl::StrCat("[", absl::StrJoin(shape, ", "), "]");
}

std::string CauseFirst(absl::string_view what) {
  // After the last trace, the cause is a line such as "RuntimeError: …" and those that follow it.
  const size_t trace = what.rfind("Traceback of TorchScript");
  if (trace == absl::string_view::npos) return std::string(what);

  for (size_t line = what.find('\n', trace); line != absl::string_view::npos;
       line = what.find('\n', line + 1)) {
    const absl::string_view rest = what.substr(line + 1);
    const size_t word = std::min(rest.find_first_not_of(kWord), rest.size());
    if (word == 0 || !absl::StartsWith(rest.substr(word), ": ")) continue;
    return absl::StrCat(absl::StripAsciiWhitespace(rest), "\n",
                        absl::StripAsciiWhitespace(what.substr(0, line)));
  }
  return std::string(what);
}

void SetTorchThreads(int threads) {
  at::set_num_threads(threads);
  SetBlasThreads(threads);
}

absl::StatusOr<at::Device> ParseDevice(const std::string& field, const std::string& name) {
  if (name.empty() || name == "cpu") return at::Device(at::kCPU);

  const auto invalid = [&] {
    return absl::InvalidArgumentError(
        absl::StrCat(field, " is '", name, "': should be cpu, cuda or cuda:<number>"));
  };

  if (name.rfind("cuda", 0) != 0) return invalid();
  at::Device device(at::kCPU);
  try {
    device = at::Device(name);
  } catch (const std::exception&) {
    return invalid();
  }

  if (!at::globalContext().hasCUDART()) {
    return absl::UnimplementedError(
        absl::StrCat(field, " is '", name, "', and LibTorch ", LinkedTorchVersion(),
                     " of this build has no CUDA: should be cpu, or the program should be built "
                     "with a LibTorch that has CUDA"));
  }

  const size_t gpus = at::getNumGPUs();
  const size_t wanted = device.has_index() ? static_cast<size_t>(device.index()) : 0;
  if (wanted < gpus) return device;
  const std::string found = gpus == 0 ? "no GPU" : absl::StrCat(gpus, gpus == 1 ? " GPU" : " GPUs");
  const std::string right = gpus == 0 ? "cpu, or the machine should have a GPU and its driver"
                                      : absl::StrCat("cuda:", gpus - 1, " at most");
  return absl::UnimplementedError(
      absl::StrCat(field, " is '", name, "', and LibTorch finds ", found, ": should be ", right));
}

}  // namespace sluice
