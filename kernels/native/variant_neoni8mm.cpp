#define EDGE_VARIANT neoni8mm
#include "variant.h"
