"""The solver on recorded machines, with numbers worked out by hand; every refusal it can make."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from edge.plan import ENGINE_HOST
from edge.settings import Settings
from edge.solver import Offer, solve
from edge.survey import MIB
from tests.unit.recorded import NAMES, NOW, QWEN, attempt, offer_for, planned, refused, survey_of


def test_n100() -> None:
    plan = planned("n100", "n100")
    engine, limits = plan.engine, plan.limits
    assert plan.hardware == "n100"
    assert (engine.threads, engine.cpus, engine.numa_node) == (3, (1, 2, 3), None)
    assert (engine.context_total, engine.slots, engine.cache_ram_mib) == (4096, 2, 128)
    assert limits.cpu_quota_percent == 225
    # 491400032 weights + 4096 x 12 KiB + (151936 + 4 x 896 + 2 x 4864) x 128 x 4 buffers
    # + 128 MiB cache + 64 MiB + a quarter of the weights
    assert limits.memory_need.total == 950_515_256
    assert limits.memory_max == 1144 * MIB  # 1.2 GB
    assert limits.memory_high == 1144 * MIB * 9 // 10
    assert (limits.cpu_weight, limits.io_weight) == (80, 50)
    assert engine.kind == "release"
    assert (plan.proxy.listen, plan.proxy.port, plan.proxy.python) == ("127.0.0.1", 8000, "3.11")
    assert (plan.proxy.temperature, plan.proxy.max_tokens) == (0.7, 512)
    assert plan.model.name == "qwen2.5-0.5b-instruct-q4_k_m"
    assert plan.model.path == (
        "/opt/edge-llm/models/74a4da8c9fdbcd15/qwen2.5-0.5b-instruct-q4_k_m.gguf"
    )
    assert plan.warnings == ()


@pytest.mark.parametrize(
    ("name", "stored"),
    [
        ("nl\nx.gguf", "nl_x.gguf"),
        ("back\\slash.gguf", "back_slash.gguf"),
        ("..hidden.gguf", "hidden.gguf"),
        ("a b'c%.gguf", "a_b_c_.gguf"),
        ("...", "model"),
        ("\u00e9" * 300 + ".gguf", "_" * 195 + ".gguf"),
    ],
)
def test_a_model_lies_under_a_plain_name(name: str, stored: str) -> None:
    plan, _ = attempt("n100", model=replace(QWEN, file_name=name))
    assert plan is not None
    assert plan.model.path == f"/opt/edge-llm/models/74a4da8c9fdbcd15/{stored}"


def test_engine_arguments() -> None:
    args = planned("n100", "n100").engine.args
    pairs = dict(pairwise(args))
    assert pairs["--host"] == ENGINE_HOST == "127.0.0.1"
    assert pairs["--port"] == "8080"
    assert pairs["--threads"] == pairs["--threads-batch"] == "3"
    assert (pairs["--ctx-size"], pairs["--parallel"]) == ("4096", "2")
    assert pairs["--cache-ram"] == "128"
    assert (pairs["--batch-size"], pairs["--ubatch-size"]) == ("512", "128")


def test_ryzen_gets_one_logical_cpu_a_core() -> None:
    plan = planned("ryzen-3500u", "ryzen")
    assert (plan.engine.threads, plan.engine.cpus) == (3, (2, 4, 6))
    assert (plan.engine.context_total, plan.engine.slots) == (8192, 4)
    assert plan.limits.cpu_quota_percent == 225
    assert plan.limits.memory_need.total == 1_135_064_632  # 1083 MiB, still under 1.2 GB
    assert plan.limits.memory_max == 1144 * MIB
    assert plan.limits.memory_high == plan.limits.memory_need.total  # more than 90%
    assert any("power-profiles-daemon" in warning for warning in plan.warnings)


def test_ryzen_with_eight_cores() -> None:
    plan = planned("ryzen-7840hs", "ryzen")
    assert (plan.engine.threads, plan.engine.cpus) == (7, (2, 4, 6, 8, 10, 12, 14))
    assert plan.limits.cpu_quota_percent == 525
    assert plan.proxy.python == "3.13"


def test_pi5_with_4_gb() -> None:
    plan = planned("pi5-4gb", "pi5")
    assert (plan.engine.threads, plan.engine.cpus) == (3, (1, 2, 3))
    assert (plan.engine.context_total, plan.engine.slots) == (2048, 1)
    assert plan.engine.cache_ram_mib == 64
    assert plan.limits.memory_need.total == 858_240_568  # 819 MiB
    assert plan.limits.memory_max == 1144 * MIB
    # The official arm64 tarball wants glibc 2.39, Debian 12 has 2.36.
    assert plan.engine.kind == "build"
    assert "needs glibc 2.39, not 2.36" in plan.reasons["engine.release_id"]
    assert plan.reboot.until == "memory limits are not enforced until then"
    assert any("get_throttled = 0x50000" in text for text in plan.warnings)


def test_pi5_with_8_gb_and_emulated_numa() -> None:
    plan = planned("pi5-8gb", "pi5")
    assert (plan.engine.context_total, plan.engine.slots) == (4096, 2)
    assert (plan.engine.cpus, plan.engine.numa_node) == ((1, 2, 3), None)
    assert plan.warnings == ()


def test_two_sockets_stay_on_one_node() -> None:
    plan = planned("xeon-2-sockets")
    # CPU 0 is the system's, so node 1 has more cores left. Odd CPUs are node 1's.
    assert (plan.engine.threads, plan.engine.cpus) == (6, (1, 3, 5, 7, 9, 11))
    assert plan.engine.numa_node == 1
    assert plan.limits.cpu_quota_percent == 450
    assert plan.reasons["engine.threads"].endswith("6 of them on NUMA node 1")
    assert plan.reasons["class"].startswith("in no hardware group: decided by the survey (Intel")


def test_more_threads_than_a_node_has_cross_the_nodes() -> None:
    plan = planned("xeon-2-sockets", threads=8)
    assert plan.engine.numa_node is None
    assert plan.engine.cpus == (1, 2, 3, 4, 5, 6, 7, 8)
    assert "across NUMA nodes" in plan.reasons["engine.cpus"]


def test_a_model_too_large_for_a_node_crosses_the_nodes() -> None:
    small = replace(survey_of("xeon-2-sockets"), node_memory={0: 512 * MIB, 1: 600 * MIB})
    plan = planned(small)
    assert (plan.engine.threads, plan.engine.numa_node) == (11, None)


def test_the_node_with_enough_memory_is_taken() -> None:
    lopsided = replace(survey_of("xeon-2-sockets"), node_memory={0: 32768 * MIB, 1: 600 * MIB})
    plan = planned(lopsided)
    assert (plan.engine.numa_node, plan.engine.cpus) == (0, (2, 4, 6, 8, 10))


def test_virtual_machine() -> None:
    plan = planned("vm-no-cpufreq")
    assert (plan.engine.threads, plan.engine.cpus) == (1, (1,))
    assert plan.limits.cpu_quota_percent == 75
    assert plan.tuning.reasons["governor"].startswith("n/a")


def test_one_core_is_shared_with_the_system() -> None:
    plan = planned("one-core")
    assert (plan.engine.threads, plan.engine.cpus) == (1, (0,))
    assert plan.limits.cpu_quota_percent == 75
    assert (plan.engine.slots, plan.limits.memory_max) == (1, 1144 * MIB)


def test_minimal_host_will_have_its_distributions_python() -> None:
    assert planned("minimal").proxy.python == "3.13"


def test_a_provisioned_host_has_the_same_plan_as_before() -> None:
    before, after = planned("n100", "n100"), planned("provisioned", "n100")
    assert (after.engine, after.limits, after.model) == (before.engine, before.limits, before.model)
    assert after.tuning.kernel_parameters == before.tuning.kernel_parameters
    assert before.boot.pending
    assert after.boot.pending == ()


@pytest.mark.parametrize("name", [name for name in NAMES if "32bit" not in name])
def test_every_number_has_a_reason(name: str) -> None:
    reasons = planned(name).reasons
    assert all(reasons.values())
    assert reasons.keys() >= {
        "class", "engine.release_id", "engine.threads", "engine.cpus", "engine.slots",
        "engine.context_per_slot", "engine.cache_ram_mib", "limits.memory_need",
        "limits.memory_max", "limits.cpu_quota_percent", "tuning.governor",
    }  # fmt: skip


def test_what_is_asked_is_what_runs() -> None:
    plan = planned(
        "n100",
        threads=2,
        system_cores=2,
        slots=3,
        context_per_slot=1024,
        cache_ram_mib=0,
        memory_max_mib=2000,
        cpu_share_percent=100,
        model_name="little",
    )
    assert plan.engine.cpus == (2, 3)
    assert (plan.engine.slots, plan.engine.context_total) == (3, 3072)
    assert plan.limits.cpu_quota_percent == 200
    assert plan.limits.memory_max == 2000 * MIB
    assert plan.model.name == "little"


def test_fewer_slots_where_memory_is_short() -> None:
    short = replace(survey_of("n100"), memory_total=4 * 1024 * MIB)
    assert planned(short, context_per_slot=32768).engine.slots == 2
    large = replace(QWEN, size_bytes=int(2.2 * 1024 * MIB))
    plan, problems = attempt(short, model=large, context_per_slot=32768)
    assert plan is not None, problems
    assert plan.engine.slots == 1
    assert plan.reasons["engine.slots"].endswith("less than its 2: memory")


def test_slots_that_miss_by_less_than_a_mib_are_one_fewer() -> None:
    # 4096.9 MiB less 384 leave 3712 whole ones; two slots need 3712.5.
    host = replace(survey_of("n100"), memory_total=4096 * MIB + 900_000)
    beside_weights = (48 + 128 + 64) * MIB + 84_606_976
    model = replace(QWEN, size_bytes=int((3712.5 * MIB - beside_weights) / 1.25))
    plan, problems = attempt(host, "n100", model=model)
    assert plan is not None, problems
    assert plan.engine.slots == 1


# --- Refusals. Each names the setting and the number that would work.


def test_threads_over_cores() -> None:
    assert refused("n100", threads=8) == (
        "box: threads = 8: the host has 4 physical cores; more threads than cores are slower; "
        'set threads = 3 or leave it "auto"'
    )
    # Eight logical CPUs are four cores.
    assert "has 4 physical cores" in refused("ryzen-3500u", threads=8)


def test_threads_over_what_the_system_leaves() -> None:
    assert refused("n100", threads=4) == (
        "box: threads = 4: with system_cores = 1 only 3 of 4 cores are left; "
        "set threads = 3 or system_cores = 0"
    )


def test_context_beyond_the_models() -> None:
    assert refused("n100", context_per_slot=65536, slots=1) == (
        "box: context_per_slot = 65536: the model was trained for 32768 tokens; "
        "set context_per_slot = 32768 at most"
    )


def test_memory_limit_below_the_need() -> None:
    assert refused("n100", memory_max_mib=500) == (
        "box: memory_max_mib = 500: the model needs 907 MiB (weights 469 + kv 48 + buffers 81 + "
        "cache 128 + base 64 + margin 118 MiB); set memory_max_mib = 907 at least, or take a "
        "smaller model, fewer slots, less context_per_slot or cache_ram_mib"
    )


def test_memory_limit_above_what_the_host_has() -> None:
    assert refused("n100", memory_max_mib=8000) == (
        "box: memory_max_mib = 8000: the host has 7716 MiB, of which 384 stay with the system; "
        "set memory_max_mib = 7331 at most"
    )


def test_memory_that_the_host_lacks() -> None:
    tiny = replace(survey_of("n100"), memory_total=1024 * MIB)
    message = refused(tiny)
    assert message.startswith("box: memory_max_mib = 'auto': the model needs 883 MiB (weights 469")
    assert "and the system 384, but the host has 1024 MiB; add memory, or take" in message


def test_context_that_the_host_lacks_memory_for() -> None:
    message = refused("one-core", context_per_slot=32768, slots=4)
    assert "set context_per_slot = " in message


def test_quota_under_threads() -> None:
    assert refused("ryzen-7840hs", cpu_share_percent=40) == (
        "box: cpu_share_percent = 40: gives 7 threads 280% of one core together; they would wait "
        "for each other: set cpu_share_percent = 50 or more, or threads = 2 with "
        "cpu_share_percent = 100"
    )


def test_a_small_share_is_fine_for_one_thread() -> None:
    assert planned("n100", threads=1, cpu_share_percent=20).limits.cpu_quota_percent == 20


def test_architecture_without_an_engine() -> None:
    riscv = replace(survey_of("n100"), arch="riscv64")
    assert refused(riscv) == (
        "box: engine_source = 'auto': no engine for architecture riscv64; "
        "edge-llm runs on x86_64 and aarch64"
    )
    assert "aarch64 with a 32-bit userland" in refused("pi5-32bit-userland")


def test_page_size_without_an_engine() -> None:
    large = replace(survey_of("pi5-4gb"), page_size=65536)
    assert refused(large) == (
        "box: engine_source = 'auto': no engine for a page size of 65536 bytes; "
        "boot a kernel with 4096 or 16384"
    )


def test_old_or_missing_glibc() -> None:
    old = replace(survey_of("n100"), glibc=(2, 31))
    message = refused(old)
    assert "b11541-release needs glibc 2.35, not 2.31" in message
    assert message.endswith("; use a newer distribution")
    assert refused("pi5-4gb", engine_source="release") == (
        "box: engine_source = 'release': b11541-release needs glibc 2.39, not 2.36; "
        "use a newer distribution, or engine_source = 'auto'"
    )
    assert "no GNU libc" in refused(replace(survey_of("n100"), glibc=None))


def test_python_without_wheels() -> None:
    old = replace(survey_of("n100"), python="3.9")
    assert refused(old).startswith("box: python3 = '3.9': the proxy needs python3 3.10, 3.11")
    unknown = replace(survey_of("minimal"), os_id="slackware", os_name="Slackware 15")
    assert "none, and Slackware 15 is not known to install one" in refused(unknown)


def test_a_host_that_shows_no_cpus() -> None:
    message = refused(replace(survey_of("n100"), cpus=()))
    assert message.startswith("box: threads = 'auto': the host shows no CPUs in /sys")


def test_all_reasons_come_at_once() -> None:
    _, problems = attempt("n100", threads=9, context_per_slot=40000, memory_max_mib=64)
    assert {problem.key for problem in problems} == {
        "threads", "context_per_slot", "memory_max_mib",
    }  # fmt: skip


def test_no_engine_is_a_refusal() -> None:
    survey = survey_of("n100")
    plan, problems = solve("box", (), Settings(), survey, QWEN, Offer((), "p", None, NOW))
    assert plan is None
    assert problems


def test_a_plan_is_plain_data() -> None:
    data = planned("n100").to_dict()
    assert data["engine"]["threads"] == 3
    assert data["limits"]["memory_need"]["weights"] == QWEN.size_bytes


def test_an_engine_that_was_asked_for_is_the_only_one() -> None:
    survey = survey_of("n100")
    assert [pin.kind for pin in offer_for(survey, "build").engines] == ["build"]
    assert planned("n100", engine_source="build").engine.kind == "build"


@pytest.mark.parametrize(
    ("groups", "said"),
    [
        ((), "class n100: in no hardware group: decided by the survey"),
        (("ryzen", "n100"), "class n100: in groups n100 and ryzen: decided by the survey"),
        (("pi5",), "class pi5: inventory group pi5 (the hardware looks like n100"),
    ],
)
def test_a_class_that_is_not_plainly_the_inventorys_is_said(
    groups: tuple[str, ...], said: str
) -> None:
    plan = planned("n100", *groups)
    assert any(warning.startswith(said) for warning in plan.warnings), plan.warnings
