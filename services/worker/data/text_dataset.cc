#include "services/worker/data/text_dataset.h"

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "services/common/arithmetic/splitmix64.h"
#include "services/common/io/file_util.h"
#include "services/common/process/process.h"
#include "services/common/status_macros.h"
#include "services/protocol/data_digests.h"
#include "services/worker/data/file.h"

namespace sluice {
namespace {

constexpr uint32_t kMaxSequenceLength = 1 << 20;

absl::Status At(const std::string& path, const absl::Status& status) {
  return absl::Status(status.code(), absl::StrCat(path, ": ", status.message()));
}

class TextDataset final : public Dataset {
 public:
  struct Shape {
    uint64_t length = 0;   // of a sample
    uint64_t streams = 0;  // 0: samples follow each other and carry no state
    uint64_t columns = 0;  // samples of a stream
  };

  TextDataset(DatasetInfo info, Shape shape, std::vector<int32_t> tokens)
      : info_(std::move(info)), shape_(shape), tokens_(std::move(tokens)) {}

  const DatasetInfo& info() const override { return info_; }

  absl::StatusOr<Batch> Read(absl::Span<const uint64_t> indices) const override {
    Batch batch;
    batch.samples = indices.size();
    batch.shape = info_.sample_shape;
    batch.class_width = static_cast<int64_t>(shape_.length);
    batch.tokens.reserve(indices.size() * shape_.length);
    batch.classes.reserve(indices.size() * shape_.length);

    for (uint64_t index : indices) {
      if (index >= info_.samples) {
        return absl::OutOfRangeError(
            absl::StrCat("sample ", index, " of ", info_.samples, " samples of text"));
      }
      uint64_t place = index;
      if (shape_.streams > 0) {
        const StreamPlace in_stream{index % shape_.streams, index / shape_.streams};
        place = in_stream.stream * shape_.columns + in_stream.place;
        batch.places.push_back(in_stream);
      }

      const auto first = tokens_.begin() + static_cast<ptrdiff_t>(place * shape_.length);
      const auto length = static_cast<ptrdiff_t>(shape_.length);
      batch.tokens.insert(batch.tokens.end(), first, first + length);
      batch.classes.insert(batch.classes.end(), first + 1, first + length + 1);
    }
    return batch;
  }

 private:
  const DatasetInfo info_;
  const Shape shape_;
  const std::vector<int32_t> tokens_;
};

absl::Status Check(const v1::DataSpec& spec, Split split) {
  const uint32_t length = spec.text().sequence_length();
  if (length < 1 || length > kMaxSequenceLength) {
    return absl::InvalidArgumentError(absl::StrCat("data.text.sequenceLength is ", length,
                                                   ": should be from 1 to ", kMaxSequenceLength));
  }

  if (spec.text().state() == v1::DataSpec::Text::CARRIED &&
      (spec.text().streams() == 0 || !spec.no_shuffle())) {
    return absl::InvalidArgumentError(
        "data.text.state is Carried: needs `shuffle: false`, because state is carried along the "
        "text");
  }

  if (spec.source().path().empty()) {
    return absl::InvalidArgumentError("data.source.path is not set: should be the training text");
  }
  if (split == Split::kEvaluation && spec.evaluation().source().path().empty()) {
    return absl::InvalidArgumentError(
        "data.evaluation.source.path is not set: should be a text that is not trained on");
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> ReadText(const std::string& path) {
  absl::StatusOr<std::string> text = ReadTextFile(path);
  if (text.ok() && text->empty()) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": is empty: should be a text"));
  }
  return text;
}

absl::StatusOr<Vocabulary> VocabularyOf(const v1::DataSpec& spec, absl::string_view training) {
  ASSIGN_OR_RETURN(Vocabulary vocabulary,
                   Vocabulary::Learn(training, spec.text().vocabulary_size()),
                   At(spec.source().path(), _));
  return vocabulary;
}

absl::StatusOr<Vocabulary> ReadVocabulary(const std::string& path) {
  ASSIGN_OR_RETURN(const std::string content, ReadTextFile(path));
  ASSIGN_OR_RETURN(Vocabulary vocabulary, Vocabulary::Parse(content), At(path, _));
  return vocabulary;
}

// Evaluation on a text without any known word is meaningless.
absl::Status CheckKnown(const std::string& path, const std::vector<int32_t>& tokens,
                        const v1::DataSpec& spec) {
  if (std::any_of(tokens.begin(), tokens.end(), [](int32_t t) { return t > kEndOfLineToken; })) {
    return absl::OkStatus();
  }
  const std::string& file = spec.text().vocabulary();
  return absl::InvalidArgumentError(absl::StrCat(
      path, ": has no word of the vocabulary, ",
      file.empty() ? absl::StrCat("which is learned from ", spec.source().path()) : file,
      ": should be a text of the same language"));
}

absl::StatusOr<TextDataset::Shape> ShapeOf(const v1::DataSpec& spec, Split split,
                                           const std::string& path, uint64_t tokens) {
  TextDataset::Shape shape;
  shape.length = spec.text().sequence_length();

  const bool training = split == Split::kTraining;
  const uint64_t wanted = training ? spec.max_samples() : 0;
  if (training && spec.text().state() == v1::DataSpec::Text::CARRIED) {
    shape.streams = spec.text().streams();
  }

  const uint64_t side_by_side = std::max<uint64_t>(shape.streams, 1);
  shape.columns = (tokens - 1) / shape.length / side_by_side;  // a text has at least one token
  if (shape.columns == 0) {
    const std::string streams = shape.streams > 0 ? absl::StrCat(" in each of ", shape.streams,
                                                                 " streams (globalBatchSize)")
                                                  : "";
    return absl::InvalidArgumentError(absl::StrCat(
        path, ": has ", tokens, " tokens, too few for one sample of ", shape.length,
        " and the token after it", streams, "; data.text.sequenceLength should be less"));
  }

  if (wanted > 0) {
    shape.columns = std::min(shape.columns, std::max<uint64_t>(1, wanted / side_by_side));
  }
  return shape;
}

// Several workers may write at the same time; workers in pods may have the same process id.
absl::Status WriteNew(const std::string& path, const std::string& content) {
  const absl::Status status = ExclusiveCreateFile(
      MakeRealFileSystem().get(), path, absl::Cord(content), absl::StrCat(RandomIncarnation()));
  if (status.ok() || absl::IsAlreadyExists(status)) return absl::OkStatus();
  return absl::Status(status.code(), absl::StrCat(path, ": cannot be written: ", status.message()));
}

}  // namespace

