// A small engine that carries out the calls of a random history, and says where the library differs
// from the plain model.
#ifndef MILLIPEDE_TESTS_LIFE_LIFE_WORLD_H_
#define MILLIPEDE_TESTS_LIFE_LIFE_WORLD_H_

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "life/op.h"
#include "life/plain_model.h"
#include "millipede/layer.h"
#include "millipede/request.h"
#include "support/decode_world.h"

namespace millipede::testing {

// A request whose pages the engine keeps itself.
struct RawRequest {
  std::array<std::vector<PageEntry>, 7> lists;  // in the order of RequestSpaces
  std::array<RequestRanges, 3> ranges;          // by AttentionKind

  RequestPages pages(AttentionKind kind) const;
};

// The first positions that the rings of a kind hold.
struct RingBegins {
  int64_t raw = 0;
  int64_t state = 0;
};

// A request in a slot, or a mark: the library's and the model's.
struct Holder {
  std::optional<Request> request;
  std::optional<RawRequest> raw;
  std::optional<RequestMark> mark;
  PlainRequest plain;
  std::vector<RingBegins> begins;  // [kinds]
  uint64_t branch = 0;             // of a mark: the request it is a length of, 0 for none
  uint64_t made = 0;               // of a mark: marks made before it

  bool empty() const { return !request && !raw && !mark; }
};

class LifeWorld {
 public:
  explicit LifeWorld(const LifeSetup& setup);

  // Carries out one call; what differs from the model or from the rules, if anything does. A call
  // whose slots are not as it needs them does nothing.
  std::optional<std::string> Apply(const Op& op);

  // Releases everything: every page has to be free again.
  std::optional<std::string> Finish();

  const Holder& slot(int i) const { return slots_[static_cast<size_t>(i)]; }
  const Holder& mark(int i) const { return marks_[static_cast<size_t>(i)]; }
  const LifeSetup& setup() const { return setup_; }
  int64_t num_steps() const { return num_steps_; }
  int64_t num_golden_steps() const { return num_golden_steps_; }
  int64_t num_refusals() const { return num_refusals_; }

 private:
  // One request's part of a step, and what the model says of it.
  struct PartRun {
    Holder* holder = nullptr;
    int64_t start = 0;
    int64_t num_tokens = 0;
    int64_t first_query = 0;
    std::vector<PlainModel::Input> x;                             // [tokens]
    std::vector<std::vector<std::vector<TokenOutputs>>> outputs;  // [tokens, kinds, layers]
  };

  void Admit(const Op& op);
  void Step(const Op& op);
  void Rewind(const Op& op);
  void MakeMark(const Op& op);
  void Fork(const Op& op);
  void ForkMark(const Op& op);
  void Release(Holder& holder);
  void Misuses(const Op& op);
  void FlipByte(const Op& op);

  // Acquires what `num_tokens` more tokens of the holder need; false if pages have run out.
  bool Prepare(Holder& holder, int64_t num_tokens);
  bool AcquireLists(RawRequest& raw, int64_t num_tokens);
  bool WritesSharedPage(const Holder& holder, int64_t num_tokens) const;
  StepRequest PartOf(const Holder& holder, size_t kind, int64_t num_tokens) const;
  Result<Plan> MakePlan(size_t kind, const std::vector<StepRequest>& step) const;
  // x_out may be x itself.
  Status RunLayer(size_t kind, int layer, const Plan& plan, const std::vector<float>& x,
                  std::vector<float>& x_out, const StepActivations& activations);
  Result<std::vector<RequestRanges>> CommitLayer(size_t kind, int layer, const Plan& plan,
                                                 const std::vector<int64_t>& accepted);
  void RunAndCompare(size_t kind, int layer, const Plan& plan, const std::vector<PartRun>& parts,
                     bool twice);
  // Has the golden judge the library's values of one part.
  void Judge(size_t kind, int layer, const Plan& plan, const PartRun& part, EntryResult& result);
  void CommitLayers(const Op& op, const std::vector<Plan>& plans, const std::vector<PartRun>& parts,
                    const std::vector<int64_t>& accepted);

  // Compares ranges and the rows from `position` on.
  void CheckHolder(const Holder& holder, int64_t position) const;
  void CheckAll() const;
  bool CanStart(const Holder& holder, size_t kind, int64_t position) const;
  RequestPages PagesOf(const Holder& holder, AttentionKind kind) const;
  RequestPools pools() const;
  RequestPools ForkPools() const;
  std::vector<int32_t> Free() const;
  // Whether running out of pages is not to be expected.
  bool HasAmplePages() const;
  void Refused(bool ok, const Error* error, std::initializer_list<ErrorCode> codes,
               const char* what);
  // The ring rows that are gone once `accepted` tokens from `start` on were written.
  void Forget(Holder& holder, int64_t start, int64_t accepted) const;

  LifeSetup setup_;
  ModelConfig config_;
  PlainModel model_;
  std::unique_ptr<Executor> executor_;
  std::unique_ptr<Context> context_;
  std::vector<std::unique_ptr<PageSpace>> owned_spaces_;
  RequestSpaces spaces_;
  std::vector<LayerPool> owned_pools_;
  std::array<std::vector<LayerPools>, 3> layers_;  // by AttentionKind
  std::vector<LayerPools> nowhere_;                // pools that a planted fault copies in
  std::array<Holder, kNumSlots> slots_;
  std::array<Holder, kNumMarks> marks_;
  std::array<uint64_t, kNumSlots> branches_{};  // tells a slot's request from those before it
  uint64_t next_branch_ = 1;
  uint64_t num_marks_made_ = 0;
  std::optional<RawRequest> stale_;
  std::vector<std::byte> workspace_;
  std::map<std::pair<size_t, int>, std::vector<std::byte>> overlays_;
  int64_t num_steps_ = 0;
  int64_t num_golden_steps_ = 0;
  int64_t num_refusals_ = 0;
};

}  // namespace millipede::testing

#endif  // MILLIPEDE_TESTS_LIFE_LIFE_WORLD_H_
