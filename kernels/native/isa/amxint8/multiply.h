// There are no products in registers; see linear_product.h.
#pragma once
