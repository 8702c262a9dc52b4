// plan: request lengths and page tables in, validated, exact, packed work out. Integers only.
#ifndef MILLIPEDE_PLAN_H_
#define MILLIPEDE_PLAN_H_

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "millipede/config.h"
#include "millipede/pages.h"
#include "millipede/request.h"
#include "millipede/status.h"

namespace millipede {

// One request of a step.
struct StepRequest {
  bool active = true;
  int64_t start_pos = 0;   // position of the first new token; every ring's range ends here
  int64_t num_tokens = 0;  // new tokens, any count; 0 is the same as inactive

  // The lists: those of `request` if it is set, else the raw descriptors in `pages`. Neither is
  // looked at for an inactive request. Entries of a ragged list behind the rows that the step reads
  // or writes are not looked at either, so pages may be acquired ahead.
  //
  // Raw descriptors go back to an earlier position p by handing in shorter ranges: every ring's
  // ends at p and keeps its beginning, ragged ones end at the rows of p tokens. Accepted if the
  // rings hold what the step reads: raw rows from max(0, p - 127) on, HCA state rows from the block
  // of p on, CSA's from the block before it.
  const Request* request = nullptr;
  RequestPages pages;
};

// A request as planned. Requests without new tokens have num_tokens 0 and nothing else.
struct PlannedRequest {
  int64_t start_pos = 0;
  int32_t num_tokens = 0;
  int32_t first_query = 0;  // its tokens are query tokens [first_query, first_query + num_tokens)
};

// One new token. Query tokens count over the batch, in request order; T of them in all.
struct QueryToken {
  int32_t request = 0;
  int32_t window_rows = 0;  // rows in window_sources, 1 to 128
  int64_t position = 0;
  int32_t raw_write_row = 0;           // raw ring row (page * 32 + slot) its KV goes to at commit
  int32_t state_write_row = -1;        // HCA, CSA: the same of its state row, in state pool rows
  int32_t inner_state_write_row = -1;  // CSA: the same of its inner state row
};

// A token of the step that finishes a block, and the compressed row it emits.
struct CompressEvent {
  int32_t request = 0;
  int32_t query = 0;             // the boundary token
  int32_t row = 0;               // the compressed row
  int32_t main_write_row = 0;    // where it goes, a main pool row (page * 32 + slot)
  int32_t index_write_row = -1;  // CSA: where its index key goes
  int32_t rope_position = 0;     // the block's first position: rotates the row
};

// Up to 128 consecutive compressed rows that one HCA query attends to.
struct HcaShard {
  int32_t query = 0;
  int32_t first_row = 0;   // a multiple of 128
  int32_t num_rows = 0;    // 1 to 128
  int32_t first_page = 0;  // its rows lie in main_pages[first_page], [first_page + 1], ...
};

// Up to 2,048 consecutive candidates that one CSA query scores.
struct CsaLeaf {
  int32_t query = 0;
  int32_t first_candidate = 0;  // a multiple of 2,048
  int32_t num_candidates = 0;   // 1 to 2,048
  int32_t first_page = 0;       // their keys lie in index_pages[first_page], ...
};

// Merges the selections in slots `left` and `right` of a query into `left`. Leaf i of a query fills
// its slot i.
struct CsaMerge {
  int32_t left = 0;
  int32_t right = 0;
};

// The packed work of one step for all layers of one kind. Arrays of other kinds are empty.
struct PackedWork {
  std::vector<PlannedRequest> requests;  // [requests of the batch]
  std::vector<QueryToken> queries;       // [T]

  // [T, 128] window rows of each query, oldest first: a row >= 0 is persistent (page * 32 + slot),
  // -2 - t is the KV of step token t, and -1 pads behind window_rows entries.
  std::vector<int32_t> window_sources;

