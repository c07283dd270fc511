#define EDGE_VARIANT neondot
#include "variant.h"
