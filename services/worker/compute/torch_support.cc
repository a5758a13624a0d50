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

absl::StatusOr<at::Device> ParseDevice(const std::string& name) {
  if (name.empty() || name == "cpu") return at::Device(at::kCPU);

  const auto invalid = [&] {
    return absl::InvalidArgumentError(
        absl::StrCat("model.device is '", name, "': should be cpu, cuda or cuda:<number>"));
  };

  if (name.rfind("cuda", 0) != 0) return invalid();
  at::Device device(at::kCPU);
  try {
    device = at::Device(name);
  } catch (const std::exception&) {
    return invalid();
  }

  if (!at::hasCUDA()) {
    return absl::UnimplementedError(
        absl::StrCat("model.device is '", name, "': LibTorch ", LinkedTorchVersion(),
                     " of this build has no CUDA, or finds no GPU; use cpu, or a build with a "
                     "LibTorch for CUDA on a machine with a GPU"));
  }
  return device;
}

}  // namespace sluice
