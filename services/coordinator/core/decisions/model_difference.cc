#include "services/coordinator/core/decisions/model_difference.h"

#include <algorithm>
#include <cstdint>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace sluice::coordinator {
namespace {

std::string Form(const v1::TensorSpec& tensor) {
  std::string form = absl::StrCat(absl::AsciiStrToLower(v1::DataType_Name(tensor.dtype())), "[",
                                  absl::StrJoin(tensor.shape(), ", "), "]");
  if (tensor.kind() != v1::PARAMETER) {
    absl::StrAppend(&form, " ", absl::AsciiStrToLower(v1::TensorKind_Name(tensor.kind())));
  }
  return form;
}

std::string CountDifference(const char* what, uint64_t expected, uint64_t actual) {
  if (expected == actual) return "";
  return absl::StrCat("it has ", actual, " ", what, ", not ", expected);
}

}  // namespace

std::string Difference(const v1::TensorTable& expected, const v1::TensorTable& actual) {
  const int common = std::min(expected.tensors_size(), actual.tensors_size());
  for (int i = 0; i < common; ++i) {
    const v1::TensorSpec& want = expected.tensors(i);
    const v1::TensorSpec& have = actual.tensors(i);
    if (want.name() != have.name()) {
      return absl::StrCat("tensor ", i, " is ", have.name(), ", not ", want.name());
    }
    if (Form(want) != Form(have)) {
      return absl::StrCat("tensor ", have.name(), " is ", Form(have), ", not ", Form(want));
    }
  }
  if (expected.tensors_size() > common) {
    return absl::StrCat("tensor ", expected.tensors(common).name(), " is missing");
  }
  if (actual.tensors_size() > common) {
    return absl::StrCat("tensor ", actual.tensors(common).name(), " is not expected");
  }
  return "";
}

std::string OtherDigest(const Digests& expected, const Digests& actual) {
  for (const v1::DataDigest& want : expected) {
    for (const v1::DataDigest& have : actual) {
      if (have.name() == want.name() && have.hash() != want.hash()) return want.name();
    }
  }
  return "";
}

std::string Difference(const v1::Ready& expected, const v1::Ready& actual) {
  if (std::string tensor = Difference(expected.table(), actual.table()); !tensor.empty()) {
    return tensor;
  }
  if (std::string count = CountDifference("training samples", expected.training_samples(),
                                          actual.training_samples());
      !count.empty()) {
    return count;
  }
  if (std::string count = CountDifference("evaluation samples", expected.evaluation_samples(),
                                          actual.evaluation_samples());
      !count.empty()) {
    return count;
  }
  const std::string want = absl::StrJoin(expected.metrics(), ", ");
  const std::string have = absl::StrJoin(actual.metrics(), ", ");
  if (want != have) {
    return absl::StrCat("its evaluations have ", have.empty() ? "no metrics" : "the metrics ", have,
                        ", not ", want.empty() ? "none" : want);
  }
  // The module follows from the program: only its effect is compared.
  const uint32_t smallest = std::max(1u, expected.smallest_batch());
  if (std::max(1u, actual.smallest_batch()) != smallest) {
    return absl::StrCat("it cannot compute fewer samples at once than ",
                        std::max(1u, actual.smallest_batch()), ", not ", smallest);
  }
  const std::string digest = OtherDigest(expected.digests(), actual.digests());
  return digest.empty() ? "" : absl::StrCat(digest, " differs");
}

}  // namespace sluice::coordinator
