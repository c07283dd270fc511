#define EDGE_VARIANT portable
#include "variant.h"
