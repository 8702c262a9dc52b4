// Owned buffers for everything a run computes on the way.
#ifndef MILLIPEDE_TOOLS_ACTIVATIONS_H_
#define MILLIPEDE_TOOLS_ACTIVATIONS_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "fixtures/safetensors.h"
#include "millipede/config.h"
#include "millipede/layer.h"
#include "millipede/tensor.h"

namespace millipede::tools {

// One of the tensors below, by its name in vector files.
struct NamedActivation {
  std::string_view name;
  fixtures::DType dtype;
  int64_t row_elements;        // of one token
  std::span<std::byte> bytes;  // [T, row_elements]

  std::span<std::byte> row(int64_t token) const {
    const auto row_bytes = static_cast<size_t>(row_elements * fixtures::DTypeBytes(dtype));
    return bytes.subspan(static_cast<size_t>(token) * row_bytes, row_bytes);
  }
};

struct Activations {
  // Filled with what no stage makes: NaN, and code -128.
  Activations(const ModelConfig& model, int64_t tokens);

  // Of this object's vectors, which stay where they are when it is moved.
  StepActivations views();
  std::vector<NamedActivation> named();

  ModelConfig config;
  int64_t num_tokens;
  std::vector<Bf16> x_mixed;    // [T,D]
  std::vector<float> post;      // [T,4]
  std::vector<float> comb;      // [T,4,4]
  std::vector<Bf16> xn;         // [T,D]
  std::vector<int8_t> qr;       // [T,q_rank]
  std::vector<float> qr_scale;  // [T]
  std::vector<Bf16> q;          // [T,H,512]
  std::vector<Bf16> kv;         // [T,512], the rows of the step's overlay
  std::vector<Bf16> heads;      // [T,H,512]
  std::vector<Bf16> attn_out;   // [T,D]
  std::vector<float> x_out;     // [T,4,D]
};

}  // namespace millipede::tools

#endif  // MILLIPEDE_TOOLS_ACTIVATIONS_H_
