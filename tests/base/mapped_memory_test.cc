#include "base/mapped_memory.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <utility>

namespace millipede {
namespace {

TEST(MappedMemory, IsZeroAndPageAligned) {
  auto memory = MappedMemory::Map(3 * 4096 + 5, "test");
  ASSERT_TRUE(memory);
  EXPECT_EQ(memory->num_bytes(), 3 * 4096 + 5);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(memory->data()) % 4096, 0U);
  for (int64_t i = 0; i < memory->num_bytes(); ++i) EXPECT_EQ(memory->data()[i], std::byte{0});
}

TEST(MappedMemory, HasBytesFarPast32Bits) {
  const int64_t num_bytes = int64_t{1} << 36;
  auto memory = MappedMemory::Map(num_bytes, "test");
  ASSERT_TRUE(memory);
  memory->data()[num_bytes - 1] = std::byte{7};
  EXPECT_EQ(memory->data()[num_bytes - 1], std::byte{7});
  EXPECT_EQ(memory->data()[(num_bytes - 1) & 0xFFFFFFFF], std::byte{0});
}

TEST(MappedMemory, MovesLeaveOneOwner) {
  auto first = MappedMemory::Map(4096, "test");
  ASSERT_TRUE(first);
  std::byte* data = first->data();
  data[0] = std::byte{9};
  MappedMemory second = std::move(*first);
  EXPECT_EQ(second.data(), data);
  EXPECT_EQ(first->data(), nullptr);
  MappedMemory third;
  third = std::move(second);
  EXPECT_EQ(third.data()[0], std::byte{9});
}

TEST(MappedMemory, RefusesSizesItCannotMap) {
  for (const int64_t num_bytes : {int64_t{0}, int64_t{-1}}) {
    auto memory = MappedMemory::Map(num_bytes, "things");
    ASSERT_FALSE(memory);
    EXPECT_EQ(memory.error().code, ErrorCode::kInvalidArgument);
    EXPECT_EQ(memory.error().field, "things");
  }
  auto memory = MappedMemory::Map(int64_t{1} << 62, "things");
  ASSERT_FALSE(memory);
  EXPECT_EQ(memory.error().code, ErrorCode::kOutOfMemory);
  EXPECT_EQ(memory.error().field, "things");
}

}  // namespace
}  // namespace millipede
