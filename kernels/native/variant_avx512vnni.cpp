#define EDGE_VARIANT avx512vnni
#include "variant.h"
