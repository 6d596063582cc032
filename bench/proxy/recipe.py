"""The published recipe's proxy, in its own design: FastAPI, a sync generator, `requests`.

Its defaults are kept: ChatML by hand, /completion, temperature 0.7, 512 tokens, one worker, uvloop.
The one thing made right is the text: lines stay bytes until they are parsed (`decode_unicode` would
read UTF-8 as Latin-1), so that what is measured is the design and not a typing error.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Iterator

import requests
import uvicorn
from fastapi import FastAPI
from fastapi.responses import StreamingResponse
from pydantic import BaseModel

app = FastAPI()


class Ask(BaseModel):
    """The recipe's request."""

    prompt: str


@app.post("/chat")
def chat(ask: Ask) -> StreamingResponse:
    """Relay the engine's /completion as events with a text."""
    turns = f"<|im_start|>user\n{ask.prompt}<|im_end|>\n<|im_start|>assistant\n"
    question = {"prompt": turns, "stream": True, "temperature": 0.7, "n_predict": 512}

    def events() -> Iterator[str]:
        url = os.environ["ENGINE_URL"] + "/completion"
        with requests.post(url, json=question, stream=True) as answer:  # noqa: S113 (its default)
            for line in answer.iter_lines():
                if line.startswith(b"data: "):
                    text = json.loads(line[6:])["content"]
                    yield f"data: {json.dumps({'text': text}, ensure_ascii=False)}\n\n"

    return StreamingResponse(events(), media_type="text/event-stream")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    uvicorn.run(
        app, host="127.0.0.1", port=parser.parse_args().port, loop="uvloop", access_log=False
    )
