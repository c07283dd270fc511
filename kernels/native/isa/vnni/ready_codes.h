// Panels of codes, made ready for many rows.
#pragma once

#include "isa/portable/ready_codes.h"
