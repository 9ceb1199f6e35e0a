"""Writes tests/addons/production/traces/golden/: the same conversations as five producers record them, by their own
libraries.

    python -m tests.support.golden_traces            # in a few seconds; needs no network

The conversations (truth.jsonl) are episodes of email_search by its players. OpenAI's client plays each against a server
on this machine that answers with the episode's turns, and that is recorded:

- openai.jsonl: the client's own request and response objects, dumped;
- mlflow.jsonl: `mlflow.openai.autolog`, feedback by `mlflow.log_feedback` and `log_expectation`, `Trace.to_json`;
- otel.jsonl: MLflow's exporter of OpenTelemetry's GenAI conventions (MLFLOW_ENABLE_OTEL_GENAI_SEMCONV) to a collector
  here, which writes OTLP's JSON as the collector's file exporter does;
- otel_old.jsonl: spans by OpenTelemetry's SDK with the names of 2024 (events for each message; numbered attributes),
  which no library that is installed here writes any more: they are written by hand, from the conventions;
- langfuse/observations_v2, langfuse/scores: langfuse.openai's spans, brought by the function `observation` into the rows of
  Langfuse's API, as its server does, and checked by the SDK's own types of these rows;
- capture/: the middleware of `make serve CAPTURE=1` before an application that answers as the server does.

Times and ids of spans are those of the day when it was run; the files are committed.
"""

from __future__ import annotations

import base64
import itertools
import json
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import environments
from addons.production.traces.opinions import moment
from addons.production.traces.otlp import attributes
from steps.sampling.wire import wire
from tests.support.openai_server import QuietServer

FOLDER = Path(__file__).parent.parent / "traces" / "golden"
PLAYERS = ("gold", "scripted", "bad", "random")
COUNT = 8


def episodes() -> list[dict[str, Any]]:
    """{"id", "owner", "messages" (as servers take them), "feedback"} of each conversation. The last answer of a task is a
    call that ends it, so nothing follows it."""
    env = environments.load("email_search")
    data = env.load(Path("tasks_data/email_search"))
    made = []
    for number, scenario in enumerate(env.scenarios(data, "train", COUNT, 5)):
        player = PLAYERS[number % len(PLAYERS)]
        messages = wire(env(scenario, data).play(player))
        while messages[-1]["role"] != "assistant":
            messages.pop()
        succeeded = player in ("gold", "scripted")
        feedback: dict[str, Any] = {"score": 1.0 if succeeded else 0.0}
        if not succeeded:
            feedback["correction"] = scenario.data["answer"]
        made.append(
            {"id": f"chat {number}", "owner": scenario.data["owner"], "messages": messages, "feedback": feedback}
        )
    return made


def tools() -> list[Any]:
    env = environments.load("email_search")
    return [{"type": "function", "function": tool.schema["function"]} for tool in env.tools().values()]


def turns(messages: list[Any]) -> Iterator[list[Any]]:
    """What the model is asked at each of its turns."""
    for place, message in enumerate(messages):
        if message["role"] == "assistant":
            yield messages[:place]


class Model:
    """A server that answers with the next message of the conversation that it is asked in."""

    def __init__(self, known: list[dict[str, Any]]) -> None:
        count = itertools.count()

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["messages"]
                whole = next(each["messages"] for each in known if each["messages"][: len(asked)] == asked)
                message = whole[len(asked)]
                reason = "tool_calls" if message.get("tool_calls") else "stop"
                body = json.dumps(
                    {
                        "id": f"chatcmpl-{next(count):06d}",
                        "object": "chat.completion",
                        "created": 1_790_000_000,
                        "model": "m",
                        "choices": [{"index": 0, "message": message, "finish_reason": reason}],
                        "usage": {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110},
                    }
                ).encode()
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *_: object) -> None:
                pass

        self.http = QuietServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.http.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self.http.server_address[1]}/v1"


