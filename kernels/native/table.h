// KernelTable: what one instruction set offers; see isa.h. The bindings call through the chosen one.
// Argument structs and function pointers of a kernel family stand in its own header.
#pragma once

#include "table_attention.h"
#include "table_blocks.h"
#include "table_embedding.h"
#include "table_experts.h"
#include "table_floats.h"
#include "table_gptq.h"
#include "table_half.h"
#include "table_linear.h"
#include "table_pointwise.h"
#include "table_recurrent.h"
#include "table_sampling.h"
#include "table_w4.h"

namespace edge {

// The families of a unit that compiles them all.
struct KernelFamilies {
  LinearKernels linear;
  AttentionKernels attention;
  PointwiseKernels pointwise;
  SamplingKernels sampling;
  FloatKernels floats;
  EmbeddingKernels embedding;
  CodeKernels codes;
  FitKernels fit;
  HalfKernels half;
  BlockKernels blocks;
  ExpertKernels experts;
};

// A set that has only some of its own points to those of another one.
struct KernelTable {
  const char* name;
  const LinearKernels* linear;
  const AttentionKernels* attention;
  const PointwiseKernels* pointwise;
  const SamplingKernels* sampling;
  const FloatKernels* floats;
  const EmbeddingKernels* embedding;
  const CodeKernels* codes;
  const FitKernels* fit;
  const HalfKernels* half;
  const BlockKernels* blocks;
  const ExpertKernels* experts;
  const RecurrentKernels* recurrent;  // in a unit of its own, which compiles in seconds
  bool emulated = false;              // instructions that this build can do without, slowly
  const char* (*permit)() = nullptr;  // asks the system once, before the first use: null, or why it refuses; or none is needed
};

// The table of a set whose families are all its own.
constexpr KernelTable table_of(const char* name, const KernelFamilies& all, const RecurrentKernels& recurrent) {
  return {name,       &all.linear, &all.attention, &all.pointwise, &all.sampling, &all.floats, &all.embedding, &all.codes, &all.fit,
          &all.half, &all.blocks, &all.experts,   &recurrent};
}

}  // namespace edge
