"""A real GGUF file, small enough for a unit test."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from gguf import GGUFWriter, LlamaFileType


def write_gguf(
    path: Path,
    *,
    tokens: int = 300,
    tensors: bool = True,
    kv_heads: int | list[int] | None = 2,
    layers: bool = True,
    parts: int = 0,
    template: bool = True,
) -> Path:
    """A tiny model in Qwen2's manner: 4 heads 16 wide, 3 layers."""
    writer = GGUFWriter(path, "qwen2")
    writer.add_name("Tiny Test")
    if layers:
        writer.add_block_count(3)
    writer.add_context_length(2048)
    writer.add_embedding_length(64)
    writer.add_feed_forward_length(128)
    writer.add_head_count(4)
    if kv_heads is not None:
        writer.add_head_count_kv(kv_heads)
    writer.add_file_type(LlamaFileType.MOSTLY_Q4_K_M)
    writer.add_token_list([f"token{n}" for n in range(tokens)])
    writer.add_token_types([1] * tokens)
    if template:
        writer.add_chat_template("{{ messages }}")
    if parts:
        writer.add_uint16("split.count", parts)
    if tensors:
        writer.add_tensor("token_embd.weight", np.ones((8, 64), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
