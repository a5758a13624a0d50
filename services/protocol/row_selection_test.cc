#include "services/protocol/row_selection.h"

#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace sluice {
namespace {

v1::TensorTable Table() {
  v1::TensorTable table;
  for (const char* name : {"embedding.weight", "bias", "steps"}) {
    v1::TensorSpec& tensor = *table.add_tensors();
    tensor.set_name(name);
    tensor.set_dtype(v1::FLOAT32);
    tensor.add_shape(10);
  }
  table.mutable_tensors(0)->add_shape(4);
  table.mutable_tensors(2)->add_shape(1);
  table.mutable_tensors(2)->set_kind(v1::COUNTER);
  return table;
}

void ExpectInvalid(const v1::Pull& pull, const absl::Cord& payload, const std::string& message) {
  const absl::Status status = ReadSelections(pull, payload, Table()).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message(), message);
}

void ExpectInvalid(const RowSelections& selections, const std::string& message) {
  v1::Pull pull;
  const absl::Cord payload = AppendSelections(selections, &pull);
  ExpectInvalid(pull, payload, message);
}

TEST(RowSelectionTest, SelectedRowsArrive) {
  const RowSelections selections = {{0, {1, 4, 9}}};
  v1::Pull pull;
  const absl::Cord payload = AppendSelections(selections, &pull);
  EXPECT_EQ(payload.size(), 24u);
  const auto read = ReadSelections(pull, payload, Table());
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(*read, selections);
}

TEST(RowSelectionTest, EmptySelectionIsNotTheWholeTable) {
  const RowSelections selections = {{0, {}}};
  v1::Pull pull;
  const auto read = ReadSelections(pull, AppendSelections(selections, &pull), Table());
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(*read, selections);
}

TEST(RowSelectionTest, PullWithoutSelectionsWantsEverything) {
  const auto read = ReadSelections(v1::Pull(), absl::Cord(), Table());
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_TRUE(read->empty());
}

TEST(RowSelectionTest, RowsAreSortedAndUnique) {
  std::vector<uint64_t> rows = {7, 3, 7, 0};
  SortRows(&rows);
  EXPECT_EQ(rows, (std::vector<uint64_t>{0, 3, 7}));
}

TEST(RowSelectionTest, RejectsSelectionThatContradictsTable) {
  ExpectInvalid(RowSelections{{3, {}}}, "rows of tensor 3 of 3");
  ExpectInvalid(RowSelections{{1, {0}}},
                "rows of 'bias' are requested, but the tensor is not a matrix");
  ExpectInvalid(RowSelections{{2, {0}}},
                "rows of 'steps' are requested, but the tensor is not a matrix");
  ExpectInvalid(RowSelections{{0, {2, 10}}},
                "row 10 of 'embedding.weight' is requested, but the tensor has 10 rows");
  ExpectInvalid(RowSelections{{0, {5, 5}}}, "row 5 of 'embedding.weight' is requested after row 5");
  ExpectInvalid(RowSelections{{0, {5, 2}}}, "row 2 of 'embedding.weight' is requested after row 5");
}

TEST(RowSelectionTest, RejectsSelectionThatContradictsPayload) {
  v1::Pull pull;
  const absl::Cord payload = AppendSelections({{0, {1, 2}}}, &pull);
  ExpectInvalid(pull, payload.Subcord(0, 15),
                "2 rows of 'embedding.weight' are requested, but the payload ends after 15 bytes");
  pull.mutable_rows(0)->set_count(1);
  ExpectInvalid(pull, payload, "a pull has a payload of 16 bytes, of which its rows take 8");
  pull.mutable_rows(0)->set_count(~uint64_t{0});
  ExpectInvalid(
      pull, payload,
      "18446744073709551615 rows of 'embedding.weight' are requested, but the payload ends "
      "after 16 bytes");
}

TEST(RowSelectionTest, RejectsTableThatIsNamedTwice) {
  v1::Pull pull;
  absl::Cord payload = AppendSelections({{0, {1}}}, &pull);
  payload.Append(AppendSelections({{0, {2}}}, &pull));
  ExpectInvalid(pull, payload, "rows of 'embedding.weight' twice");
}

}  // namespace
}  // namespace sluice
