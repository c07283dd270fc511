// Int8Dot: the INT8 product of one 16-channel panel, the only part of the linear kernels written per ISA.
//
//   Activation   how a quantized value lies in memory; made from one by `activation`, from sixteen by `store`
//   place        where: row by row, `stride` apart, or (kRowGroup 2) two rows interleaved in the room of both
//   multiply     the microkernel, in <multiply.h>; NEON, whose instructions take more than one row or block at a time, has its own,
//                the others share that of `portable`, which is made of these:
//   Broadcast    4 consecutive activations of one row, ready to meet a tile
//   Weights      1/kRegisters of a tile (16 channels x 4 columns, 64 bytes)
//   Accumulator  int32 sums; kRegisters (1, 2 or 4) of them make the 16 channels of a panel, see `finish`
//   kRows x kPanels  the register tile: as many accumulators as the register file holds besides the operands
//   kStreamRows x 1  the tile of a few rows, or of a panel left over
//   kTwoPanelRows x 2  the largest tile of two panels, of the gate and the up half at once; 0: `multiply` takes one
//   kOffsetBits  b > 0: 2^b was added to the activations, so the product is too large by 2^b * row_sum
//
// Every form is exact: the integer sums are equal, so the order and the blocking are free.
#pragma once

#include <dot.h>
#include <multiply.h>