class Collector:
    """Takes OTLP over HTTP, and holds the requests as OTLP's JSON."""

    def __init__(self) -> None:
        self.requests: list[dict[str, Any]] = []
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                import gzip

                body = self.rfile.read(int(self.headers["Content-Length"]))
                if self.headers.get("Content-Encoding") == "gzip":
                    body = gzip.decompress(body)
                collector.take(body)
                self.send_response(200)
                self.end_headers()

            def log_message(self, format: str, *_: object) -> None:
                pass

        self.http = QuietServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.http.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self.http.server_address[1]}"

    def take(self, body: bytes) -> None:
        from google.protobuf.json_format import MessageToDict  # pyrefly: ignore[untyped-import]
        from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

        request = MessageToDict(ExportTraceServiceRequest.FromString(body), use_integers_for_enums=True)
        for owner in request["resourceSpans"]:
            owner["resource"] = {"attributes": []}  # of this machine
            for scope in owner["scopeSpans"]:
                for span in scope["spans"]:
                    for name in ("traceId", "spanId", "parentSpanId"):  # OTLP's JSON has them in hexadecimal digits
                        if name in span:
                            span[name] = base64.b64decode(span[name]).hex()
        self.requests.append(request)

    def spans(self) -> list[dict[str, Any]]:
        owners = [owner for request in self.requests for owner in request["resourceSpans"]]
        return [span for owner in owners for scope in owner["scopeSpans"] for span in scope["spans"]]

    def wait(self, count: int) -> None:
        until = time.monotonic() + 20
        while len(self.spans()) < count:
            assert time.monotonic() < until, f"{len(self.spans())} of {count} spans came"
            time.sleep(0.05)


