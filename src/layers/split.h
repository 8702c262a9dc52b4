// Cutting a matrix product into work items. Where the cuts lie changes no bit of a result, so they
// may follow the number of threads.
#ifndef MILLIPEDE_LAYERS_SPLIT_H_
#define MILLIPEDE_LAYERS_SPLIT_H_

#include <algorithm>
#include <cstdint>

#include "base/checked.h"
#include "geometry/tiles.h"
#include "millipede/pages.h"
#include "runtime/trace_span.h"

namespace millipede {

// Items are row chunks of at most kTileRows times panel chunks; item i is panel chunk i / row
// chunks, row chunk i % row chunks, so that items that run together share weights.
class ProductSplit {
 public:
  ProductSplit(int64_t num_rows, int64_t num_outputs, int num_threads)
      : num_rows_(num_rows),
        num_row_chunks_(CeilDiv(num_rows, kTileRows)),
        num_panels_(NumPanels(num_outputs)) {
    // A few items per thread even out their speeds; below some panels an item's own rearranging of
    // activations would show.
    const int64_t wanted = std::max<int64_t>(1, kItemsPerThread * num_threads);
    const int64_t chunks = CeilDiv(wanted, std::max<int64_t>(1, num_row_chunks_));
    panels_per_item_ = std::max(kMinPanels, CeilDiv(num_panels_, chunks));
    num_panel_chunks_ = CeilDiv(num_panels_, panels_per_item_);
  }

  int64_t num_items() const { return num_row_chunks_ * num_panel_chunks_; }
  RowRange rows(int64_t item) const {
    const int64_t chunk = item % num_row_chunks_;
    return {chunk * num_rows_ / num_row_chunks_, (chunk + 1) * num_rows_ / num_row_chunks_};
  }
  RowRange panels(int64_t item) const {
    const int64_t begin = item / num_row_chunks_ * panels_per_item_;
    return {begin, std::min(num_panels_, begin + panels_per_item_)};
  }

 private:
  static constexpr int64_t kItemsPerThread = 4;
  static constexpr int64_t kMinPanels = 8;

  int64_t num_rows_;
  int64_t num_row_chunks_;
  int64_t num_panels_;
  int64_t panels_per_item_;
  int64_t num_panel_chunks_;
};

// What a trace says of an item that works on tokens [first, first + count).
inline TraceArgs TokensTrace(int64_t first, int64_t count) {
  return {.first_query = first, .num_queries = count, .rows = count};
}

// The same of a product of those tokens with panels of a packed matrix.
inline TraceArgs ProductTrace(RowRange tokens, RowRange panels, int64_t num_inputs,
                              int64_t element_bytes) {
  TraceArgs args = TokensTrace(tokens.begin, tokens.end - tokens.begin);
  args.bytes = (panels.end - panels.begin) * kPanelOutputs * num_inputs * element_bytes;
  return args;
}

}  // namespace millipede

#endif  // MILLIPEDE_LAYERS_SPLIT_H_
