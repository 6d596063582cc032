"""Memory by parts, against figures of the field notes; CPUs by topology."""

from __future__ import annotations

from dataclasses import replace

import pytest

from edge.sizing import choose_cpus, cores, memory_need, mib, most_threads
from edge.survey import MIB, Cpu
from tests.unit.recorded import QWEN, survey_of

LOGITS_MIB = {128: 74, 512: 297}  # measured with llama-server


def test_kv_cache_of_qwen_is_12_kib_a_token() -> None:
    assert QWEN.kv_bytes_per_token == 12 * 1024


@pytest.mark.parametrize("ubatch", [128, 512])
def test_buffers_hold_the_measured_logits(ubatch: int) -> None:
    need = memory_need(QWEN, slots=1, context_per_slot=2048, cache_ram_mib=0, ubatch_size=ubatch)
    activations = ubatch * 4 * (4 * 896 + 2 * 4864)
    assert (need.buffers - activations) / MIB == pytest.approx(LOGITS_MIB[ubatch], abs=0.5)


def test_the_sum_has_every_part() -> None:
    need = memory_need(QWEN, slots=2, context_per_slot=2048, cache_ram_mib=128, ubatch_size=128)
    assert need.weights == QWEN.size_bytes
    assert need.kv == 48 * MIB
    assert need.cache == 128 * MIB
    assert need.base == 64 * MIB
    assert need.margin == QWEN.size_bytes // 4
    assert need.total == sum(
        (need.weights, need.kv, need.buffers, need.cache, need.base, need.margin)
    )
    assert str(need) == ("weights 469 + kv 48 + buffers 81 + cache 128 + base 64 + margin 118 MiB")


@pytest.mark.parametrize(("size", "rounded"), [(0, 0), (1, 1), (MIB, 1), (MIB + 1, 2)])
def test_mib_rounds_up(size: int, rounded: int) -> None:
    assert mib(size) == rounded


def test_the_lowest_sibling_stands_for_a_core() -> None:
    assert [cpu.id for cpu in cores(survey_of("ryzen-3500u"))] == [0, 2, 4, 6]
    # The other numbering: siblings are n and n + 12.
    assert [cpu.id for cpu in cores(survey_of("xeon-2-sockets"))] == list(range(12))


def test_an_offline_sibling_is_replaced_by_the_other() -> None:
    survey = survey_of("ryzen-3500u")
    off = replace(survey, cpus=tuple(replace(cpu, online=cpu.id != 2) for cpu in survey.cpus))
    assert [cpu.id for cpu in cores(off)] == [0, 3, 4, 6]
    assert off.physical_cores == 4


def test_equal_core_numbers_on_two_sockets_are_two_cores() -> None:
    cpus = (Cpu(0, 0, 0, 0, True), Cpu(1, 0, 1, 0, True))
    assert len(cores(replace(survey_of("n100"), cpus=cpus))) == 2


def test_choice_on_one_node() -> None:
    choice = choose_cpus(survey_of("n100"), 2, 1, 0)
    assert (choice.cpus, choice.node) == ((1, 2), None)
    assert choice.reason == "one logical CPU a physical core; 1 of 4 cores kept for the system"


@pytest.mark.parametrize(
    ("need_mib", "most", "node"), [(1000, 6, 1), (32_100, 6, 1), (40_000, 11, None)]
)
def test_most_threads_of_a_node(need_mib: int, most: int, node: int | None) -> None:
    assert most_threads(survey_of("xeon-2-sockets"), 1, need_mib * MIB) == (most, node)
