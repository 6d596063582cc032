"""Whatever the host, the settings and the model: a plan that holds, or a reason with a way out."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from edge.model_info import ModelInfo
from edge.plan import HostPlan
from edge.settings import HARDWARE_GROUPS, Problem, Settings, check_host
from edge.sizing import SYSTEM_RESERVE, mib
from edge.solver import solve
from edge.survey import MIB, Cpu, IdleState, Survey
from tests.unit.recorded import NAMES, QWEN, offer_for, survey_of

RECORDED = [survey_of(name) for name in NAMES]
SUGGESTION = re.compile(
    r"\b(threads|system_cores|context_per_slot|memory_max_mib|cpu_share_percent) = (\d+)"
    r"(?: (?:with|and) (?:cpu_share_percent|memory_max_mib) = (\d+|\"auto\"))?"
)


@st.composite
def topologies(draw: st.DrawFn) -> tuple[tuple[Cpu, ...], int]:
    """CPUs of a machine with sockets, SMT in either numbering, some of them offline; nodes."""
    packages = draw(st.integers(1, 2))
    cores = draw(st.integers(1, 12))
    smt = draw(st.integers(1, 2))
    nodes = draw(st.sampled_from([1, packages, 2 * packages]))
    adjacent = draw(st.booleans())
    every = [(p, c, t) for t in range(smt) for p in range(packages) for c in range(cores)]
    if adjacent:
        every.sort()
    off = draw(st.sets(st.integers(1, max(len(every) - 1, 1)), max_size=len(every) // 2))
    cpus = tuple(
        Cpu(number, core, package, (package * cores + core) * nodes // (packages * cores),
            number not in off)
        for number, (package, core, _) in enumerate(every)
    )  # fmt: skip
    return cpus, nodes


@st.composite
def surveys(draw: st.DrawFn) -> Survey:
    cpus, nodes = draw(topologies())
    memory = draw(st.integers(128, 64 * 1024)) * MIB + draw(st.integers(0, MIB - 1))
    states = draw(st.integers(0, 5))
    return replace(
        draw(st.sampled_from(RECORDED)),
        cpus=cpus,
        node_memory=dict.fromkeys(range(nodes), memory // nodes),
        memory_total=memory,
        idle_driver=draw(st.sampled_from(["none", "intel_idle", "acpi_idle", "haltpoll"])),
        idle_states=tuple(IdleState(n, f"C{n}", n * 10, False) for n in range(states)),
        boot=draw(st.sampled_from(RECORDED)).boot,
        glibc=draw(st.sampled_from([None, (2, 31), (2, 35), (2, 36), (2, 41)])),
        python=draw(st.sampled_from(["", "3.9", "3.10", "3.13"])),
        page_size=draw(st.sampled_from([4096, 16384, 65536])),
        throttled=draw(st.sampled_from([None, 0, 0x50005])),
        cgroup_controllers=draw(st.sampled_from([frozenset(), frozenset({"memory", "cpu"})])),
    )


@st.composite
def good_surveys(draw: st.DrawFn) -> Survey:
    """Hosts that an engine and the proxy run on, so that only the numbers matter."""
    survey = draw(surveys())
    page = 16384 if survey.arch == "aarch64" else 4096
    arch = survey.arch if survey.arch in ("x86_64", "aarch64") else "aarch64"
    return replace(survey, glibc=(2, 36), python="3.11", page_size=page, arch=arch)


def models() -> st.SearchStrategy[ModelInfo]:
    return st.one_of(
        st.just(QWEN),
        st.builds(
            replace,
            st.just(QWEN),
            size_bytes=st.integers(10 * MIB, 16 * 1024 * MIB),
            layers=st.integers(1, 80),
            kv_heads=st.integers(0, 16),  # 0: a model without attention
            context_length=st.sampled_from([512, 2048, 32768, 131072]),
            vocab_size=st.integers(1000, 260_000),
            embedding_length=st.integers(128, 8192),
        ),
    )


def asked() -> st.SearchStrategy[Settings]:
    choices: dict[str, st.SearchStrategy[Any]] = {
        "threads": st.just("auto") | st.integers(1, 32),
        "system_cores": st.integers(0, 8),
        "slots": st.just("auto") | st.integers(1, 16),
        "context_per_slot": st.sampled_from([1024, 2048, 4096, 32768, 100_000]),
        "cache_ram_mib": st.just("auto") | st.integers(0, 4096),
        "ubatch_size": st.sampled_from([32, 128, 512]),
        "cpu_share_percent": st.integers(1, 100),
        "memory_max_mib": st.just("auto") | st.integers(64, 20_000),
        "engine_source": st.sampled_from(["auto", "release", "build"]),
        "governor": st.sampled_from(["performance", "keep"]),
        "max_cstate": st.just("keep") | st.integers(1, 9),
        "take_over_power_daemons": st.booleans(),
    }
    return st.fixed_dictionaries({}, optional=choices).map(lambda data: Settings(**data))


def groups() -> st.SearchStrategy[list[str]]:
    return st.lists(st.sampled_from([*HARDWARE_GROUPS, "fleet"]), unique=True)


def solved(
    names: list[str], wanted: Settings, survey: Survey, model: ModelInfo
) -> tuple[HostPlan | None, list[Problem]]:
    offer = offer_for(survey, wanted.engine_source)
    return solve("box", names, wanted, survey, model, offer)


many = settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@many
@given(groups(), asked(), surveys(), models())
def test_a_plan_or_a_reason(
    names: list[str], wanted: Settings, survey: Survey, model: ModelInfo
) -> None:
    plan, problems = solved(names, wanted, survey, model)
    assert (plan is None) == bool(problems)
    for problem in problems:
        assert problem.key in {*Settings.model_fields, "python3"}
        assert problem.what
    if plan is not None:
        assert all(plan.reasons.values())
        plan.to_dict()


@many
@given(groups(), asked(), good_surveys(), models())
def test_a_plan_holds(names: list[str], wanted: Settings, survey: Survey, model: ModelInfo) -> None:
    plan, _ = solved(names, wanted, survey, model)
    if plan is None:
        return
    engine, limits = plan.engine, plan.limits
    by_id = {cpu.id: cpu for cpu in survey.cpus}
    chosen = [by_id[number] for number in engine.cpus]

    assert len(engine.cpus) == len(set(engine.cpus)) == engine.threads >= 1
    assert all(cpu.online for cpu in chosen)
    assert len({(cpu.package, cpu.core) for cpu in chosen}) == engine.threads
    if survey.physical_cores > wanted.system_cores:
        assert engine.threads <= survey.physical_cores - wanted.system_cores
    if engine.numa_node is not None:
        assert {cpu.node for cpu in chosen} == {engine.numa_node}
        assert survey.node_memory[engine.numa_node] >= limits.memory_need.total

    assert limits.cpu_quota_percent == wanted.cpu_share_percent * engine.threads
    assert limits.memory_need.total <= limits.memory_high <= limits.memory_max
    assert limits.memory_max <= survey.memory_total - SYSTEM_RESERVE
    assert limits.memory_max % MIB == 0

    assert engine.slots >= 1
    assert engine.context_total == engine.slots * engine.context_per_slot
    assert engine.context_per_slot == wanted.context_per_slot <= model.context_length

    states = {state.index for state in survey.idle_states}
    assert set(plan.tuning.disabled_idle_states) <= states
    assert set(plan.boot.pending) <= set(plan.boot.tokens) <= set(plan.tuning.kernel_parameters)


@many
@given(asked(), good_surveys(), models())
def test_auto_slots_are_never_what_a_plan_fails_for(
    wanted: Settings, survey: Survey, model: ModelInfo
) -> None:
    free = wanted.model_copy(update={"slots": "auto"})
    one = wanted.model_copy(update={"slots": 1})
    plan, _ = solved([], one, survey, model)
    if plan is not None and wanted.memory_max_mib == "auto":
        assert solved([], free, survey, model)[0] is not None


@many
@given(asked(), good_surveys(), models())
def test_a_suggested_number_is_accepted(wanted: Settings, survey: Survey, model: ModelInfo) -> None:
    _, problems = solved([], wanted, survey, model)
    for problem in problems:
        for key, number, other in SUGGESTION.findall(problem.what.partition("set ")[2]):
            change: dict[str, Any] = {key: int(number)}
            if other:  # "… and memory_max_mib = "auto"", "… with cpu_share_percent = 100"
                auto = other == '"auto"'
                change["memory_max_mib" if auto else "cpu_share_percent"] = (
                    "auto" if auto else int(other)
                )
            data = wanted.model_dump(exclude_defaults=True) | change
            checked, refusals = check_host("box", data)
            both = {"max_tokens"} if "max_tokens below it" in problem.what else set()
            assert {refusal.key for refusal in refusals} <= both | _before(wanted), refusals
            _, left = solved([], checked or Settings(**data), survey, model)
            assert problem.key not in {each.key for each in left}, (change, problem, left)


def _before(wanted: Settings) -> set[str]:
    """Refused in these settings already, whatever number is changed."""
    _, refusals = check_host("box", wanted.model_dump(exclude_defaults=True))
    return {refusal.key for refusal in refusals}


@many
@given(good_surveys())
def test_defaults_work_wherever_there_is_memory(survey: Survey) -> None:
    roomy = replace(survey, memory_total=max(survey.memory_total, 1536 * MIB))
    plan, problems = solved([], Settings(), roomy, QWEN)
    assert plan is not None, problems
    assert mib(plan.limits.memory_max) >= 883
