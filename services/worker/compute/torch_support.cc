#include "services/worker/compute/torch_support.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <dlfcn.h>

#include "absl/strings/str_join.h"
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

}  // namespace

absl::Cord CordOf(const at::Tensor& tensor) {
  const at::Tensor contiguous = tensor.contiguous();
  return absl::MakeCordFromExternal(
      absl::string_view(static_cast<const char*>(contiguous.data_ptr()), contiguous.nbytes()),
      [contiguous] {});
}

std::string ShapeText(absl::Span<const int64_t> shape) {
  return absl::StrCat("[", absl::StrJoin(shape, ", "), "]");
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
