// Helpers for all code that computes with LibTorch.
#ifndef SLUICE_SERVICES_WORKER_COMPUTE_TORCH_SUPPORT_H_
#define SLUICE_SERVICES_WORKER_COMPUTE_TORCH_SUPPORT_H_

#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>
#include <torch/version.h>

#include <exception>
#include <new>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace sluice {

// A cord over the memory of a tensor, which it keeps alive. A tensor that is not contiguous is
// copied. It must be on the CPU.
absl::Cord CordOf(const at::Tensor& tensor);

// "[32, 10]".
std::string ShapeText(absl::Span<const int64_t> shape);

// An exception's text with the cause of a failed TorchScript operation before its traces.
std::string CauseFirst(absl::string_view what);

// Sets how many threads one operation may use; process-wide.
void SetTorchThreads(int threads);

// The device of a field such as model.device: cpu, cuda, cuda:1; empty: cpu. INVALID_ARGUMENT for
// any other name; UNIMPLEMENTED if this LibTorch does not find the GPU.
absl::StatusOr<at::Device> ParseDevice(const std::string& field, const std::string& name);

// While it lives, LibTorch prints a warning of this thread only the first time in this process.
// Some warnings would come with every step.
class WarningsOnce {
 public:
  WarningsOnce();

  WarningsOnce(const WarningsOnce&) = delete;
  WarningsOnce& operator=(const WarningsOnce&) = delete;

 private:
#if TORCH_VERSION_MAJOR >= 2
  c10::WarningUtils::WarningHandlerGuard guard_;
#else
  c10::Warning::WarningHandlerGuard guard_;
#endif
};

// Runs code that uses LibTorch and turns its exceptions into a status. RESOURCE_EXHAUSTED: no
// memory. FAILED_PRECONDITION: any other exception, with "the model fails: " before its text.
template <typename Function>
auto Catching(const Function& function) -> decltype(function()) {
  const WarningsOnce once;
  try {
    return function();
  } catch (const std::bad_alloc&) {
    return absl::ResourceExhaustedError("there is not enough memory for the model");
  } catch (const c10::Error& error) {
    return absl::FailedPreconditionError(
        absl::StrCat("the model fails: ", CauseFirst(error.what_without_backtrace())));
  } catch (const std::exception& error) {
    return absl::FailedPreconditionError(
        absl::StrCat("the model fails: ", CauseFirst(error.what())));
  }
}

}  // namespace sluice

#endif  // SLUICE_SERVICES_WORKER_COMPUTE_TORCH_SUPPORT_H_
