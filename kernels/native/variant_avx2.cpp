#define EDGE_VARIANT avx2
#include "variant.h"
