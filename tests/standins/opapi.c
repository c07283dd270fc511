// What the generated kernels of the newer kind have in common: descriptions of tensors, lists and numbers, which only name
// what they are of, and the one question that is answered with values.
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { ND = 2, NZ = 29, INT8 = 2, MOST = 8 };

typedef struct {
  int type;
  uint64_t count;
  int64_t sizes[MOST];
} Tensor;

void* aclCreateTensor(const int64_t* sizes, uint64_t count, int type, const int64_t* strides, int64_t offset, int format,
                      const int64_t* storage, uint64_t storage_count, void* data) {
  Tensor* tensor = calloc(1, sizeof *tensor);
  tensor->type = type;
  tensor->count = count < MOST ? count : MOST;
  if (sizes) memcpy(tensor->sizes, sizes, tensor->count * sizeof *sizes);
  return tensor;
}
void* aclCreateScalar(void* value, int type) { return calloc(1, 1); }
void* aclCreateIntArray(const int64_t* values, uint64_t count) { return calloc(1, 1); }
void* aclCreateBoolArray(const _Bool* values, uint64_t count) { return calloc(1, 1); }
void* aclCreateFloatArray(const float* values, uint64_t count) { return calloc(1, 1); }
void* aclCreateTensorList(const void* const* tensors, uint64_t count) { return calloc(1, 1); }
void* aclCreateScalarList(const void* const* values, uint64_t count) { return calloc(1, 1); }

static int release(const void* one) { free((void*)one); return 0; }
int aclDestroyTensor(const void* one) { return release(one); }
int aclDestroyScalar(const void* one) { return release(one); }
int aclDestroyIntArray(const void* one) { return release(one); }
int aclDestroyBoolArray(const void* one) { return release(one); }
int aclDestroyFloatArray(const void* one) { return release(one); }
int aclDestroyTensorList(const void* one) { return release(one); }
int aclDestroyScalarList(const void* one) { return release(one); }

// The storage of a tensor as fractals: (..., ceil(W / C0), ceil(H / 16), 16, C0), C0 being 32 for int8 and 16 for the others.
int aclnnNpuFormatCastCalculateSizeAndFormat(const Tensor* tensor, int format, int more, int64_t** sizes, uint64_t* count,
                                             int* made) {
  *made = format;
  *count = tensor->count;
  *sizes = malloc((MOST + 2) * sizeof **sizes);
  memcpy(*sizes, tensor->sizes, tensor->count * sizeof **sizes);
  if (format != NZ) return 0;
  int64_t c0 = tensor->type == INT8 ? 32 : 16;
  int64_t *last = *sizes + tensor->count - 2, height = last[0], width = last[1];
  last[0] = (width + c0 - 1) / c0, last[1] = (height + 15) / 16, last[2] = 16, last[3] = c0;
  *count += 2;
  return 0;
}
