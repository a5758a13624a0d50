#include "services/worker/data/idx_dataset.h"

#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "services/common/status_macros.h"
#include "services/worker/data/file.h"
#include "services/worker/data/idx.h"
#include "services/worker/data/normalize.h"

namespace sluice {
namespace {

// More classes are considered an error in the labels.
constexpr int64_t kMaxClasses = int64_t{1} << 24;

struct IdxFiles {
  std::string samples;
  std::string labels;
};

bool IsDirectory(const std::string& path) {
  struct stat info;
  return stat(path.c_str(), &info) == 0 && S_ISDIR(info.st_mode);
}

// A path that may not be examined counts as existing: the error appears on reading.
bool Exists(const std::string& path) {
  struct stat info;
  return stat(path.c_str(), &info) == 0 || (errno != ENOENT && errno != ENOTDIR);
}

absl::StatusOr<std::string> FirstThatExists(const std::vector<std::string>& candidates,
                                            absl::string_view field) {
  for (const std::string& path : candidates) {
    if (Exists(path)) return path;
  }
  return absl::NotFoundError(
      absl::StrCat(field, ": none of these files exists: ", absl::StrJoin(candidates, ", ")));
}

absl::StatusOr<std::string> FindInDirectory(const std::string& directory, Split split,
                                            absl::string_view what, absl::string_view rank,
                                            absl::string_view field) {
  const absl::string_view set = split == Split::kTraining ? "train" : "t10k";
  std::vector<std::string> candidates;
  for (const char* separator : {"-", "."}) {
    for (const char* ending : {"", ".gz"}) {
      candidates.push_back(
          absl::StrCat(directory, "/", set, "-", what, separator, rank, "-ubyte", ending));
    }
  }
  return FirstThatExists(candidates, field);
}

absl::StatusOr<std::string> FindLabelsBeside(const std::string& samples, absl::string_view field) {
  const size_t slash = samples.rfind('/');
  const size_t begin = slash == std::string::npos ? 0 : slash + 1;
  const std::string name = samples.substr(begin);
  std::string labels = absl::StrReplaceAll(name, {{"images", "labels"}, {"idx3", "idx1"}});
  if (labels == name) {
    return absl::InvalidArgumentError(absl::StrCat(field, ": the label file of ", samples,
                                                   " cannot be derived from its name; name it in ",
                                                   field, ".labels"));
  }
  labels = samples.substr(0, begin) + labels;

  const std::string other =
      absl::EndsWith(labels, ".gz") ? labels.substr(0, labels.size() - 3) : labels + ".gz";
  return FirstThatExists({labels, other}, field);
}

absl::StatusOr<IdxFiles> Locate(const v1::DataSpec& spec, Split split) {
  const v1::DataSource& own =
      split == Split::kTraining ? spec.source() : spec.evaluation().source();
  const bool borrowed = own.path().empty() && split == Split::kEvaluation;
  const v1::DataSource& source = borrowed ? spec.source() : own;
  const absl::string_view field =
      split == Split::kTraining || borrowed ? "data.source" : "data.evaluation.source";

  if (source.path().empty()) {
    return absl::InvalidArgumentError(absl::StrCat(field, ".path is not set"));
  }
  if (!Exists(source.path())) {
    return absl::NotFoundError(absl::StrCat(source.path(), ": no such file or directory"));
  }

  IdxFiles files;
  if (IsDirectory(source.path())) {
    ASSIGN_OR_RETURN(files.samples, FindInDirectory(source.path(), split, "images", "idx3", field));
  } else if (borrowed) {
    return absl::InvalidArgumentError(
        "data.evaluation.source.path is not set, and data.source.path is not a directory in which "
        "evaluation data could be found");
  } else {
    files.samples = source.path();
  }

  if (!own.labels().empty()) {
    files.labels = own.labels();
    return files;
  }
  ASSIGN_OR_RETURN(files.labels,
                   IsDirectory(source.path())
                       ? FindInDirectory(source.path(), split, "labels", "idx1", field)
                       : FindLabelsBeside(files.samples, field));
  return files;
}

absl::StatusOr<IdxArray> ReadIdx(const std::string& path) {
  ASSIGN_OR_RETURN(std::string content, ReadFile(path));
  return IdxArray::Parse(path, std::move(content));
}

// The number of rows of a file that are used.
uint64_t Limit(uint64_t rows, uint64_t max_samples) {
  return max_samples == 0 ? rows : std::min(rows, max_samples);
}

// The largest of the first `rows` labels, plus one.
absl::StatusOr<int64_t> CountClasses(const IdxArray& labels, uint64_t rows) {
  int64_t largest = -1;
  for (uint64_t row = 0; row < rows; ++row) {
    const auto label = static_cast<int64_t>(labels.At(row));
    if (label < 0 || label >= kMaxClasses) {
      return absl::InvalidArgumentError(absl::StrCat(labels.name(), ": row ", row, ": label ",
                                                     label, " is not in [0, ", kMaxClasses, ")"));
    }
    largest = std::max(largest, label);
  }
  return largest + 1;
}

absl::StatusOr<int64_t> LearnClasses(const v1::DataSpec& spec, Split split, const IdxArray& labels,
                                     uint64_t rows) {
  if (spec.classes() > 0) return spec.classes();
  if (split == Split::kTraining) return CountClasses(labels, rows);
  ASSIGN_OR_RETURN(IdxFiles files, Locate(spec, Split::kTraining));
  ASSIGN_OR_RETURN(IdxArray training, ReadIdx(files.labels));
  if (!training.integral()) {
    return absl::InvalidArgumentError(
        absl::StrCat(labels.name(), " holds classes and ", training.name(), " targets"));
  }
  return CountClasses(training, Limit(training.rows(), spec.max_samples()));
}

absl::Status CheckCounts(const IdxArray& samples, const IdxArray& labels) {
  if (labels.integral() && labels.elements_per_row() != 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        labels.name(), ": has ", labels.elements_per_row(), " labels for a sample: should be one"));
  }
  if (samples.rows() != labels.rows()) {
    return absl::InvalidArgumentError(absl::StrCat(samples.name(), " holds ", samples.rows(),
                                                   " samples and ", labels.name(), " ",
                                                   labels.rows(), " labels"));
  }
  return absl::OkStatus();
}

