#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <random>
#include <set>
#include <vector>

#include "millipede/pages.h"

namespace millipede {
namespace {

PageSpace MakeSpace(int32_t num_pages) { return std::move(*PageSpace::Create(num_pages)); }

std::vector<PageEntry> MustAcquire(PageSpace& space, size_t count) {
  std::vector<PageEntry> pages(count);
  EXPECT_TRUE(space.Acquire(pages));
  return pages;
}

// A copy of everything a space shows.
struct Snapshot {
  std::vector<uint64_t> epochs;
  std::vector<int32_t> ref_counts;
  uint64_t generation;
  int32_t num_free;
  bool operator==(const Snapshot&) const = default;
};
Snapshot Take(const PageSpace& space) {
  const PageSpaceView view = space.view();
  return {{view.epochs, view.epochs + view.num_pages},
          {view.ref_counts, view.ref_counts + view.num_pages},
          *view.generation,
          space.num_free()};
}

TEST(PageSpace, SizeIsChecked) {
  for (const int32_t num_pages : {-1, 0, kMaxPagesPerSpace + 1}) {
    const auto space = PageSpace::Create(num_pages);
    ASSERT_FALSE(space);
    EXPECT_EQ(space.error().code, ErrorCode::kInvalidArgument);
    EXPECT_EQ(space.error().field, "num_pages");
  }
  EXPECT_TRUE(PageSpace::Create(1));
  EXPECT_TRUE(PageSpace::Create(kMaxPagesPerSpace));
}

TEST(PageSpace, AcquireIsAllOrNothing) {
  PageSpace space = MakeSpace(5);
  MustAcquire(space, 3);
  const Snapshot before = Take(space);
  std::vector<PageEntry> pages(3, PageEntry{77, 77});
  const Status status = space.Acquire(pages);
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code, ErrorCode::kOutOfPages);
  EXPECT_EQ(Take(space), before);
  for (const PageEntry& entry : pages) EXPECT_EQ(entry.page, 77);
  MustAcquire(space, 2);
  EXPECT_EQ(space.num_free(), 0);
  EXPECT_TRUE(space.Acquire({}));
}

TEST(PageSpace, DoubleFreeIsRefusedAndTheFreeCountIsExact) {
  PageSpace space = MakeSpace(8);
  const auto pages = MustAcquire(space, 4);
  ASSERT_TRUE(space.Release(std::span(pages).first(2)));
  EXPECT_EQ(space.num_free(), 6);
  const Snapshot before = Take(space);
  const Status status = space.Release(pages);  // its first two are free already
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code, ErrorCode::kDoubleFree);
  EXPECT_EQ(status.error().field, "pages[0].page");
  EXPECT_EQ(Take(space), before);
  ASSERT_TRUE(space.Release(std::span(pages).last(2)));
  EXPECT_EQ(space.num_free(), 8);
}

TEST(PageSpace, FreeOfAListWithADuplicateIsRefused) {
  PageSpace space = MakeSpace(8);
  auto pages = MustAcquire(space, 4);
  ASSERT_TRUE(space.Share(pages));  // two references do not make a duplicate right
  pages.push_back(pages[1]);
  const Snapshot before = Take(space);
  const Status status = space.Release(pages);
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code, ErrorCode::kDoubleFree);
  EXPECT_EQ(status.error().field, "pages[4].page");
  EXPECT_EQ(Take(space), before);
}

TEST(PageSpace, ReleaseAndShareRefuseForeignPages) {
  PageSpace space = MakeSpace(4);
  const auto pages = MustAcquire(space, 2);
  struct Case {
    PageEntry entry;
    ErrorCode release;
    ErrorCode share;
    const char* field;
  };
  const std::vector<Case> cases = {
      {{-1, 1}, ErrorCode::kPageOutOfRange, ErrorCode::kPageOutOfRange, "pages[1].page"},
      {{4, 1}, ErrorCode::kPageOutOfRange, ErrorCode::kPageOutOfRange, "pages[1].page"},
      {{3, 0}, ErrorCode::kDoubleFree, ErrorCode::kPageNotAcquired, "pages[1].page"},
      {pages[0], ErrorCode::kDoubleFree, ErrorCode::kDuplicatePage, "pages[1].page"},
      {{pages[1].page, pages[1].epoch + 9},
       ErrorCode::kStaleEpoch,
       ErrorCode::kStaleEpoch,
       "pages[1].epoch"},
  };
  for (const Case& c : cases) {
    const std::vector<PageEntry> list = {pages[0], c.entry};
    const Snapshot before = Take(space);
    const Status release = space.Release(list);
    ASSERT_FALSE(release);
    EXPECT_EQ(release.error().code, c.release);
    EXPECT_EQ(release.error().field, c.field);
    const Status share = space.Share(list);
    ASSERT_FALSE(share);
    EXPECT_EQ(share.error().code, c.share);
    EXPECT_EQ(share.error().field, c.field);
    EXPECT_EQ(Take(space), before);
  }
}

