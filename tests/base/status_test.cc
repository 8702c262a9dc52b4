#include "millipede/status.h"

#include <gtest/gtest.h>

#include <set>
#include <string>

#include "base/error.h"

namespace millipede {
namespace {

TEST(Status, EveryCodeHasANameOfItsOwn) {
  std::set<std::string> names;
  const int last = static_cast<int>(ErrorCode::kCommunication);
  for (int code = 0; code <= last; ++code) {
    const std::string name(ErrorCodeName(static_cast<ErrorCode>(code)));
    EXPECT_NE(name, "Unknown") << code;
    EXPECT_TRUE(names.insert(name).second) << name;
  }
  EXPECT_EQ(ErrorCodeName(ErrorCode::kInvalidConfig), "InvalidConfig");
  EXPECT_EQ(ErrorCodeName(ErrorCode::kStaleEpoch), "StaleEpoch");
  EXPECT_EQ(ErrorCodeName(ErrorCode::kCallOrder), "CallOrder");
  // kCommunication is the last code: a code added after it must be added to this test.
  EXPECT_EQ(ErrorCodeName(static_cast<ErrorCode>(last + 1)), "Unknown");
}

TEST(Status, MessagesNameRequestFieldAndValues) {
  const Status plain =
      MakeError(ErrorCode::kInvalidArgument, "layer", "{}; allowed: 0 to {}", 9, 3);
  ASSERT_FALSE(plain);
  EXPECT_EQ(plain.error().request, -1);
  EXPECT_EQ(plain.error().field, "layer");
  EXPECT_EQ(plain.error().message, "layer: 9; allowed: 0 to 3");

  const Status of_request = MakeRequestError(ErrorCode::kRingPages, 4, "raw.pages",
                                             "{} pages; allowed: exactly {}", 3, 4);
  ASSERT_FALSE(of_request);
  EXPECT_EQ(of_request.error().code, ErrorCode::kRingPages);
  EXPECT_EQ(of_request.error().request, 4);
  EXPECT_EQ(of_request.error().message, "request 4: raw.pages: 3 pages; allowed: exactly 4");
}

TEST(Status, ReturnIfErrorPassesTheErrorOn) {
  const auto outer = [](bool fail) -> Result<int> {
    const auto inner = [fail]() -> Status {
      if (fail) return MakeError(ErrorCode::kCallOrder, "inner", "failed");
      return {};
    };
    MILLIPEDE_RETURN_IF_ERROR(inner());
    return 5;
  };
  EXPECT_EQ(outer(false).value(), 5);
  ASSERT_FALSE(outer(true));
  EXPECT_EQ(outer(true).error().field, "inner");
}

}  // namespace
}  // namespace millipede
