#include "services/common/process/number_range.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <string>

namespace sluice {
namespace {

template <typename T>
std::string ErrorOf(const CLI::Validator& validator, const std::string& text) {
  T value{};
  CLI::App app;
  app.add_option("--number", value)->check(validator);
  try {
    app.parse("--number=" + text);
  } catch (const CLI::ParseError& error) {
    return error.what();
  }
  return "";
}

TEST(NumberRangeTest, NamesRangeOfWholeNumbers) {
  const CLI::Validator validator = NumberBetween<uint32_t>(1, 1000);
  EXPECT_EQ(ErrorOf<uint32_t>(validator, "1"), "");
  EXPECT_EQ(ErrorOf<uint32_t>(validator, "1000"), "");
  for (const char* text : {"0", "1001", "-1", "99999999999", "1.5", "many", "1e3"}) {
    const std::string error = ErrorOf<uint32_t>(validator, text);
    EXPECT_NE(error.find("--number"), std::string::npos) << text << ": " << error;
    EXPECT_NE(error.find("is not a whole number from 1 to 1000"), std::string::npos)
        << text << ": " << error;
  }
}

TEST(NumberRangeTest, NamesRangeOfNumbers) {
  const CLI::Validator validator = NumberBetween(0.0, 3600.0);
  EXPECT_EQ(ErrorOf<double>(validator, "0.5"), "");
  for (const char* text : {"-0.1", "3601", "nan", "inf", "1e999", "soon"}) {
    EXPECT_NE(ErrorOf<double>(validator, text).find("is not a number from 0 to 3600"),
              std::string::npos)
        << text;
  }
}

}  // namespace
}  // namespace sluice
