// The product of a linear, by registers.
#pragma once

#include "linear_walk.h"

namespace edge {
namespace EDGE_VARIANT {

// Up to so many rows weights pass by once. More rows that meet codes are better served by the larger tile of linear_block,
// which also takes residual columns from what is expanded already.
EDGE_INLINE int64_t stream_rows(const Int8Weight& weight) {
  constexpr int64_t kCodeRows = 7;
  return weight.codes == nullptr ? Int8Dot::kStreamRows : min_i64(kCodeRows, Int8Dot::kStreamRows);
}

// The whole product; `rows_of` as in prepare_rows makes the activations.
template <class RowsOf>
static bool linear_product(LinearPlan& plan, ThreadPool& pool, const RowsOf& rows_of) {
  constexpr int64_t kProductsPerWorker = 128 << 10;  // some microseconds: less is not worth waking a core
  const int64_t products = plan.rows * (plan.weight.channels + plan.up.channels) * plan.weight.columns;
  const int workers = static_cast<int>(min_i64(pool.threads(), 1 + products / kProductsPerWorker));
  if (plan.rows > stream_rows(plan.weight)) return linear_block(plan, workers, pool, rows_of);
  if (!prepare_rows(plan.rows, plan.weight.columns, pool, rows_of)) return false;
  const ResidualEntry* worker_entries[kMaxThreads];
  collect_entries(pool, worker_entries);
  plan.worker_entries = worker_entries;
  linear_stream(plan, workers, pool);
  return true;
}

}  // namespace EDGE_VARIANT
}  // namespace edge
