#include "plan/page_map.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <random>
#include <set>

namespace millipede {
namespace {

TEST(PageMap, AgreesWithStdMap) {
  std::mt19937_64 random(6);
  for (const int64_t capacity : {0, 1, 2, 3, 64, 1000}) {
    PageMap pages(capacity);
    std::map<int32_t, int32_t> model;
    EXPECT_EQ(pages.Find(0), -1);
    while (static_cast<int64_t>(model.size()) < capacity) {
      // Multiples of a power of two crowd a table that takes low bits.
      const auto page = static_cast<int32_t>((random() % 2000) << 14);
      const auto value = static_cast<int32_t>(random() % 1000);
      const auto stored = model.emplace(page, value).first->second;
      ASSERT_EQ(pages.FindOrInsert(page, value), stored);
    }
    for (int32_t i = 0; i < 2000; ++i) {
      const auto found = model.find(i << 14);
      ASSERT_EQ(pages.Find(i << 14), found == model.end() ? -1 : found->second);
    }
  }
}

TEST(PageSet, AgreesWithStdSet) {
  std::mt19937_64 random(7);
  PageSet pages;
  for (const int64_t capacity : {1, 2, 3, 64, 8192, 5}) {
    pages.Reset(capacity);  // empties it
    std::set<int32_t> model;
    while (static_cast<int64_t>(model.size()) < capacity) {
      const auto page = static_cast<int32_t>((random() % 20'000) << 10);
      ASSERT_EQ(pages.Insert(page), model.insert(page).second);
    }
    for (const int32_t page : model) ASSERT_FALSE(pages.Insert(page));
  }
}

}  // namespace
}  // namespace millipede
