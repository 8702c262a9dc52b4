// Accepting a part of a step, against never having run the rest.
#ifndef MILLIPEDE_TESTS_LAYERS_ACCEPT_MATRIX_H_
#define MILLIPEDE_TESTS_LAYERS_ACCEPT_MATRIX_H_

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "support/decode_world.h"

namespace millipede::testing {

// One request's readable rows and ranges at each position, and each token's outputs, from decoding
// one token at a time and accepting all.
class SerialTruth {
 public:
  // Positions [start, start + total].
  SerialTruth(AttentionKind kind, int64_t start, int64_t total);

  // Adds a test failure unless everything that the request may read at its position is as here.
  void ExpectSameCaches(DecodeWorld& world, int64_t id) const;

  // The same for the outputs of a step of the request, or of its first `count` tokens.
  void ExpectSameOutputs(const EntryResult& result) const {
    ExpectSameOutputs(result, result.num_tokens);
  }
  void ExpectSameOutputs(const EntryResult& result, int64_t count) const;

 private:
  struct Caches {
    RequestPages ranges;  // the ranges alone
    std::vector<Bf16> raw;
    std::vector<Bf16> main;
    std::vector<float> state;
    std::vector<float> inner_state;
    std::vector<int8_t> index_rows;
    std::vector<float> index_scales;
  };
  static Caches Read(DecodeWorld& world, int64_t id);

  std::map<int64_t, Caches> caches_;        // by position
  std::map<int64_t, EntryResult> outputs_;  // by position
};

// From `start`, a step of `width` tokens of which each of `accepted` are kept, then 16 tokens more.
// The rejected tokens are other ones than those that come in their place.
void ExpectAcceptedIsAll(AttentionKind kind, int64_t start, const std::vector<int64_t>& widths,
                         const std::vector<int64_t>& accepted);

// All of 0 to width.
void ExpectAnyPrefix(AttentionKind kind, int64_t start, const std::vector<int64_t>& widths);

// Any prefix of every width from 1 to 33, and some of width 130.
void ExpectAllWidths(AttentionKind kind, int64_t start);

}  // namespace millipede::testing

#endif  // MILLIPEDE_TESTS_LAYERS_ACCEPT_MATRIX_H_
