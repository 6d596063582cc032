"""Classes of hardware: from the group, or from what the survey shows, and said so."""

from __future__ import annotations

import pytest

from edge.hardware import CLASSES, classify, detect
from edge.settings import HARDWARE_GROUPS
from tests.unit.recorded import survey_of

GIB = 2**30


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("n100", "n100"),
        ("ryzen-3500u", "ryzen"),
        ("ryzen-7840hs", "ryzen"),
        ("pi5-4gb", "pi5"),
        ("xeon-2-sockets", "generic"),
        ("vm-no-cpufreq", "generic"),
    ],
)
def test_detect(name: str, found: str) -> None:
    assert detect(survey_of(name)) == found


def test_one_group_decides() -> None:
    hardware, reason = classify(("fleet", "n100"), survey_of("n100"))
    assert (hardware.name, reason) == ("n100", "inventory group n100")


def test_a_group_that_looks_wrong_is_said() -> None:
    hardware, reason = classify(("ryzen",), survey_of("pi5-4gb"))
    assert hardware.name == "ryzen"
    assert reason == (
        "inventory group ryzen (the hardware looks like pi5: Raspberry Pi 5 Model B Rev 1.0)"
    )


def test_no_group_or_two_are_decided_by_the_survey() -> None:
    hardware, reason = classify(("fleet",), survey_of("n100"))
    assert hardware.name == "n100"
    assert reason == "in no hardware group: decided by the survey (Intel(R) N100)"
    hardware, reason = classify(("n100", "pi5"), survey_of("ryzen-3500u"))
    assert hardware.name == "ryzen"
    assert reason.startswith("in groups n100 and pi5: decided by the survey (AMD Ryzen 5 3500U")


def test_every_group_is_a_class() -> None:
    assert set(HARDWARE_GROUPS) <= set(CLASSES)


@pytest.mark.parametrize(
    ("name", "gib", "slots"),
    [
        ("n100", 7.5, 2),
        ("n100", 2, 1),
        ("ryzen", 13.6, 4),
        ("ryzen", 5.7, 2),
        ("ryzen", 1, 1),
        ("pi5", 3.95, 1),
        ("pi5", 7.87, 2),
        ("generic", 0, 1),
    ],
)
def test_slots_by_memory(name: str, gib: float, slots: int) -> None:
    assert CLASSES[name].slots_for(int(gib * GIB)) == slots
