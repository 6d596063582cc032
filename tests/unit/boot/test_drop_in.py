"""Settings that a shell reads: what they come to without running them, and ours among them."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edge.boot.drop_in import GRUB, U_BOOT, _content
from edge.boot.files import BootFile
from edge.boot.shell_value import sourced

NAME = "GRUB_CMDLINE_LINUX_DEFAULT"


def words_of(*texts: str) -> list[str]:
    files = [BootFile(f"/{number}", text, len(text)) for number, text in enumerate(texts)]
    return [word for word, _ in sourced(files, NAME).words]


def by_shell(folder: Path, *texts: str) -> list[str]:
    """What a shell makes of the same files."""
    lines = []
    for number, text in enumerate(texts):
        (folder / str(number)).write_text(text)
        lines.append(f". {folder}/{number}")
    script = "\n".join([*lines, f'printf %s "${NAME}"'])
    done = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True)
    return done.stdout.split()


FILES = [
    f'{NAME}="quiet splash"\n',
    f"{NAME}='quiet splash'",
    f"  export {NAME}=quiet\n",
    f'# {NAME}="no"\n{NAME}="a=1 \\\n  b=2" # {NAME}=no\n',
    f'{NAME}="${NAME} last"\n',
    f'{NAME}="first ${{{NAME}}}"\n',
    f'{NAME}="${{{NAME}:+${NAME} }}last"\n',
    f'{NAME}="${NAME} x"; {NAME}_ETC="${NAME} y"\n',
    f'GRUB_CMDLINE_LINUX="other"\n{NAME}=""\n',
    f"{NAME}=a\\ b\n",
]


@settings(max_examples=40, deadline=None)  # a shell each
@given(files=st.lists(st.sampled_from(FILES), min_size=1, max_size=4))
def test_it_comes_to_what_a_shell_makes_of_it(
    files: list[str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    found = by_shell(tmp_path_factory.mktemp("sourced"), *files)
    assert sorted(words_of(*files)) == sorted(found)  # where others extend it does not matter


def test_who_set_it_anew_is_told() -> None:
    files = [
        BootFile("/a", f'{NAME}="quiet"\n', 0),
        BootFile("/b", f'{NAME}="${NAME} x"\n', 0),
    ]
    assert sourced(files, NAME).reset_by == "/a"
    assert sourced(files[1:], NAME).reset_by == ""


def test_words_with_quotes_in_quotes_stay_one() -> None:
    text = f"{NAME}='dyndbg=\"file x +p; file y +p\" quiet'\n"
    assert words_of(text) == ['dyndbg="file x +p; file y +p"', "quiet"]
    escaped = f'{NAME}="dyndbg=\\"file x +p\\" quiet"\n'
    assert words_of(escaped) == ['dyndbg="file x +p"', "quiet"]


@pytest.mark.parametrize("before", ["quiet splash", ""])
def test_the_drop_in_for_grub_adds_to_what_is_there(before: str, tmp_path: Path) -> None:
    ours = _content(GRUB, ["a=1", "b=2"])
    assert by_shell(tmp_path, f'{NAME}="{before}"', ours) == [*before.split(), "a=1", "b=2"]


@pytest.mark.parametrize(("before", "expected"), [("ro x", "ro x a=1"), ("", "ro quiet a=1")])
def test_the_drop_in_for_u_boot_keeps_its_default(before: str, expected: str) -> None:
    script = f'U_BOOT_PARAMETERS="{before}"\n{_content(U_BOOT, ["a=1"])}echo $U_BOOT_PARAMETERS'
    done = subprocess.run(["sh", "-euc", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == expected
