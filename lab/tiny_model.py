"""The machine tier's model: a few megabytes of random weights behind a real tokenizer.

An emulated processor takes seconds for one token of a real model. What counts there is that the
rollout, the engine and the chat are right, not what is said. Words come out, in no order.
"""

from __future__ import annotations

import hashlib
import re
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType, GGUFReader, GGUFWriter, LlamaFileType, TokenType
from gguf.quants import quantize

from lab import model
from lab.paths import Lab
from lab.progress import step
from lab.system import give_to_person

REPO = "edge-lab/tiny-random-GGUF"
FILE = "tiny-random.Q8_0.gguf"

_LAYERS, _WIDTH, _HEADS, _KV_HEADS, _FEED_FORWARD = 2, 64, 2, 1, 128
_CONTEXT = 8192
_HEAD_WIDTH = _WIDTH // _HEADS
# What the model can say: whole words with the space before them, as this vocabulary writes one.
_WORD = re.compile("Ġ[a-z]{2,}")


def ensure(lab: Lab) -> model.LabModel:
    """The model in the cache, made first if it is not there. Needs the lab's real model there."""
    real = model.ensure(lab)
    recipe = [Path(__file__).read_text(), real.sha256, version("gguf"), version("numpy")]
    digest = hashlib.sha256("\n".join(recipe).encode()).hexdigest()[:16]
    file = lab.models / f"tiny-{digest}" / FILE
    if not file.is_file():
        file.parent.mkdir(parents=True, exist_ok=True)
        give_to_person(lab.models, file.parent)
        with (
            step("making the emulated machines' model, with the real one's tokenizer (once)"),
            tempfile.TemporaryDirectory(dir=file.parent) as scratch,
        ):
            made = Path(scratch) / FILE
            write(made, real.path)
            give_to_person(made)
            made.replace(file)
    sha256 = hashlib.sha256(file.read_bytes()).hexdigest()
    return model.LabModel(REPO, sha256[:40], sha256, file)


def write(target: Path, real: Path) -> None:
    """Write the model with the tokenizer and the chat template of a real one; same bytes always."""
    reader = GGUFReader(real)
    writer = GGUFWriter(target, "llama")
    writer.add_name("Tiny Random")
    writer.add_block_count(_LAYERS)
    writer.add_context_length(_CONTEXT)
    writer.add_embedding_length(_WIDTH)
    writer.add_feed_forward_length(_FEED_FORWARD)
    writer.add_head_count(_HEADS)
    writer.add_head_count_kv(_KV_HEADS)
    writer.add_rope_dimension_count(_HEAD_WIDTH)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_file_type(LlamaFileType.MOSTLY_Q8_0)
    for name, field in reader.fields.items():
        if name.startswith("tokenizer."):
            kind, *inner = field.types
            writer.add_key_value(
                name, field.contents(), kind, sub_type=inner[-1] if inner else None
            )
    tokens = reader.fields["tokenizer.ggml.tokens"].contents()
    kinds = reader.fields["tokenizer.ggml.token_type"].contents()
    writer.add_vocab_size(len(tokens))
    _add_weights(writer, tokens, kinds)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add_weights(writer: GGUFWriter, tokens: list[str], kinds: list[int]) -> None:
    random = np.random.default_rng(4)

    def matrix(name: str, rows: int, columns: int, keep: Any = 1) -> None:
        weights = random.uniform(-1, 1, (rows, columns)).astype(np.float32) * keep
        packed = quantize(weights / np.float32(columns) ** 0.5, GGMLQuantizationType.Q8_0)
        writer.add_tensor(f"{name}.weight", packed, raw_dtype=GGMLQuantizationType.Q8_0)

    def norm(name: str) -> None:
        writer.add_tensor(f"{name}.weight", np.ones(_WIDTH, np.float32))

    # The embeddings are the output too: a token whose row is zero is never the likeliest, so that
    # neither half a character nor the end of the answer comes out.
    said = [
        kind == TokenType.NORMAL and bool(_WORD.fullmatch(token))
        for token, kind in zip(tokens, kinds, strict=True)
    ]
    matrix("token_embd", len(tokens), _WIDTH, np.array(said, np.float32)[:, None])
    norm("output_norm")
    for layer in range(_LAYERS):
        block = f"blk.{layer}"
        norm(f"{block}.attn_norm")
        matrix(f"{block}.attn_q", _WIDTH, _WIDTH)
        matrix(f"{block}.attn_k", _KV_HEADS * _HEAD_WIDTH, _WIDTH)
        matrix(f"{block}.attn_v", _KV_HEADS * _HEAD_WIDTH, _WIDTH)
        matrix(f"{block}.attn_output", _WIDTH, _WIDTH)
        norm(f"{block}.ffn_norm")
        matrix(f"{block}.ffn_gate", _FEED_FORWARD, _WIDTH)
        matrix(f"{block}.ffn_up", _FEED_FORWARD, _WIDTH)
        matrix(f"{block}.ffn_down", _WIDTH, _FEED_FORWARD)
