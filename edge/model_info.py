"""What a model file says of itself: the figures that a plan is solved from. No network."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

from gguf import GGUFReader, LlamaFileType
from gguf.constants import GGUFValueType

_F16_BYTES = 2
#: Longer arrays are vocabularies: 150 000 entries, of which only the count is wanted.
_LONGEST_READ = 4096


class ModelFileError(Exception):
    """The file is not a model that can be served. The text says why."""


@dataclass(frozen=True)
class ModelInfo:
    """One GGUF model. Lengths are counts of numbers, as in the file's own keys."""

    sha256: str
    size_bytes: int
    file_name: str
    architecture: str
    name: str
    layers: int
    kv_heads: int  # the most that any layer has
    key_length: int
    value_length: int
    embedding_length: int
    feed_forward_length: int
    vocab_size: int
    context_length: int
    file_type: str
    has_chat_template: bool

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes that one token takes in the KV cache: f16 keys and values of every layer."""
        return self.layers * self.kv_heads * (self.key_length + self.value_length) * _F16_BYTES


_QWEN = ModelInfo(
    sha256="74a4da8c9fdbcd15bd1f6d01d621410d31c6fc00986f5eb687824e7b93d7a9db",
    size_bytes=491_400_032,
    file_name="qwen2.5-0.5b-instruct-q4_k_m.gguf",
    architecture="qwen2",
    name="qwen2.5-0.5b-instruct",
    layers=24,
    kv_heads=2,
    key_length=64,
    value_length=64,
    embedding_length=896,
    feed_forward_length=4864,
    vocab_size=151_936,
    context_length=32_768,
    file_type="Q4_K_M",
    has_chat_template=True,
)

#: Models whose plan can be solved before they are downloaded, by sha256.
KNOWN_MODELS: dict[str, ModelInfo] = {_QWEN.sha256: _QWEN}


def read_model_info(
    path: Path, sha256: str | None = None, *, file_name: str | None = None
) -> ModelInfo:
    """Read the header of the GGUF file at `path`; its weights are not read.

    `sha256` is what the caller knows the file by; it is copied, not checked. `file_name` is for
    a file that lies in a cache under another name. Raises ModelFileError for whatever is not one
    whole model: a web page, a truncated file, one part of several, a vocabulary without weights,
    a header without the needed keys.
    """
    header = _open(path)
    if header.number("split.count", default=1) > 1:
        raise ModelFileError(
            f"{path.name} is one part of a model in several files; take a model in one file"
        )
    if not header.reader.tensors:
        raise ModelFileError(f"{path.name} has no weights (a vocabulary only)")
    architecture = header.text("general.architecture")
    if architecture is None:
        raise ModelFileError(f"{path.name} lacks general.architecture: not a language model")

    def own(key: str, default: int | None = None) -> int:
        return header.number(f"{architecture}.{key}", default)

    embedding, heads = own("embedding_length"), own("attention.head_count")
    head_width = embedding // heads if heads > 0 else 0
    info = ModelInfo(
        sha256=sha256 or "",
        size_bytes=path.stat().st_size,
        file_name=file_name or path.name,
        architecture=architecture,
        name=header.text("general.name") or Path(file_name or path.name).stem,
        layers=own("block_count"),
        kv_heads=own("attention.head_count_kv", heads),
        key_length=own("attention.key_length", head_width),
        value_length=own("attention.value_length", head_width),
        embedding_length=embedding,
        feed_forward_length=own("feed_forward_length"),
        vocab_size=header.length("tokenizer.ggml.tokens") or own("vocab_size"),
        context_length=own("context_length"),
        file_type=_file_type(header.number("general.file_type", LlamaFileType.GUESSED)),
        has_chat_template=header.text("tokenizer.chat_template") is not None,
    )
    if header.missing:
        raise ModelFileError(
            f"{path.name} ({architecture}) lacks in its header: {', '.join(header.missing)}. "
            "It is not a model for text generation, or was converted by a very old tool"
        )
    return info


class _QuickReader(GGUFReader):
    """GGUFReader makes a few numpy objects for each of 300 000 tokens and merges: 8 seconds.

    This one steps over long arrays and keeps their length.
    """

    def _get_field_parts(self, orig_offs: int, raw_type: int) -> Any:
        if raw_type == GGUFValueType.ARRAY:
            kind = self._get(orig_offs, "uint32")
            length = self._get(orig_offs + 4, "uint64")
            if length[0] > _LONGEST_READ:
                end = self._end_of_array(orig_offs + 12, GGUFValueType(kind[0]), int(length[0]))
                return end - orig_offs, [kind, length], [], [GGUFValueType.ARRAY]
        return super()._get_field_parts(orig_offs, raw_type)

    def _end_of_array(self, offset: int, kind: GGUFValueType, length: int) -> int:
        if kind != GGUFValueType.STRING:
            return offset + length * int(self.gguf_scalar_to_np[kind]().itemsize)
        view = memoryview(cast(Any, self.data))
        order: Literal["little", "big"] = "little" if self.byte_order == "I" else "big"
        for _ in range(length):
            size = view[offset : offset + 8]
            if len(size) < 8:
                raise IndexError("the file ends inside the vocabulary")
            offset += 8 + int.from_bytes(size, order)
        return offset


class _Header:
    """The key-value part of a file; collects the keys that were asked for in vain."""

    def __init__(self, reader: _QuickReader) -> None:
        self.reader = reader
        self.missing: list[str] = []

    def number(self, key: str, default: int | None = None) -> int:
        """The number at `key`; of one number a layer, the highest."""
        value = self._contents(key)
        if isinstance(value, list):
            value = max(value, default=None)
        if value is None:
            if default is None:
                self.missing.append(key)
            return default or 0
        return int(value)

    def text(self, key: str) -> str | None:
        value = self._contents(key)
        return value if isinstance(value, str) else None

    def length(self, key: str) -> int:
        """The length of the array at `key`, 0 without one."""
        field = self.reader.get_field(key)
        # parts: length of the key, the key, the type; then the array's type and its length
        return int(field.parts[4][0]) if field is not None else 0

    def _contents(self, key: str) -> Any:
        field = self.reader.get_field(key)
        return None if field is None else field.contents()


def _open(path: Path) -> _Header:
    try:
        with path.open("rb") as stream:
            begins = stream.read(512)
    except OSError as error:
        raise ModelFileError(f"{path} cannot be read: {error.strerror}") from error
    for applies, what in _NOT_A_MODEL:
        if applies(begins):
            raise ModelFileError(f"{path.name} is {what}, not a GGUF model")
    try:
        return _Header(_QuickReader(path))
    except (ValueError, IndexError, KeyError, OverflowError, UnicodeDecodeError) as error:
        raise ModelFileError(
            f"{path.name} begins as a GGUF model but is broken or cut short "
            f"({path.stat().st_size} bytes): {error}"
        ) from error


def _is_page(begins: bytes) -> bool:
    return begins.lstrip().lower().startswith((b"<!doctype", b"<html", b"<?xml", b"<head"))


_NOT_A_MODEL: tuple[tuple[Callable[[bytes], bool], str], ...] = (
    (lambda begins: not begins, "empty"),
    (_is_page, "a web page (perhaps a login or an error page)"),
    (lambda begins: begins.startswith(b"version https://git-lfs"), "a Git LFS pointer"),
    (lambda begins: not begins.startswith(b"GGUF"), "another kind of file"),
)


def _file_type(number: int) -> str:
    """Q4_K_M for 15, as the file names write it."""
    try:
        name = LlamaFileType(number).name
    except ValueError:
        return "unknown"
    return "unknown" if name == "GUESSED" else name.removeprefix("MOSTLY_").removeprefix("ALL_")
