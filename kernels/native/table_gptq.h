// Function pointers and argument structs of gptq.h.
#pragma once

#include <stdint.h>

namespace edge {

// Columns of a panel, and rows of a weight that are fitted together.
constexpr int64_t kFitWidth = 64;
constexpr int64_t kFitGroup = 32;  // columns that share a step, where weights are codes

// A matrix [K, K] in panels of kFitWidth columns, each [K, kFitWidth], zeros beyond K.
struct FitPanels {
  float* data;
  int64_t columns;  // K

  int64_t count() const { return (columns + kFitWidth - 1) / kFitWidth; }
  // Row `row` of panel `panel`.
  float* at(int64_t panel, int64_t row) const { return data + (panel * columns + row) * kFitWidth; }
};

struct GatherPanels {
  const float* matrix;   // [K, K]
  const int64_t* order;  // [K]
  FitPanels to;          // to[i, j] = matrix[order[i], order[j]]
};

// See kernels/reference/gptq.py.
struct FitWeight {
  const float* weight;   // [N, K]
  int64_t rows;          // N
  FitPanels panels;      // of the factor, or of the energy; its columns are those of the weight in `order`
  const int64_t* order;  // [K]
  int64_t kept;          // the last so many columns of `order` are not rounded
  const float* step;     // [G, N]
  const float* inverse;  // [G, N]; null: whole steps to 127, and G is 1
  const float* shift;    // [G, N]
  int64_t passes;        // of descent
  float* found;          // [N, K]; descent begins with what is there

  int64_t strip_floats() const { return panels.columns * kFitWidth; }
};

struct FitKernels {
  void (*gather)(const GatherPanels&, int64_t begin, int64_t end);  // rows
  // Rows of the factor that panel `block` has on its diagonal: there (false: not positive), then in panels begin..end-1.
  bool (*factor_diagonal)(const FitPanels&, int64_t block);
  void (*factor_panels)(const FitPanels&, int64_t block, int64_t begin, int64_t end);
  // Strips of kFitWidth rows; `scratch` has strip_floats(), twice as many for descent.
  void (*fit)(const FitWeight&, float* scratch, int64_t begin, int64_t end);
  void (*descend)(const FitWeight&, float* scratch, int64_t begin, int64_t end);
};

}  // namespace edge
