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
#include "millipede/status.h"

namespace millipede {

// One request of a step.
struct StepRequest {
  bool active = true;
  int64_t start_pos = 0;   // position of the first new token; every ring's range ends here
  int64_t num_tokens = 0;  // new tokens, any count; 0 is the same as inactive

  // The lists: those of `request` if it is set, else the raw descriptors in `pages`. Neither is
  // looked at for an inactive request.
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
  int32_t raw_write_row = 0;  // raw ring row (page * 32 + slot) this token's KV goes to at commit
};

// The packed work of one step for all layers of one kind.
struct PackedWork {
  std::vector<PlannedRequest> requests;  // [requests of the batch]
  std::vector<QueryToken> queries;       // [T]

  // [T, 128] window rows of each query, oldest first: a row >= 0 is persistent (page * 32 + slot),
  // -2 - t is the KV of step token t, and -1 pads behind window_rows entries.
  std::vector<int32_t> window_sources;

  int64_t window_rows = 0;        // sum over queries
  int64_t raw_pages_read = 0;     // distinct raw pages read, summed over requests
  int64_t raw_pages_written = 0;  // distinct raw pages with a write slot, summed over requests
};

// An immutable plan, and the state of the step it describes (planned, run, committed per layer).
// Copies share both. A plan borrows the spaces' bookkeeping and must not outlive it.
class Plan {
 public:
  // Checks everything, then packs. `num_layers` is the number of layers the plan serves. On error
  // nothing has been written anywhere; the error names request, field, value and what is allowed.
  // See ErrorCode for the refusals.
  static Result<Plan> Create(const ModelConfig& config, AttentionKind kind, int32_t num_layers,
                             const KindSpaces& spaces, std::span<const StepRequest> requests);

  AttentionKind kind() const;
  int32_t num_layers() const;
  int64_t num_tokens() const;  // T
  const PackedWork& work() const;

  // Scratch bytes of one run call on `num_threads` threads: activations linear in T, and a part per
  // thread. The context length has no part in it.
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