absl::Status CheckLabels(const IdxArray& labels, uint64_t rows, int64_t classes) {
  if (!labels.integral()) {
    for (uint64_t i = 0; i < rows * labels.elements_per_row(); ++i) {
      if (std::isfinite(labels.At(i))) continue;
      return absl::InvalidArgumentError(absl::StrCat(
          labels.name(), ": row ", i / labels.elements_per_row(), ": target is not finite"));
    }
    return absl::OkStatus();
  }

  // Classes.
  for (uint64_t row = 0; row < rows; ++row) {
    const auto label = static_cast<int64_t>(labels.At(row));
    if (label >= 0 && label < classes) continue;
    return absl::InvalidArgumentError(absl::StrCat(labels.name(), ": row ", row, ": label ", label,
                                                   " is not in [0, ", classes, ")"));
  }
  return absl::OkStatus();
}

// The largest of the first `rows` labels, and its first place. Each sample has one label.
DatasetInfo::Label LargestLabel(const IdxArray& labels, uint64_t rows) {
  uint64_t largest = 0;
  for (uint64_t row = 1; row < rows; ++row) {
    if (labels.At(row) > labels.At(largest)) largest = row;
  }
  return {static_cast<int64_t>(labels.At(largest)), absl::StrCat(labels.name(), ": row ", largest)};
}

absl::Status CheckFinite(const IdxArray& samples, uint64_t rows) {
  if (samples.integral()) return absl::OkStatus();
  for (uint64_t i = 0; i < rows * samples.elements_per_row(); ++i) {
    if (std::isfinite(samples.At(i))) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        samples.name(), ": row ", i / samples.elements_per_row(), ": a value is not finite"));
  }
  return absl::OkStatus();
}

