#ifndef MILLIPEDE_TESTS_SUPPORT_DECODED_REQUEST_H_
#define MILLIPEDE_TESTS_SUPPORT_DECODED_REQUEST_H_

#include <algorithm>
#include <cstdint>

#include "pages/request_state.h"

namespace millipede::testing {

// Gives a request the ranges of one that decoded every token of [0, position) here.
inline void SetDecoded(Request& request, int64_t position) {
  const auto last = [position](int64_t rows) {
    return RowRange{std::max<int64_t>(0, position - rows), position};
  };
  Request::State& state = *request.state();
  SetRanges(state, AttentionKind::kSwa, {.raw = last(128)});
  SetRanges(state, AttentionKind::kHca,
            {.raw = last(128), .main = {0, position / 128}, .state = last(128)});
  SetRanges(state, AttentionKind::kCsa,
            {.raw = last(128),
             .main = {0, position / 4},
             .index = {0, position / 4},
             .state = last(8),
             .inner_state = last(8)});
}

}  // namespace millipede::testing

#endif  // MILLIPEDE_TESTS_SUPPORT_DECODED_REQUEST_H_
