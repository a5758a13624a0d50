#include "services/protocol/elements.h"

#include <vector>

#include "gtest/gtest.h"

namespace sluice {
namespace {

TEST(Elements, EveryDataTypeHasASize) {
  for (int number = v1::DataType_MIN + 1; number <= v1::DataType_MAX; ++number) {
    ASSERT_TRUE(v1::DataType_IsValid(number));
    EXPECT_GT(ElementBytes(static_cast<v1::DataType>(number)), 0u) << number;
  }
  EXPECT_EQ(ElementBytes(v1::DATA_TYPE_UNSPECIFIED), 0u);
}

TEST(Elements, VisitsOnlyFloatingPointTypes) {
  for (int number = v1::DataType_MIN; number <= v1::DataType_MAX; ++number) {
    const auto dtype = static_cast<v1::DataType>(number);
    v1::DataType visited = v1::DATA_TYPE_UNSPECIFIED;
    v1::DataType computed = v1::DATA_TYPE_UNSPECIFIED;
    const bool is_visited = VisitFloatingPoint(dtype, [&](auto tag) {
      using T = typename decltype(tag)::type;
      visited = DataTypeOf<T>;
      computed = DataTypeOf<ComputeType<T>>;
      EXPECT_EQ(sizeof(T), ElementBytes(dtype));
    });
    EXPECT_EQ(is_visited, IsFloatingPoint(dtype)) << number;
    if (!is_visited) continue;
    EXPECT_EQ(visited, dtype);
    EXPECT_EQ(computed, ComputeDataType(dtype));
  }
}

TEST(Elements, ReferToTheirSpan) {
  std::vector<double> values = {1, 2, 3};
  const Elements elements(absl::MakeSpan(values));
  EXPECT_EQ(elements.dtype(), v1::FLOAT64);
  EXPECT_EQ(elements.count(), 3u);
  EXPECT_EQ(elements.bytes().size(), 24u);
  elements.As<double>()[1] = 7;
  const ConstElements view(absl::MakeConstSpan(values));
  EXPECT_EQ(view.As<double>()[1], 7);
  EXPECT_EQ(static_cast<const void*>(view.bytes().data()), values.data());
}

}  // namespace
}  // namespace sluice
