// KernelTable: what one ISA variant offers. Each variant unit fills one table; the bindings call through the chosen one.
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
#include "table_sampling.h"
#include "table_w4.h"

namespace edge {

struct KernelTable {
  const char* name;
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

}  // namespace edge