class IdxDataset final : public Dataset {
 public:
  IdxDataset(DatasetInfo info, IdxArray samples, IdxArray labels, Normalizer normalizer)
      : info_(std::move(info)),
        samples_(std::move(samples)),
        labels_(std::move(labels)),
        normalizer_(std::move(normalizer)) {
    if (samples_.type() != IdxType::kUint8) return;
    byte_values_.resize(normalizer_.channels());
    for (uint64_t channel = 0; channel < byte_values_.size(); ++channel) {
      for (int byte = 0; byte < 256; ++byte) {
        byte_values_[channel][byte] =
            normalizer_.Apply(channel * normalizer_.elements_per_channel(), byte / 255.0);
      }
    }
  }

  const DatasetInfo& info() const override { return info_; }

  absl::StatusOr<Batch> Read(absl::Span<const uint64_t> indices) const override {
    Batch batch;
    batch.samples = indices.size();
    batch.shape = info_.sample_shape;
    const uint64_t elements = samples_.elements_per_row();
    batch.features.resize(indices.size() * elements);
    float* out = batch.features.data();

    for (uint64_t index : indices) {
      if (index >= info_.samples) {
        return absl::OutOfRangeError(
            absl::StrCat("sample ", index, " of ", info_.samples, " in ", samples_.name()));
      }
      CopySample(index, out);
      out += elements;
      if (info_.label_kind == LabelKind::kClass) {
        batch.classes.push_back(static_cast<int64_t>(labels_.At(index)));
        continue;
      }
      for (int64_t k = 0; k < info_.outputs; ++k) {
        batch.targets.push_back(static_cast<float>(labels_.At(index * info_.outputs + k)));
      }
    }

    batch.target_width = info_.label_kind == LabelKind::kTargets ? info_.outputs : 0;
    return batch;
  }

 private:
  void CopySample(uint64_t index, float* out) const {
    const uint64_t elements = samples_.elements_per_row();
    if (byte_values_.empty()) {
      for (uint64_t i = 0; i < elements; ++i) {
        out[i] = normalizer_.Apply(i, samples_.At(index * elements + i));
      }
      return;
    }

    // Bytes: every value of a channel is in its table.
    const uint8_t* bytes = samples_.Bytes(index);
    for (const std::array<float, 256>& values : byte_values_) {
      for (uint64_t i = 0; i < normalizer_.elements_per_channel(); ++i) *out++ = values[*bytes++];
    }
  }

  const DatasetInfo info_;
  const IdxArray samples_;
  const IdxArray labels_;
  const Normalizer normalizer_;
  // For samples of bytes, per channel: the value of each byte.
  std::vector<std::array<float, 256>> byte_values_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Dataset>> OpenIdxDataset(const v1::DataSpec& spec, Split split) {
  ASSIGN_OR_RETURN(IdxFiles files, Locate(spec, split));
  ASSIGN_OR_RETURN(IdxArray samples, ReadIdx(files.samples));
  ASSIGN_OR_RETURN(IdxArray labels, ReadIdx(files.labels));

  DatasetInfo info;
  info.samples = Limit(samples.rows(), split == Split::kTraining ? spec.max_samples() : 0);
  const std::vector<int64_t>& dimensions = samples.dimensions();
  info.sample_shape.assign(dimensions.begin() + 1, dimensions.end());
  if (info.sample_shape.size() == 2) info.sample_shape.insert(info.sample_shape.begin(), 1);
  if (info.sample_shape.empty()) info.sample_shape = {1};
  info.label_kind = labels.integral() ? LabelKind::kClass : LabelKind::kTargets;

  RETURN_IF_ERROR(CheckCounts(samples, labels));
  info.outputs = static_cast<int64_t>(labels.elements_per_row());
  if (info.label_kind == LabelKind::kClass) {
    ASSIGN_OR_RETURN(info.outputs, LearnClasses(spec, split, labels, info.samples));
  }

  RETURN_IF_ERROR(CheckLabels(labels, info.samples, info.outputs));
  RETURN_IF_ERROR(CheckFinite(samples, info.samples));
  if (info.label_kind == LabelKind::kClass) info.largest = LargestLabel(labels, info.samples);

  ASSIGN_OR_RETURN(Normalizer normalizer, Normalizer::Create(spec.normalize(), info.sample_shape));
  return std::make_unique<IdxDataset>(std::move(info), std::move(samples), std::move(labels),
                                      std::move(normalizer));
}

}  // namespace sluice
