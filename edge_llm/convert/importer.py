"""Import: a float model becomes a bundle, in one sweep over its layers.

    digest the source -> tokenizer, template, calibration sequences -> per layer: read, run, profile, quantize, write
    -> final norm, output (or tied embedding) -> text files, float copy if wanted -> manifest -> rename

At any time about one layer is in memory, beside the embedding while it is quantized.  The bundle grows in a hidden
folder beside its place and appears by a rename, so a half-written one is never visible; whatever goes wrong, Ctrl-C
included, the folder goes, and the next import clears what a killed one left behind.

    path = import_model("~/models/qwen2.5-0.5b", name="qwen")
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from edge_llm.config import ModelConfig
from edge_llm.convert.calibrate import (
    LAYER_PARTS,
    CalibrationText,
    calibration_sequences,
    read_calibration,
    run_layer,
)
from edge_llm.convert.staging import Staging, clear_leftovers
from edge_llm.errors import EdgeLLMError, InvalidModel, ModelNotFound, StorageError, UnsupportedModel, UsageError
from edge_llm.files import RegularFile, read_file, shown
from edge_llm.formats.bundle import BundleWriter, open_bundle
from edge_llm.formats.safetensors import SourceFolder, open_model_folder
from edge_llm.models import load_config
from edge_llm.models.reference import rms_norm, rope_tables
from edge_llm.models.weights import check_tensors, read_embedding, read_final_norm, read_layer, read_output
from edge_llm.paths import bundle_path, safe_name
from edge_llm.quant.profile import (
    HOT_FACTOR,
    HOT_SHARE,
    OVERFLOW_PRICE,
    ChannelStatistics,
    LinearProfile,
    OutlierProfile,
    choose_hot,
    choose_scale,
    measure,
)
from edge_llm.quant.scheme import MAX_FLOAT16, QuantizedWeight, quantize_weight
from edge_llm.text.chat import ChatTemplate, find_template
from edge_llm.text.tokenizer import Tokenizer