def write(path: Path, rows: list[Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")


def of_openai(known: list[dict[str, Any]], url: str) -> None:
    import openai

    client, rows = openai.OpenAI(base_url=url, api_key="none", max_retries=0), []
    for episode in known:
        for asked in turns(episode["messages"]):
            request: dict[str, Any] = {"model": "m", "messages": asked, "tools": tools()}
            answer = client.chat.completions.create(**request)
            row = {"request": request, "response": json.loads(answer.model_dump_json(exclude_none=True))}
            row |= {"conversation_id": episode["id"], "consent": True, "metadata": {"owner": episode["owner"]}}
            rows.append(row)
        rows[-1]["feedback"] = episode["feedback"]
    write(FOLDER / "openai.jsonl", rows)


def of_mlflow(known: list[dict[str, Any]], url: str, collector: Collector) -> None:
    import mlflow
    import openai

    os.environ["MLFLOW_ENABLE_ASYNC_TRACE_LOGGING"] = "false"
    with tempfile.TemporaryDirectory() as folder:
        mlflow.set_tracking_uri(f"sqlite:///{folder}/mlflow.db")
        mlflow.create_experiment("golden", f"file://{folder}/artifacts")
        mlflow.set_experiment("golden")
        mlflow.openai.autolog()
        client, rows = openai.OpenAI(base_url=url, api_key="none", max_retries=0), []
        for episode in known:
            with mlflow.start_span("agent", span_type="AGENT") as root:
                tags = {"consent": "yes", "owner": episode["owner"]}
                mlflow.update_current_trace(tags=tags, metadata={"mlflow.trace.session": episode["id"]})
                for asked in turns(episode["messages"]):
                    client.chat.completions.create(model="m", messages=asked, tools=tools())
            mlflow.flush_trace_async_logging()
            person = mlflow.entities.AssessmentSource(source_type="HUMAN", source_id="somebody")
            given = episode["feedback"]
            mlflow.log_feedback(trace_id=root.trace_id, name="helpful", value=bool(given["score"]), source=person)
            if "correction" in given:
                mlflow.log_expectation(
                    trace_id=root.trace_id, name="expected_response", value=given["correction"], source=person
                )
            mlflow.flush_trace_async_logging()
            trace = json.loads(mlflow.get_trace(root.trace_id).to_json())
            drop = ("mlflow.source", "mlflow.user", "mlflow.artifactLocation", "mlflow.git")
            for name in ("trace_metadata", "tags"):
                kept = trace["info"][name].items()
                trace["info"][name] = {key: value for key, value in kept if not key.startswith(drop)}
            rows.append(trace)
        write(FOLDER / "mlflow.jsonl", rows)

        os.environ["OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"] = f"{collector.url}/v1/traces"
        os.environ["OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"] = "http/protobuf"
        os.environ["MLFLOW_ENABLE_OTEL_GENAI_SEMCONV"] = "true"
        os.environ["OTEL_BSP_SCHEDULE_DELAY"] = "100"  # milliseconds
        mlflow.tracing.reset()
        for episode in known:
            with mlflow.start_span("agent", span_type="AGENT", attributes={"consent": "yes"}) as root:
                root.set_attribute("gen_ai.conversation.id", episode["id"])
                for asked in turns(episode["messages"]):
                    client.chat.completions.create(model="m", messages=asked, tools=tools())
        collector.wait(sum(1 + len(list(turns(episode["messages"]))) for episode in known))
        mlflow.openai.autolog(disable=True)
        for name in ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "MLFLOW_ENABLE_OTEL_GENAI_SEMCONV"):
            del os.environ[name]
    write(FOLDER / "otel.jsonl", collector.requests)


def of_old_names(known: list[dict[str, Any]]) -> None:
    """Every second conversation with events for each message, the others with numbered attributes."""
    from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    exporter, provider, collector = InMemorySpanExporter(), TracerProvider(), Collector()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    tracer = provider.get_tracer("golden")
    for number, episode in enumerate(known):
        for asked in turns(episode["messages"]):
            answer = episode["messages"][len(asked)]
            with tracer.start_as_current_span("chat m") as span:
                span.set_attributes({"gen_ai.system": "openai", "gen_ai.operation.name": "chat", "consent": True})
                span.set_attribute("session.id", episode["id"])
                if number % 2:
                    numbered(span, "gen_ai.prompt", asked)
                    numbered(span, "gen_ai.completion", [answer])
                    continue
                for message in asked:
                    span.add_event(f"gen_ai.{message['role']}.message", as_attributes(message))
                span.add_event("gen_ai.choice", {"index": 0, "finish_reason": "stop", "message": json.dumps(answer)})
    collector.take(encode_spans(exporter.get_finished_spans()).SerializeToString())
    write(FOLDER / "otel_old.jsonl", collector.requests)


def as_attributes(message: dict[str, Any]) -> dict[str, str]:
    """A message in the attributes of an event, as the instrumentation of 2024 for OpenAI's client had it."""
    given = {"content": message["content"], "id": message.get("tool_call_id")}
    given["tool_calls"] = json.dumps(message["tool_calls"]) if message.get("tool_calls") else None
    return {name: value for name, value in given.items() if value}


def numbered(span: Any, prefix: str, messages: list[dict[str, Any]]) -> None:
    for place, message in enumerate(messages):
        start = f"{prefix}.{place}"
        span.set_attribute(f"{start}.role", message["role"])
        span.set_attribute(f"{start}.content", message["content"])
        if "tool_call_id" in message:
            span.set_attribute(f"{start}.tool_call_id", message["tool_call_id"])
        for number, call in enumerate(message.get("tool_calls") or ()):
            fields = {"id": call["id"], **call["function"]}
            span.set_attributes({f"{start}.tool_calls.{number}.{name}": fields[name] for name in fields})


def of_langfuse(known: list[dict[str, Any]], url: str) -> None:
    collector = Collector()
    os.environ |= {"LANGFUSE_PUBLIC_KEY": "pk", "LANGFUSE_SECRET_KEY": "sk", "LANGFUSE_HOST": collector.url}
    from langfuse import get_client, propagate_attributes
    from langfuse.api import ObservationV2
    from langfuse.api.core.pydantic_utilities import parse_obj_as
    from langfuse.openai import OpenAI

    client, observations, scores = OpenAI(base_url=url, api_key="none", max_retries=0), [], []
    for episode in known:
        metadata = {"consent": "yes", "owner": episode["owner"]}
        with propagate_attributes(session_id=episode["id"], metadata=metadata):
            for asked in turns(episode["messages"]):
                client.chat.completions.create(model="m", messages=asked, tools=tools())
    get_client().flush()
    for span in collector.spans():
        row = observation(span)
        parse_obj_as(ObservationV2, row)
        observations.append(row)
    last = {row["sessionId"]: row for row in sorted(observations, key=lambda row: row["startTime"])}
    for number, episode in enumerate(known):
        subject = {"kind": "observation", "id": last[episode["id"]]["id"], "traceId": last[episode["id"]]["traceId"]}
        common = {"projectId": "p", "source": "API", "environment": "default", "subject": subject}
        common |= dict.fromkeys(("timestamp", "createdAt", "updatedAt"), "2026-11-23T05:00:00.000Z")
        given = episode["feedback"]
        value = {"name": "user-feedback", "dataType": "NUMERIC", "value": given["score"]}
        scores.append({"id": f"s{number}", **value, **common})
        if "correction" in given:
            value = {"name": "output", "dataType": "CORRECTION", "value": given["correction"]}
            scores.append({"id": f"c{number}", **value, **common})
    write(FOLDER / "langfuse/observations_v2/1.jsonl", observations)
    write(FOLDER / "langfuse/scores/1.jsonl", scores)


def observation(span: dict[str, Any]) -> dict[str, Any]:
    """The row that Langfuse's API has for a span of its SDK."""
    fields = attributes(span["attributes"])
    prefix, trace = "langfuse.observation.", "langfuse.trace.metadata."
    texts = {name.removeprefix(trace): value for name, value in fields.items() if name.startswith(trace)}
    metadata = {name: json.loads(text) if text.startswith('"') else text for name, text in texts.items()}
    times = {name: moment(span[f"{name}UnixNano"]) for name in ("startTime", "endTime")}
    return {
        "id": span["spanId"],
        "traceId": span["traceId"],
        **times,
        "projectId": "p",
        "parentObservationId": span.get("parentSpanId"),
        "type": fields[f"{prefix}type"].upper(),
        "name": span["name"],
        "sessionId": fields.get("session.id"),
        "input": fields.get(f"{prefix}input"),
        "output": fields.get(f"{prefix}output"),
        "metadata": metadata,
        "model": fields.get(f"{prefix}model.name"),
    }


def of_capture(known: list[dict[str, Any]], url: str) -> None:
    """By the middleware, before an application that passes requests on to the model; every second answer is a stream."""
    import openai
    from starlette.applications import Starlette
    from starlette.middleware import Middleware
    from starlette.requests import Request
    from starlette.responses import JSONResponse, Response, StreamingResponse
    from starlette.routing import Route
    from starlette.testclient import TestClient

    from addons.production.serving import capture

    inner = openai.OpenAI(base_url=url, api_key="none", max_retries=0)

    async def chat(request: Request) -> Response:
        body = await request.json()
        answer = inner.chat.completions.create(model="m", messages=body["messages"]).model_dump(exclude_none=True)
        if not body.get("stream"):
            return JSONResponse(answer)
        return StreamingResponse(chunks(answer), media_type="text/event-stream")

    folder = FOLDER / "capture"
    values = (folder, 1, 36500, 2**30, "given")
    names = (capture.FOLDER, capture.RATE, capture.DAYS, capture.BYTES, capture.CONSENT)
    os.environ |= {name: str(value) for name, value in zip(names, values, strict=True)}
    app = Starlette(
        routes=[Route("/v1/chat/completions", chat, methods=["POST"])], middleware=[Middleware(capture.Capture)]
    )
    with TestClient(app) as client:
        for number, episode in enumerate(known):
            text = ""
            headers = {"x-flywheel-consent": "yes", "x-flywheel-conversation": episode["id"]}
            for asked in turns(episode["messages"]):
                body: dict[str, Any] = {"messages": asked, "tools": tools(), "stream": number % 2 == 1}
                body["metadata"] = {"owner": episode["owner"]}
                answer = client.post("/v1/chat/completions", json=body, headers=headers)
                text = answer.text.split("\n")[0].removeprefix("data: ") if body["stream"] else answer.text
            assert (
                client.post(
                    "/feedback", json={"response_id": json.loads(text)["id"], **episode["feedback"]}
                ).status_code
                == 201
            )
    for name in ("lock", "counts.json"):
        (folder / name).unlink()
    [segment] = folder.glob("*.jsonl")
    segment.chmod(0o644)
    segment.rename(folder / "2026-11-23.0000.jsonl")


def chunks(answer: dict[str, Any]) -> Iterator[str]:
    """An answer as a stream of server-sent events, in small pieces, as vLLM sends it."""
    [choice] = answer["choices"]

    def event(delta: dict[str, Any], reason: str | None = None) -> str:
        made = {
            "id": answer["id"],
            "object": "chat.completion.chunk",
            "choices": [{"index": 0, "delta": delta, "finish_reason": reason}],
        }
        return f"data: {json.dumps(made)}\n\n"

    yield event({"role": "assistant", "content": ""})
    text = choice["message"].get("content") or ""
    for place in range(0, len(text), 7):
        yield event({"content": text[place : place + 7]})
    for number, call in enumerate(choice["message"].get("tool_calls") or ()):
        function = call["function"]
        yield event(
            {
                "tool_calls": [
                    {
                        "index": number,
                        "id": call["id"],
                        "type": "function",
                        "function": {"name": function["name"], "arguments": ""},
                    }
                ]
            }
        )
        for place in range(0, len(function["arguments"]), 9):
            yield event(
                {"tool_calls": [{"index": number, "function": {"arguments": function["arguments"][place : place + 9]}}]}
            )
    yield event({}, choice["finish_reason"])
    yield "data: [DONE]\n\n"


if __name__ == "__main__":
    shutil.rmtree(FOLDER, ignore_errors=True)
    conversations = episodes()
    write(FOLDER / "truth.jsonl", conversations)
    address = Model(conversations).url
    of_openai(conversations, address)
    of_mlflow(conversations, address, Collector())
    of_old_names(conversations)
    of_langfuse(conversations, address)
    of_capture(conversations, address)
