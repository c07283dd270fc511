#define EDGE_VARIANT avxvnni
#include "variant.h"