  // HCA and CSA: boundary tokens [E] in query order. The state rows each pools, oldest first:
  // [E, 128] for HCA, [E, 8] for CSA (4 front, 4 back): a row >= 0 is persistent (page * rows per
  // page + slot), -2 - t is the state row of step token t, -1 is a row before position 0.
  std::vector<CompressEvent> events;
  std::vector<int32_t> event_sources;        // in the state pool
  std::vector<int32_t> inner_event_sources;  // CSA: in the inner state pool

  // HCA and CSA: the pages that hold a request's compressed rows the step reads or writes, logical
  // page i of request r at main_pages[main_page_offsets[r] + i]; the same for CSA index keys.
  std::vector<int32_t> main_page_offsets;  // [requests + 1]
  std::vector<int32_t> main_pages;
  std::vector<int32_t> index_page_offsets;  // [requests + 1]
  std::vector<int32_t> index_pages;

  // HCA: the shards of query t are [shard_offsets[t], shard_offsets[t + 1]), 0 to 64, by row.
  std::vector<int32_t> shard_offsets;  // [T + 1]
  std::vector<HcaShard> shards;

  // CSA: the leaves of query t are [leaf_offsets[t], leaf_offsets[t + 1]), 0 to 128, by candidate;
  // L >= 1 leaves have L - 1 merges, pairs level by level with an odd node carried up, in order.
  std::vector<int32_t> leaf_offsets;  // [T + 1]
  std::vector<CsaLeaf> leaves;
  std::vector<int32_t> merge_offsets;  // [T + 1]
  std::vector<CsaMerge> merges;

  int64_t window_rows = 0;        // sum over queries
  int64_t compressed_rows = 0;    // HCA rows attended, CSA candidates scored; sum over queries
  int64_t raw_pages_read = 0;     // distinct raw pages read, summed over requests
  int64_t raw_pages_written = 0;  // distinct raw pages with a write slot, summed over requests
};

// An immutable plan, and the state of the step it describes (planned, run, committed per layer).
// Copies share both, so calls with one plan do not overlap in time. A plan borrows the spaces'
// bookkeeping and must not outlive it. One that was moved from can only be assigned or destroyed.
//
// A plan is live until its last layer is committed or every copy of it is dropped; for a request
// without tokens in it, it never is. A Request has at most one live plan per kind, and what would
// pull the ground from under it is refused or noticed: Request says which. Raw descriptors have no
// such memory; their ranges and epochs are checked.
class Plan {
 public:
  // Checks everything, then packs. `num_layers` is the number of layers the plan serves, 1 to
  // 65536. On error nothing has been written anywhere; the error names request, field, value and
  // what is allowed. See ErrorCode for the refusals, kOutOfMemory among them; kCallOrder if a
  // request has a live plan of the kind already.
  static Result<Plan> Create(const ModelConfig& config, AttentionKind kind, int32_t num_layers,
                             const KindSpaces& spaces, std::span<const StepRequest> requests);

  AttentionKind kind() const;
  int32_t num_layers() const;
  int64_t num_tokens() const;  // T
  const PackedWork& work() const;

  // Scratch bytes of one run call on `num_threads` threads, 1 to 1024 (fewer count as 1):
  // activations linear in T, and a part per thread. The context length has no part in it.
  int64_t workspace_bytes(int num_threads) const;

  // Bytes that each layer's overlay needs between run and commit.
  int64_t overlay_bytes() const;

  // A hash of everything the plan was made from and holds: equal plans, equal fingerprints.
  uint64_t fingerprint() const;

  // The plan in words, a line per request and the totals; workspace for `num_threads` threads.
  std::string explain(int num_threads = 1) const;

  // The same as one JSON object with stable keys. Documented in docs/command.md.
  std::string explain_json(int num_threads = 1) const;

  struct State;  // internal
  const std::shared_ptr<State>& state() const { return state_; }

 private:
  explicit Plan(std::shared_ptr<State> state);
  std::shared_ptr<State> state_;
};

}  // namespace millipede

#endif  // MILLIPEDE_PLAN_H_
