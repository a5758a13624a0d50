#include "services/coordinator/core/decisions/codec_check.h"

#include "absl/strings/str_cat.h"
#include "services/common/status_macros.h"
#include "services/protocol/codec/codec.h"

namespace sluice::coordinator {
namespace {

absl::Status Check(absl::string_view field, v1::Codec id, const v1::TensorTable& table) {
  ASSIGN_OR_RETURN(const Codec* const codec, FindCodec(id));
  for (const v1::TensorSpec& tensor : table.tensors()) {
    if (tensor.kind() != v1::PARAMETER) continue;  // others are sent unencoded
    if (absl::Status status = codec->Supports(tensor.dtype()); !status.ok()) {
      return absl::InvalidArgumentError(absl::StrCat("training.compression.", field,
                                                     " cannot carry parameter '", tensor.name(),
                                                     "' (", status.message(), ")"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckCodecs(const v1::TrainingSpec& training, const v1::TensorTable& table) {
  RETURN_IF_ERROR(Check("push", training.push_codec(), table));
  return Check("pull", training.pull_codec(), table);
}

}  // namespace sluice::coordinator
