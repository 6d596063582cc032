"""The app: routes, and what is checked before a request is one."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware

from . import chat, passthrough, reference, web
from .access import Access
from .config import Settings
from .exchange import Exchange
from .exposition import exposition
from .openapi import document, json_body
from .problem import Problem, bad_request
from .record import Record
from .request import prepare
from .service import Service

Work = Callable[[Exchange], Awaitable[None]]


def create_app(settings: Settings) -> FastAPI:
    """The proxy as an ASGI app; `app.state.service` is what its requests share."""
    service = Service(settings)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        service.engine.close()

    app = FastAPI(
        title="edge-llm chat proxy",
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        lifespan=lifespan,
    )
    app.state.service = service
    if settings.cors_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=settings.cors_origins,
            allow_methods=["GET", "POST"],
            allow_headers=["*"],  # OpenAI's client in a browser sends some of its own
            expose_headers=["retry-after"],
        )
    app.add_exception_handler(Problem, _tell)
    app.add_exception_handler(HTTPException, _tell_http)
    web.add_page(app)
    _add_generation(app, service)
    _add_probes(app, service)
    _add_reference(app, settings)
    return app


def _add_probes(app: FastAPI, service: Service) -> None:
    @app.head("/healthz", include_in_schema=False)
    @app.get("/healthz")
    async def healthz() -> Response:
        """The process runs."""
        return JSONResponse({"status": "ok"})

    @app.head("/readyz", include_in_schema=False)
    @app.get("/readyz")
    async def readyz() -> Response:
        """The engine can generate: 200, or 503 with the reason."""
        reason = await service.engine.not_ready()
        if reason is None:
            return JSONResponse({"status": "ready"})
        return JSONResponse({"status": "not ready", "reason": reason}, 503)

    @app.get("/metrics")
    async def metrics(request: Request) -> Response:
        """Counters, gauges and histograms for Prometheus."""
        service.access.admit(request)
        text, kind = exposition(service, await service.engine.not_ready())
        return Response(text, headers={"Content-Type": kind})


def _add_generation(app: FastAPI, service: Service) -> None:
    def exchange(request: Request, work: Work) -> Exchange:
        record = Record(request.scope["path"], service.metrics, service.pulse)
        read_body = partial(_read_body, service.access, request)
        held = service.held.share()
        return Exchange(service.settings, record, read_body, work, service.open, held)

    @app.post("/chat", openapi_extra=json_body("ChatRequest"))
    async def chat_(request: Request) -> Response:
        """Ask; the answer is a stream of events, or one JSON object with stream=false."""

        async def work(x: Exchange) -> None:
            # no name here for the raw body: it would stay in memory until the answer's end
            ask = prepare(await x.take_body(), service.settings)
            x.held.resize(len(ask.body))
            await chat.answer(x, service, ask)

        return exchange(request, work)

    @app.post("/v1/chat/completions", openapi_extra=json_body(None))
    @app.post("/v1/completions", openapi_extra=json_body(None))
    async def completions(request: Request) -> Response:
        """The engine's own endpoint, compatible with OpenAI's clients."""

        async def work(x: Exchange) -> None:
            await passthrough.generate(x, service, await x.take_body())

        return exchange(request, work)

    @app.get("/v1/models")
    async def models(request: Request) -> Response:
        """The engine's list of models. It costs no generation, so it takes no slot."""

        async def work(x: Exchange) -> None:
            await x.take_body()
            x.enter("queue")
            async with service.asides:
                await passthrough.forward(x, service, "GET", b"", streams=False)

        return exchange(request, work)


def _add_reference(app: FastAPI, settings: Settings) -> None:
    plain = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = document(plain(), settings)
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]

    @app.head("/docs", include_in_schema=False)
    @app.get("/docs", include_in_schema=False)  # FastAPI's own would load scripts from elsewhere
    async def docs(request: Request) -> Response:
        text = reference.page(app.openapi(), str(request.base_url).rstrip("/"))
        return Response(text, headers=reference.headers(), media_type="text/html; charset=utf-8")


async def _read_body(access: Access, request: Request, x: Exchange) -> bytes:
    """The request's body; `x` is told how much of it is in memory.

    Raises:
        Problem: 401, 403 or 429, as `Access.admit`; 413 it is too large; 503 there is no room.
    """
    x.client_name = access.admit(request, x.record)
    limit = x.settings.max_body_bytes
    too_large = bad_request(f"the body is larger than {limit} bytes", 413)
    if int(request.headers.get("content-length", 0)) > limit:
        raise too_large
    body = bytearray()
    async for part in request.stream():
        if len(body) + len(part) > limit:
            raise too_large
        x.held.resize(len(body) + len(part))
        body += part
    return bytes(body)


async def _tell(_: Request, problem: Exception) -> Response:
    assert isinstance(problem, Problem)
    answer = Response(problem.body(), problem.status)
    answer.raw_headers.extend(problem.headers())
    return answer


async def _tell_http(request: Request, error: Exception) -> Response:
    """404 and 405 of the router, in the same shape as all other problems."""
    assert isinstance(error, HTTPException)
    answer = await _tell(
        request,
        bad_request(
            f"{request.method} {request.url.path[:200]}: {error.detail}", error.status_code
        ),
    )
    answer.headers.update(error.headers or {})
    return answer
