"""The OpenAPI document is true: schemathesis asks what it offers, and judges the answers by it."""

from collections.abc import Callable, Collection
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode
from schemathesis.checks import CHECKS, load_all_checks
from schemathesis.config import SchemathesisConfig

from tests.proxy.key_file import KeyFile, token
from tests.proxy.proxy_process import Proxy
from tests.proxy.scripted_engine import ScriptedEngine, Turn, text_event

OPERATIONS = {
    "/chat": "POST",
    "/v1/chat/completions": "POST",
    "/v1/completions": "POST",
    "/v1/models": "GET",
    "/healthz": "GET",
    "/readyz": "GET",
    "/metrics": "GET",
}
load_all_checks()
CHECKED = set(CHECKS.get_all_names())
# A schema cannot say that the last message must be the user's: see test_a_prompt_is_enough.
CHECKED -= {"positive_data_acceptance"}


def judge(case: schemathesis.Case, leave_out: set[str], **more: Any) -> schemathesis.Response:
    """Ask, and hold the answer against the document."""
    response = case.call(**more)
    if response.headers["content-type"][0].startswith("text/event-stream"):
        # Described as one string, which OpenAPI 3.1 has nothing better for; it is judged by event.
        leave_out = leave_out | {"response_schema_conformance"}
    checks = CHECKS.get_by_names(sorted(CHECKED - leave_out))
    case.validate_response(
        response, checks=checks, headers=more.get("headers"), transport_kwargs=more or None
    )
    return response


def answers(turn: Turn) -> None:
    if b'"stream": true' in turn.body:
        turn.say("ok")
    else:
        turn.plain(200, b'{"object": "list", "data": []}')


def load(proxy: Proxy) -> Any:
    return schemathesis.openapi.from_url(
        f"http://127.0.0.1:{proxy.port}/openapi.json",
        config=SchemathesisConfig.from_dict({"warnings": False}),
    )


def ask_all(
    proxy: Proxy,
    examples: int,
    *,
    modes: Any = GenerationMode,
    leave_out: Collection[str] = (),
    **more: Any,
) -> set[int]:
    """Ask every operation in so many ways, right and wrong; the statuses that came."""
    schema = load(proxy)
    found = set()
    for path, method in OPERATIONS.items():
        operation = schema[path][method]
        right_and_wrong = [operation.as_strategy(generation_mode=one) for one in modes]

        @settings(
            max_examples=examples if method == "POST" else 5,
            derandomize=True,
            deadline=None,
            database=None,
            phases=[Phase.explicit, Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(case=st.one_of(right_and_wrong))
        def run(case: schemathesis.Case) -> None:
            found.add(judge(case, set(leave_out), **more).status_code)

        run()
    return found


def test_every_operation_is_known_and_answers_as_described(
    engine: ScriptedEngine, start_proxy: Callable[..., Proxy]
) -> None:
    engine.script = answers
    proxy = start_proxy(slots=4)
    known = {one.ok().label for one in load(proxy).get_all_operations()}
    assert known == {f"{method} {path}" for path, method in OPERATIONS.items()}
    # 405 and 406 are asked for by wrong methods and headers
    assert {200, 400} <= ask_all(proxy, examples=40) <= {200, 400, 404, 405, 413}


def test_a_prompt_is_enough(engine: ScriptedEngine, start_proxy: Callable[..., Proxy]) -> None:
    engine.script = answers
    proxy = start_proxy(slots=4)
    schema = load(proxy)
    right = schema["/chat"]["POST"].as_strategy(generation_mode=GenerationMode.POSITIVE)

    @settings(
        max_examples=40,
        derandomize=True,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=right.filter(lambda case: case.body.get("prompt") is not None))
    def run(case: schemathesis.Case) -> None:
        assert judge(case, set()).status_code == 200

    run()


def test_with_keys(
    engine: ScriptedEngine, start_proxy: Callable[..., Proxy], keys: KeyFile
) -> None:
    engine.script = answers
    proxy = start_proxy(slots=4, api_keys_file=keys.write("till"))
    assert {200, 400} <= ask_all(
        proxy, examples=8, headers={"Authorization": f"Bearer {token('till')}"}
    )
    assert 401 in ask_all(proxy, examples=3, headers={"Authorization": "Bearer edge-nobody-key"})


def busy(engine: ScriptedEngine, proxy: Proxy) -> object:
    engine.script = lambda turn: (turn.begin(), turn.part(text_event("go")), turn.wait_gone())[0]
    holder = proxy.chat()
    assert holder.block()
    engine.script = answers
    return holder


def away(engine: ScriptedEngine, proxy: Proxy) -> None:
    engine.loading = True


def failing(engine: ScriptedEngine, proxy: Proxy) -> None:
    error = b'{"error": {"code": 500, "message": "x", "type": "y"}}'
    engine.script = lambda turn: turn.plain(500, error)


def dying(engine: ScriptedEngine, proxy: Proxy) -> None:
    engine.script = Turn.die


def silent(engine: ScriptedEngine, proxy: Proxy) -> None:
    engine.script = Turn.wait_gone


@pytest.mark.parametrize(
    ("state", "limits", "status"),
    [
        (busy, {"queue_limit": 0}, 429),
        (busy, {"queue_wait_s": 0.05}, 503),
        (away, {"engine_wait_s": 0.05}, 503),
        (failing, {}, 500),
        (dying, {}, 502),
        (silent, {"first_token_timeout_s": 0.05, "total_timeout_s": 0.05}, 504),
    ],
)
def test_trouble_is_described_as_well(
    engine: ScriptedEngine,
    start_proxy: Callable[..., Proxy],
    state: Callable[[ScriptedEngine, Proxy], object],
    limits: dict[str, Any],
    status: int,
) -> None:
    proxy = start_proxy(slots=1, **limits)
    kept = state(engine, proxy)
    found = ask_all(proxy, 4, modes=[GenerationMode.POSITIVE], leave_out={"not_a_server_error"})
    assert status in found
    del kept
