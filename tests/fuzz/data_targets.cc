// Users' training data.
#include <sys/mman.h>
#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "proto/job.pb.h"
#include "services/common/arithmetic/crc32c.h"
#include "services/common/check.h"
#include "services/worker/data/csv_encoding.h"
#include "services/worker/data/csv_reader.h"
#include "services/worker/data/dataset.h"
#include "services/worker/data/file.h"
#include "services/worker/data/idx.h"
#include "services/worker/data/vocabulary.h"
#include "tests/fuzz/byte_source.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/fuzz/status_check.h"

namespace sluice::fuzz {
namespace {

// A file in memory that has a path for the lifetime of this object.
class MemoryFile {
 public:
  explicit MemoryFile(absl::string_view content) : descriptor_(memfd_create("fuzz", MFD_CLOEXEC)) {
    SLUICE_CHECK(descriptor_ >= 0, "the system provides memory for a file");
    SLUICE_CHECK(
        write(descriptor_, content.data(), content.size()) == static_cast<ssize_t>(content.size()),
        "the file has room");
  }
  ~MemoryFile() { close(descriptor_); }
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;

  std::string path() const { return absl::StrCat("/proc/self/fd/", descriptor_); }

 private:
  const int descriptor_;
};

std::string Gzip(const std::string& content) {
  z_stream stream = {};
  SLUICE_CHECK(deflateInit2(&stream, 9, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY) == Z_OK,
               "zlib starts");
  std::string compressed(compressBound(content.size()) + 64, '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(content.data()));
  stream.avail_in = static_cast<uInt>(content.size());
  stream.next_out = reinterpret_cast<Bytef*>(&compressed[0]);
  stream.avail_out = static_cast<uInt>(compressed.size());
  SLUICE_CHECK(deflate(&stream, Z_FINISH) == Z_STREAM_END, "zlib ends");
  compressed.resize(stream.total_out);
  deflateEnd(&stream);
  return compressed;
}

// Opens the data in both splits and reads every sample.
bool RunDataset(const v1::DataSpec& spec) {
  bool accepted = false;
  for (Split split : {Split::kTraining, Split::kEvaluation}) {
    const absl::StatusOr<std::unique_ptr<Dataset>> dataset = OpenDataset(spec, split);
    if (!CheckedOk(dataset.status())) continue;
    const DatasetInfo& info = (*dataset)->info();
    SLUICE_CHECK(info.samples > 0, "a dataset has samples");
    std::vector<uint64_t> indices;
    for (uint64_t i = 0; i < std::min<uint64_t>(info.samples, 64); ++i) indices.push_back(i);
    SLUICE_CHECK((*dataset)->Read(indices).ok(), "reading does not fail because of the data");
    SLUICE_CHECK(!(*dataset)->Read({info.samples}).ok(), "there are no further samples");
    accepted = true;
  }
  return accepted;
}

// ---------------------------------------------------------------- CSV

bool RunCsvText(absl::string_view input) {
  ByteSource bytes(input);
  const char delimiter = ",;\t |"[bytes.Below(5)];
  const absl::string_view text = bytes.Rest();
  CsvReader reader("data.csv", text, delimiter);
  std::vector<std::string> fields;
  uint64_t line = 0;
  size_t read = 0;
  while (true) {
    const absl::StatusOr<bool> next = reader.Next(fields);
    if (!next.ok()) return false;
    if (!*next) return read > 0;
    SLUICE_CHECK(reader.line() > line, "lines ascend");
    line = reader.line();
    SLUICE_CHECK(!fields.empty(), "a record has a field");
    for (const std::string& field : fields) read += field.size() + 1;
    SLUICE_CHECK(read <= text.size() + 1, "fields are no longer than the text");
  }
}

// The text with a last row that makes its checksum right, so that inputs reach the rows.
bool RunTableEncoding(absl::string_view input) {
  CheckedOk(TableEncoding::Parse(input).status());
  const std::string rows(input.substr(0, input.rfind("\"\",\"\",\"crc32c\"")));
  const absl::StatusOr<TableEncoding> encoding = TableEncoding::Parse(
      absl::StrCat(rows, absl::StrFormat("\"\",\"\",\"crc32c\",\"%08x\"\n", Crc32c(rows))));
  if (!CheckedOk(encoding.status())) return false;
  const absl::StatusOr<TableEncoding> again = TableEncoding::Parse(*encoding->Serialize());
  SLUICE_CHECK(again.ok() && again->DifferenceFrom(*encoding).empty(),
               "an encoding survives a round trip");
  return true;
}

std::vector<std::string> TableEncodingSeeds() {
  TableEncoding encoding;
  for (const ColumnUse use : {ColumnUse::kNumeric, ColumnUse::kCategorical, ColumnUse::kLabel}) {
    ColumnEncoding& column = encoding.columns.emplace_back();
    column.name = absl::StrCat("column ", encoding.columns.size());
    column.use = use;
    column.standardized = use == ColumnUse::kNumeric;
    if (!column.standardized) column.SetValues({"a", "b\"c"});
  }
  encoding.classes = 2;
  return {*encoding.Serialize()};
}

// The first byte chooses how the table is read.
bool RunCsvDataset(absl::string_view input) {
  ByteSource bytes(input);
  const uint8_t how = bytes.Byte();
  const MemoryFile file(bytes.Rest());
  v1::DataSpec spec;
  spec.set_format(v1::DataSpec::CSV);
  spec.mutable_source()->set_path(file.path());
  spec.mutable_evaluation()->mutable_source()->set_path(file.path());
  v1::DataSpec::Csv& csv = *spec.mutable_csv();
  csv.set_no_header((how & 1) != 0);
  csv.set_label_column(csv.no_header() ? "1" : "income");
  csv.set_standardize((how & 2) != 0);
  csv.set_regression((how & 4) != 0);
  if ((how & 8) != 0) csv.add_categorical_columns(csv.no_header() ? "0" : "job");
  if ((how & 16) != 0) csv.add_numeric_columns(csv.no_header() ? "2" : "age");
  if ((how & 32) != 0) csv.set_categories(v1::DataSpec::Csv::INDEX);
  if ((how & 64) != 0) csv.set_delimiter(";");
  if ((how & 128) != 0) spec.mutable_normalize()->add_mean(1), spec.mutable_normalize()->add_std(2);
  return RunDataset(spec);
}

// ---------------------------------------------------------------- IDX

bool RunIdx(absl::string_view input) {
  const absl::StatusOr<IdxArray> array = IdxArray::Parse("images", std::string(input));
  if (!CheckedOk(array.status())) return false;
  const uint64_t elements = array->rows() * array->elements_per_row();
  SLUICE_CHECK(elements <= input.size(), "every element has a byte");
  for (uint64_t i = 0; i < elements; ++i) (void)array->At(i);
  if (array->type() == IdxType::kUint8) {
    for (uint64_t row = 0; row < array->rows(); ++row) {
      (void)std::count(array->Bytes(row), array->Bytes(row) + array->elements_per_row(), 0);
    }
  }
  return true;
}

// Images, then labels, each preceded by its length (2 bytes).
bool RunIdxDataset(absl::string_view input) {
  ByteSource bytes(input);
  const MemoryFile images(bytes.Piece());
  const MemoryFile labels(bytes.Piece());
  v1::DataSpec spec;
  spec.set_format(v1::DataSpec::IDX);
  spec.mutable_source()->set_path(images.path());
  spec.mutable_source()->set_labels(labels.path());
  *spec.mutable_evaluation()->mutable_source() = spec.source();
  if (bytes.Byte() % 2 == 1) {
    spec.mutable_normalize()->add_mean(0.5);
    spec.mutable_normalize()->add_std(0.5);
  }
  return RunDataset(spec);
}

std::string Idx(uint8_t type, const std::vector<uint8_t>& dimensions, const std::string& elements) {
  std::string file = {0, 0, static_cast<char>(type), static_cast<char>(dimensions.size())};
  for (uint8_t dimension : dimensions) file += std::string{0, 0, 0, static_cast<char>(dimension)};
  return file + elements;
}

std::vector<std::string> IdxSeeds() {
  return {Idx(0x08, {3, 2, 2}, "abcdefghijkl"), Idx(0x0b, {2}, {0, 1, 0, 2}),
          Idx(0x0d, {2, 1}, {0x3f, '\x80', 0, 0, 0x40, 0, 0, 0}),
          Idx(0x0e, {1}, {0x3f, '\xf0', 0, 0, 0, 0, 0, 0})};
}

std::string Behind(const std::string& piece) {
  return absl::StrCat(
      std::string{static_cast<char>(piece.size()), static_cast<char>(piece.size() >> 8)}, piece);
}

std::vector<std::string> IdxDatasetSeeds() {
  const std::string images = Idx(0x08, {3, 2, 2}, "abcdefghijkl");
  const std::string labels = Idx(0x08, {3}, {0, 1, 2});
  return {absl::StrCat(Behind(images), Behind(labels)),
          absl::StrCat(Behind(Gzip(images)), Behind(Gzip(labels)), "\1")};
}

bool RunGzip(absl::string_view input) {
  const MemoryFile file(input);
  const absl::StatusOr<std::string> content = ReadFile(file.path());
  return content.ok() && *content != input;
}

std::vector<std::string> GzipSeeds() {
  return {Gzip("some text"), Gzip(std::string(5000, 'a')), Gzip("one") + Gzip("two")};
}

// ---------------------------------------------------------------- text

bool RunVocabulary(absl::string_view input) {
  ByteSource bytes(input);
  const uint64_t size = bytes.Byte();
  const absl::string_view text = bytes.Rest();
  const absl::StatusOr<Vocabulary> learnt = Vocabulary::Learn(text, size);
  for (const absl::StatusOr<Vocabulary>& vocabulary : {learnt, Vocabulary::Parse(text)}) {
    if (!vocabulary.ok()) continue;
    const absl::StatusOr<Vocabulary> again = Vocabulary::Parse(vocabulary->Serialize());
    SLUICE_CHECK(again.ok() && again->words() == vocabulary->words(), "words survive a round trip");
    const absl::StatusOr<std::vector<int32_t>> tokens = vocabulary->Encode(text);
    if (!tokens.ok()) continue;
    for (int32_t token : *tokens) {
      SLUICE_CHECK(token >= 0 && static_cast<uint64_t>(token) < vocabulary->size(),
                   "a token is in the vocabulary");
    }
  }
  return learnt.ok();
}

bool RunTextDataset(absl::string_view input) {
  ByteSource bytes(input);
  const uint8_t how = bytes.Byte();
  const MemoryFile text(bytes.Piece());
  const MemoryFile words(bytes.Piece());
  v1::DataSpec spec;
  spec.set_format(v1::DataSpec::TEXT);
  spec.mutable_source()->set_path(text.path());
  *spec.mutable_evaluation()->mutable_source() = spec.source();
  spec.mutable_text()->set_sequence_length(1 + how % 8);
  spec.mutable_text()->set_vocabulary_size(3 + how % 64);
  if ((how & 64) != 0) spec.mutable_text()->set_vocabulary(words.path());
  if ((how & 128) != 0) {
    spec.set_no_shuffle(true);
    spec.mutable_text()->set_state(v1::DataSpec::Text::CARRIED);
    spec.mutable_text()->set_streams(2);
  }
  return RunDataset(spec);
}

std::vector<std::string> TextDatasetSeeds() {
  const std::string text = "the cat sat\non the mat and the cat\nsat on it\n";
  const std::string words = "<unk>\n<eos>\nthe\ncat\n";
  return {absl::StrCat(std::string{'\2'}, Behind(text), Behind(words)),
          absl::StrCat(std::string{'\x42'}, Behind(text), Behind(words)),
          absl::StrCat(std::string{'\x82'}, Behind(text), Behind(words))};
}

}  // namespace

std::vector<FuzzTarget> DataTargets() {
  return {
      {"csv", RunCsvText, nullptr, 4096, "services/worker/data/csv_reader.cc"},
      {"csv_dataset", RunCsvDataset, nullptr, 4096,
       "services/worker/data/csv_dataset.cc services/worker/data/normalize.cc"},
      {"table_encoding", RunTableEncoding, TableEncodingSeeds, 4096,
       "services/worker/data/csv_encoding.cc"},
      {"idx", RunIdx, IdxSeeds, 4096, "services/worker/data/idx.cc"},
      {"idx_dataset", RunIdxDataset, IdxDatasetSeeds, 4096,
       "services/worker/data/idx_dataset.cc services/worker/data/normalize.cc"},
      {"gzip", RunGzip, GzipSeeds, 4096, "services/worker/data/file.cc"},
      {"vocabulary", RunVocabulary, nullptr, 4096, "services/worker/data/vocabulary.cc"},
      {"text_dataset", RunTextDataset, TextDatasetSeeds, 4096,
       "services/worker/data/text_dataset.cc services/worker/data/vocabulary.cc"},
  };
}

}  // namespace sluice::fuzz