absl::StatusOr<Vocabulary> OpenVocabulary(const v1::DataSpec& spec) {
  if (!spec.text().vocabulary().empty()) return ReadVocabulary(spec.text().vocabulary());
  ASSIGN_OR_RETURN(const std::string training, ReadText(spec.source().path()));
  return VocabularyOf(spec, training);
}

absl::Status KeepVocabulary(const std::string& path, v1::DataSpec* spec) {
  if (spec->format() != v1::DataSpec::TEXT) return absl::OkStatus();
  const std::string given = spec->text().vocabulary();
  std::error_code error;

  if (!std::filesystem::exists(path, error)) {
    ASSIGN_OR_RETURN(const Vocabulary vocabulary, OpenVocabulary(*spec));
    RETURN_IF_ERROR(WriteNew(path, vocabulary.Serialize()));
  }

  ASSIGN_OR_RETURN(const Vocabulary kept, ReadVocabulary(path));
  if (!given.empty()) {
    ASSIGN_OR_RETURN(const Vocabulary wanted, ReadVocabulary(given));
    if (wanted.words() != kept.words()) {
      return absl::InvalidArgumentError(
          absl::StrCat(given, ": has ", wanted.size(), " words that differ from the ", kept.size(),
                       " which the model was trained with, ", path,
                       ": leave data.text.vocabulary out to continue with those, or start over"));
    }
  }

  spec->mutable_text()->set_vocabulary(path);
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<Dataset>> OpenTextDataset(const v1::DataSpec& spec, Split split) {
  RETURN_IF_ERROR(Check(spec, split));
  const std::string& path =
      split == Split::kTraining ? spec.source().path() : spec.evaluation().source().path();

  ASSIGN_OR_RETURN(const std::string text, ReadText(path));

  const bool learn_here = split == Split::kTraining && spec.text().vocabulary().empty();
  ASSIGN_OR_RETURN(const Vocabulary vocabulary,
                   learn_here ? VocabularyOf(spec, text) : OpenVocabulary(spec));

  ASSIGN_OR_RETURN(std::vector<int32_t> tokens, vocabulary.Encode(text), At(path, _));
  RETURN_IF_ERROR(CheckKnown(path, tokens, spec));

  ASSIGN_OR_RETURN(const TextDataset::Shape shape, ShapeOf(spec, split, path, tokens.size()));

  DatasetInfo info;
  info.samples = shape.columns * std::max<uint64_t>(shape.streams, 1);
  info.sample_shape = {static_cast<int64_t>(shape.length)};
  info.label_kind = LabelKind::kClass;
  info.outputs = static_cast<int64_t>(vocabulary.size());
  info.tokens = true;
  info.digest.set_name(kVocabularyDigest);
  info.digest.set_hash(Fnv1a64(vocabulary.Serialize()));
  return std::make_unique<TextDataset>(std::move(info), shape, std::move(tokens));
}

}  // namespace sluice