TEST(PageSpace, AReacquiredPageHasANewEpoch) {
  PageSpace space = MakeSpace(1);
  const auto first = MustAcquire(space, 1);
  ASSERT_TRUE(space.Release(first));
  const auto second = MustAcquire(space, 1);
  EXPECT_EQ(first[0].page, second[0].page);
  EXPECT_NE(first[0].epoch, second[0].epoch);
  const Status status = space.Release(first);
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code, ErrorCode::kStaleEpoch);
  EXPECT_EQ(space.ref_count(second[0].page), 1);
}

TEST(PageSpace, SharedPagesStayUntilTheLastReference) {
  PageSpace space = MakeSpace(4);
  const auto pages = MustAcquire(space, 2);
  const uint64_t generation = space.generation();
  ASSERT_TRUE(space.Share(pages));
  EXPECT_GT(space.generation(), generation);
  EXPECT_EQ(space.ref_count(pages[0].page), 2);
  ASSERT_TRUE(space.Release(pages));
  EXPECT_EQ(space.ref_count(pages[0].page), 1);
  EXPECT_EQ(space.num_free(), 2);
  ASSERT_TRUE(space.Release(pages));
  EXPECT_EQ(space.ref_count(pages[0].page), 0);
  EXPECT_EQ(space.num_free(), 4);
  EXPECT_EQ(space.ref_count(-1), 0);
  EXPECT_EQ(space.ref_count(4), 0);
}

TEST(PageSpace, EveryReleaseRaisesTheGeneration) {
  PageSpace space = MakeSpace(4);
  const PageSpaceView view = space.view();
  const auto pages = MustAcquire(space, 3);
  EXPECT_EQ(*view.generation, space.generation());
  uint64_t last = space.generation();
  for (const PageEntry& entry : pages) {
    ASSERT_TRUE(space.Release({&entry, 1}));
    EXPECT_GT(space.generation(), last);
    last = space.generation();
  }
  EXPECT_EQ(*view.generation, last);
}

TEST(PageSpace, ViewsSurviveAMoveOfTheSpace) {
  PageSpace space = MakeSpace(4);
  const PageSpaceView view = space.view();
  PageSpace moved = std::move(space);
  const auto pages = MustAcquire(moved, 1);
  EXPECT_EQ(view.epochs[pages[0].page], pages[0].epoch);
  EXPECT_EQ(moved.view().epochs, view.epochs);
}

// Random calls, valid and not, against maps and sets.
TEST(PageSpace, AgreesWithAPlainModel) {
  for (const uint64_t seed : {1, 2, 3}) {
    constexpr int32_t kPages = 50;
    std::mt19937_64 random(seed);
    PageSpace space = MakeSpace(kPages);
    std::map<int32_t, std::pair<uint64_t, int32_t>> owned;  // page -> epoch, references
    std::set<uint64_t> epochs;
    uint64_t generation = space.generation();

    const auto random_list = [&] {
      std::vector<PageEntry> list;
      const size_t size = random() % 6;
      for (size_t i = 0; i < size; ++i) {
        const auto page = static_cast<int32_t>(random() % (kPages + 4)) - 2;
        const auto found = owned.find(page);
        uint64_t epoch = found == owned.end() ? random() % 100 : found->second.first;
        if (random() % 16 == 0) epoch = random() % 300;
        list.push_back({page, epoch});
      }
      return list;
    };
    const auto is_valid = [&](const std::vector<PageEntry>& list) {
      std::set<int32_t> seen;
      return std::all_of(list.begin(), list.end(), [&](const PageEntry& entry) {
        const auto found = owned.find(entry.page);
        return found != owned.end() && found->second.first == entry.epoch &&
               seen.insert(entry.page).second;
      });
    };

    for (int step = 0; step < 4000; ++step) {
      switch (random() % 3) {
        case 0: {
          std::vector<PageEntry> out(random() % 9);
          const bool fits = out.size() + owned.size() <= kPages;
          ASSERT_EQ(space.Acquire(out).has_value(), fits);
          if (!fits) break;
          for (const PageEntry& entry : out) {
            ASSERT_TRUE(owned.emplace(entry.page, std::pair(entry.epoch, 1)).second);
            ASSERT_TRUE(epochs.insert(entry.epoch).second) << "epoch repeats";
          }
          break;
        }
        case 1: {
          const auto list = random_list();
          ASSERT_EQ(space.Share(list).has_value(), is_valid(list));
          if (is_valid(list)) {
            for (const PageEntry& entry : list) ++owned[entry.page].second;
          }
          break;
        }
        default: {
          const auto list = random_list();
          const bool valid = is_valid(list);
          ASSERT_EQ(space.Release(list).has_value(), valid);
          if (valid && !list.empty()) {
            ASSERT_GT(space.generation(), generation);
            for (const PageEntry& entry : list) {
              if (--owned[entry.page].second == 0) owned.erase(entry.page);
            }
          }
          break;
        }
      }
      ASSERT_GE(space.generation(), generation);
      generation = space.generation();
      ASSERT_EQ(space.num_free(), kPages - static_cast<int32_t>(owned.size()));
      for (int32_t page = 0; page < kPages; ++page) {
        const auto found = owned.find(page);
        ASSERT_EQ(space.ref_count(page), found == owned.end() ? 0 : found->second.second);
        if (found != owned.end()) {
          ASSERT_EQ(space.view().epochs[page], found->second.first);
        }
      }
    }
  }
}

}  // namespace
}  // namespace millipede
