from __future__ import annotations

import dataclasses
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from edge.model_info import KNOWN_MODELS, ModelFileError, read_model_info
from tests.unit.tiny_gguf import write_gguf

QWEN = "74a4da8c9fdbcd15bd1f6d01d621410d31c6fc00986f5eb687824e7b93d7a9db"


def test_the_default_model_is_known_before_its_download() -> None:
    info = KNOWN_MODELS[QWEN]
    assert info.sha256 == QWEN
    assert info.size_bytes == 491_400_032
    assert info.kv_bytes_per_token == 12 * 1024


def test_reads_the_header(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "tiny-q4.gguf")
    info = read_model_info(path, "0" * 64)
    assert dataclasses.asdict(info) == {
        "sha256": "0" * 64,
        "size_bytes": path.stat().st_size,
        "file_name": "tiny-q4.gguf",
        "architecture": "qwen2",
        "name": "Tiny Test",
        "layers": 3,
        "kv_heads": 2,
        "key_length": 16,
        "value_length": 16,
        "embedding_length": 64,
        "feed_forward_length": 128,
        "vocab_size": 300,
        "context_length": 2048,
        "file_type": "Q4_K_M",
        "has_chat_template": True,
    }
    assert info.kv_bytes_per_token == 3 * 2 * (16 + 16) * 2


def test_steps_over_a_long_vocabulary_and_still_finds_what_follows(tmp_path: Path) -> None:
    info = read_model_info(write_gguf(tmp_path / "long.gguf", tokens=20_000))
    assert info.vocab_size == 20_000
    assert info.has_chat_template  # it is written after the vocabulary


def test_of_heads_by_layer_the_most_count(tmp_path: Path) -> None:
    assert read_model_info(write_gguf(tmp_path / "m.gguf", kv_heads=[1, 4, 2])).kv_heads == 4


def test_without_kv_heads_every_head_has_its_own(tmp_path: Path) -> None:
    assert read_model_info(write_gguf(tmp_path / "m.gguf", kv_heads=None)).kv_heads == 4


def test_says_when_there_is_no_chat_template(tmp_path: Path) -> None:
    assert not read_model_info(write_gguf(tmp_path / "m.gguf", template=False)).has_chat_template


@pytest.mark.parametrize(
    ("contents", "says"),
    [
        (b"", "empty"),
        (b"\n<!DOCTYPE html><html><title>Sign in</title>", "web page"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:00", "Git LFS pointer"),
        (b"PK\x03\x04 something else", "another kind of file"),
        (b"GGUF\x03\x00\x00\x00\xff", "cut short"),
    ],
)
def test_refuses_what_is_no_model(tmp_path: Path, contents: bytes, says: str) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(contents)
    with pytest.raises(ModelFileError, match=says) as error:
        read_model_info(path)
    assert "model.gguf" in str(error.value)


@pytest.mark.parametrize("share", [0.02, 0.3, 0.6, 0.9, 0.999])
@pytest.mark.parametrize("tokens", [300, 20_000])
def test_refuses_a_file_that_ends_early(tmp_path: Path, tokens: int, share: float) -> None:
    path = write_gguf(tmp_path / "model.gguf", tokens=tokens)
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * share)])
    with pytest.raises(ModelFileError, match="cut short"):
        read_model_info(path)


def test_refuses_an_absurd_count(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "model.gguf", tokens=20_000)
    count = struct.pack("<Q", 20_000)
    assert path.read_bytes().count(count) == 2
    path.write_bytes(path.read_bytes().replace(count, struct.pack("<Q", 2**60)))
    with pytest.raises(ModelFileError, match="cut short"):
        read_model_info(path)


def test_refuses_a_vocabulary_without_weights(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match="no weights"):
        read_model_info(write_gguf(tmp_path / "vocab.gguf", tensors=False))


def test_names_the_keys_that_are_missing(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match=r"qwen2\.block_count"):
        read_model_info(write_gguf(tmp_path / "odd.gguf", layers=False))


def test_refuses_one_part_of_several(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match="one part"):
        read_model_info(write_gguf(tmp_path / "m-00001-of-00002.gguf", parts=2))


def test_loads_no_network_client() -> None:
    code = (
        "import sys, edge.model_info, edge.artifacts.sources, edge.artifacts.engine_pins\n"
        "print([m for m in ('requests', 'huggingface_hub', 'pyinfra') if m in sys.modules])"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert said.stdout.strip() == "[]"
