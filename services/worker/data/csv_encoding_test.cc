#include "services/worker/data/csv_encoding.h"

#include <string>
#include <vector>

#include "absl/strings/str_replace.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace sluice {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TableEncoding Encoding(std::vector<std::string> cities = {"bonn", "kiel"}) {
  TableEncoding encoding;
  ColumnEncoding age;
  age.name = "age";
  age.standardized = true;
  age.mean = 1.0 / 3;
  age.deviation = 2.0 / 7;
  encoding.columns.push_back(age);

  ColumnEncoding city;
  city.name = "city";
  city.use = ColumnUse::kCategorical;
  city.SetValues(std::move(cities));
  encoding.columns.push_back(city);

  ColumnEncoding income;
  income.name = "income";
  income.use = ColumnUse::kLabel;
  income.SetValues({"high", "low"});
  encoding.columns.push_back(income);
  encoding.classes = 3;
  return encoding;
}

std::string Serialized(const TableEncoding& encoding) { return *encoding.Serialize(); }

std::string DamageOf(const std::string& text) {
  const absl::Status status = TableEncoding::Parse(text).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
  return std::string(status.message());
}

TEST(TableEncodingTest, IsReadAsItWasWritten) {
  const absl::StatusOr<TableEncoding> read = TableEncoding::Parse(Serialized(Encoding()));
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->DifferenceFrom(Encoding()), "");
  EXPECT_EQ(read->columns[0].mean, 1.0 / 3) << "to the bit";
  EXPECT_EQ(read->columns[1].place_of.at("kiel"), 1u);
  EXPECT_EQ(read->classes, 3u);
}

TEST(TableEncodingTest, KeepsAnyBytesInNamesAndValues) {
  const std::vector<std::string> odd = {"",           " padded ",   "a,b",
                                        "\"quoted\"", "two\nlines", "caf\xE9"};
  TableEncoding encoding = Encoding(odd);
  encoding.columns[0].name = "";
  const absl::StatusOr<TableEncoding> read = TableEncoding::Parse(Serialized(encoding));
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->columns[0].name, "");
  EXPECT_EQ(read->columns[1].values, odd);
}

TEST(TableEncodingTest, EveryChangedByteIsFound) {
  const std::string text = Serialized(Encoding());
  for (size_t i = 0; i < text.size(); ++i) {
    std::string changed = text;
    changed[i] ^= 1;
    EXPECT_THAT(DamageOf(changed), HasSubstr("is damaged")) << i;
    EXPECT_THAT(DamageOf(text.substr(0, i)), HasSubstr("is damaged")) << i;
  }
}

TEST(TableEncodingTest, DifferenceNamesTheColumn) {
  EXPECT_THAT(Encoding({"aalen", "bonn", "kiel"}).DifferenceFrom(Encoding()),
              HasSubstr("column 'city' has the new value 'aalen'"));
  EXPECT_THAT(Encoding().DifferenceFrom(Encoding({"aalen", "bonn", "kiel"})),
              HasSubstr("column 'city' lacks the value 'aalen'"));
  EXPECT_THAT(Encoding({"kiel", "bonn"}).DifferenceFrom(Encoding()), HasSubstr("another order"));
  TableEncoding other = Encoding();
  other.columns[0].mean = 0;
  EXPECT_THAT(other.DifferenceFrom(Encoding()), HasSubstr("column 'age' has another mean"));
}

v1::DataSpec Spec() {
  v1::DataSpec spec;
  spec.mutable_csv()->set_label_column("income");
  spec.mutable_csv()->set_standardize(true);
  spec.mutable_csv()->add_numeric_columns("age");
  spec.mutable_csv()->add_categorical_columns("city");
  return spec;
}

TEST(TableEncodingTest, ConflictNamesTheColumnThatTheJobUsesOtherwise) {
  EXPECT_EQ(Encoding().ConflictWith(Spec()), "");
  v1::DataSpec spec = Spec();
  spec.mutable_csv()->set_standardize(false);
  EXPECT_THAT(Encoding().ConflictWith(spec), HasSubstr("column 'age' was standardized"));
  spec = Spec();
  spec.mutable_csv()->add_numeric_columns("height");
  EXPECT_THAT(Encoding().ConflictWith(spec), HasSubstr("column 'height' was not read"));
  spec = Spec();
  spec.mutable_csv()->clear_categorical_columns();
  EXPECT_THAT(Encoding().ConflictWith(spec), HasSubstr("column 'city' was a feature"));
  spec.mutable_csv()->add_numeric_columns("city");
  EXPECT_THAT(Encoding().ConflictWith(spec), HasSubstr("'city' was categorical, and is numeric"));
  spec = Spec();
  spec.mutable_csv()->set_regression(true);
  EXPECT_THAT(Encoding().ConflictWith(spec), HasSubstr("column 'income' was a class"));
  spec = Spec();
  spec.set_classes(2);
  EXPECT_THAT(Encoding().ConflictWith(spec), HasSubstr("3 classes, and data.classes is 2"));
}

}  // namespace
}  // namespace sluice
