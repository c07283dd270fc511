// Rows of a GGUF file as a panel (see kernels/blocks.py, `lay_out`; kernels/reference/blocks.py defines it).
// Plain C++: this runs when a file is read, bound by the disk.
#pragma once

#include <stdint.h>
#include <string.h>

#include "table_blocks.h"

namespace edge {

// One block of a file: where its scale and its minimum lie, and its other scales and codes, a byte each.
struct FileBlock {
  const uint8_t *scale, *least;          // float16, or the exponent of MXFP4; `least` null: none
  uint8_t fine[16], fine_least[8];       // of the kinds that have them
  uint8_t codes[256];
};

// `bits` bits of each of `group` bytes, the lowest first: group * 8 / bits codes, into the low or (|=, << shift) upper bits.
inline void spread_codes(const uint8_t* packed, int group, int bits, int shift, uint8_t* codes) {
  const int each = 8 / bits, mask = (1 << bits) - 1;
  for (int part = 0; part < each; ++part)
    for (int i = 0; i < group; ++i) {
      const int code = (packed[i] >> (part * bits) & mask) << shift;
      uint8_t& to = codes[part * group + i];
      to = static_cast<uint8_t>(shift == 0 ? code : to | code);
    }
}

inline void fifth_bits(const uint8_t* bits, uint8_t* codes) {
  for (int i = 0; i < 32; ++i) codes[i] = static_cast<uint8_t>(codes[i] | (bits[i / 8] >> (i % 8) & 1) << 4);
}

inline void read_file_block(const uint8_t* block, int kind, FileBlock& to) {
  to.scale = block;
  to.least = kBlockShapes[kind].has_least ? block + 2 : nullptr;
  switch (kind) {
    case kQ4_0:
    case kIq4Nl: spread_codes(block + 2, 16, 4, 0, to.codes); break;
    case kQ4_1: spread_codes(block + 4, 16, 4, 0, to.codes); break;
    case kMxfp4: spread_codes(block + 1, 16, 4, 0, to.codes); break;
    case kQ5_0:
      spread_codes(block + 6, 16, 4, 0, to.codes);
      fifth_bits(block + 2, to.codes);
      break;
    case kQ5_1:
      spread_codes(block + 8, 16, 4, 0, to.codes);
      fifth_bits(block + 4, to.codes);
      break;
    case kQ8_0:
      for (int i = 0; i < 32; ++i) to.codes[i] = block[2 + i] ^ 128;
      break;
    case kQ4_K:
    case kQ5_K: {
      const uint8_t *first = block + 4, *second = block + 8, *third = block + 12;
      for (int i = 0; i < 4; ++i) {
        to.fine[i] = first[i] & 63;
        to.fine[4 + i] = static_cast<uint8_t>((third[i] & 15) | (first[i] >> 6 << 4));
        to.fine_least[i] = second[i] & 63;
        to.fine_least[4 + i] = static_cast<uint8_t>(third[i] >> 4 | second[i] >> 6 << 4);
      }
      const uint8_t* codes = block + (kind == kQ4_K ? 16 : 48);
      for (int part = 0; part < 4; ++part) spread_codes(codes + 32 * part, 32, 4, 0, to.codes + 64 * part);
      if (kind == kQ5_K) spread_codes(block + 16, 32, 1, 4, to.codes);
      break;
    }
    case kQ6_K:
      to.scale = block + 208;
      memcpy(to.fine, block + 192, 16);
      for (int part = 0; part < 2; ++part) {
        spread_codes(block + 64 * part, 64, 4, 0, to.codes + 128 * part);
        spread_codes(block + 128 + 32 * part, 32, 2, 4, to.codes + 128 * part);
      }
      break;
    default: {  // kIq4Xs
      const int upper = block[2] | block[3] << 8;
      for (int i = 0; i < 8; ++i)
        to.fine[i] = static_cast<uint8_t>((block[4 + i / 2] >> (i % 2 * 4) & 15) + (upper >> (2 * i) & 3) * 16 - 32);
      for (int part = 0; part < 8; ++part) spread_codes(block + 8 + 16 * part, 16, 4, 0, to.codes + 32 * part);
    }
  }
}

// 32 codes of row i of a panel, into its group of code bytes, which were 0.
inline void place_codes(const uint8_t* codes, int bits, int64_t row, uint8_t* group) {
  for (int c = 0; c < kBlockGroup; ++c) {
    const int tile = c / kTileDepth, code = codes[c];
    uint8_t* at = group + row * kTileDepth + c % kTileDepth;
    const auto set = [&](int number, int value) { at[number * kTileBytes] = static_cast<uint8_t>(at[number * kTileBytes] | value); };
    if (bits == 8) {
      set(tile, code);
      continue;
    }
    set(tile / 2, (code & 15) << (tile % 2 * 4));
    if (bits == 5) set(4, code >> 4 << tile);
    if (bits == 6) set(4 + tile / 4, code >> 4 << (2 * (tile % 4)));
  }
}

// Panel `number` of the rows in `raw`; every byte of `to` is written.
inline void lay_out_panel(const uint8_t* raw, const BlockPanels& weight, int64_t number, uint8_t* to) {
  const BlockShape& shape = weight.shape();
  const int64_t blocks = weight.columns / shape.columns, row_bytes = blocks * shape.file_bytes;
  const int64_t first = number * kTileChannels, left = weight.channels - first;
  const int64_t rows = left < kTileChannels ? left : kTileChannels;
  const int fine = shape.columns / shape.width, scale_bytes = weight.kind == kMxfp4 ? 1 : 2;
  memset(to, 0, static_cast<size_t>(weight.panel_bytes()));
  for (int64_t row = 0; row < rows; ++row)
    for (int64_t b = 0; b < blocks; ++b) {
      FileBlock block;
      read_file_block(raw + (first + row) * row_bytes + b * shape.file_bytes, weight.kind, block);
      uint8_t* head = to + b * shape.head;
      memcpy(head + row * scale_bytes, block.scale, static_cast<size_t>(scale_bytes));
      head += kTileChannels * scale_bytes;
      if (block.least != nullptr) {
        memcpy(head + row * 2, block.least, 2);
        head += kTileChannels * 2;
      }
      if (shape.columns != kBlockGroup) {
        for (int i = 0; i < fine; ++i) head[i * kTileChannels + row] = block.fine[i];
        if (block.least != nullptr)
          for (int i = 0; i < fine; ++i) head[(fine + i) * kTileChannels + row] = block.fine_least[i];
      }
      const int64_t groups = shape.columns / kBlockGroup;
      for (int64_t g = 0; g < groups; ++g)
        place_codes(block.codes + g * kBlockGroup, shape.bits, row,
                    to + weight.head_bytes() + (b * groups + g) * weight.group_bytes());
    }
}

}  // namespace edge
