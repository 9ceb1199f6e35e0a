"""Writes tests/addons/production/traces/golden/producers/: one conversation as other people's libraries record it, with
no network.

    python -m venv P && P/bin/pip install -r tests/addons/production/traces/producers/requirements.txt
    P/bin/python tests/addons/production/traces/producers/make.py openllmetry openinference langchain langsmith
    pydantic_ai langfuse .venv/bin/python tests/addons/production/traces/producers/make.py mlflow  # the project's own MLflow
    O/bin/python tests/addons/production/traces/producers/make.py old     # O: with requirements-old.txt, numbered attributes
    P/bin/python tests/addons/production/traces/producers/make.py vercel FOLDER  # where npm installed packages.txt

The producers call a server on this machine that answers as OpenAI (chat and Responses) and Anthropic do. What was said is
in truth.json, which the test compares with what the readers make of each file. Neither these packages nor this file are
needed to run the tests. Times and ids are of the day when it was run.
"""

# pyrefly: ignore-errors
from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
GOLDEN = HERE.parent / "golden" / "producers"
SYSTEM = "You look after a greenhouse. Be brief; write °C."
ASKED = [
    'How warm is bed 4, and is it dry? Answer as {"warm": …} if you like',
    'Grüße! Note "[1, 2]" as well, please. 🌱',
]
WORDS = ["I look both up.", "17.5 °C, and it is dry.", "Noted: [1, 2]."]
THOUGHT = "Two tools are needed."
CALLS = [("call_1", "read_bed", {"bed": 4, "unit": "°C"}), ("call_2", "is_dry", {"bed": 4})]
RESULTS = ['{"warm": 17.5}', "yes"]


def schema(**properties: str) -> dict[str, Any]:
    return {"type": "object", "properties": {n: {"type": t} for n, t in properties.items()}, "required": [*properties]}


TOOLS = [
    ("read_bed", "Temperature of a bed.", schema(bed="integer", unit="string")),
    ("is_dry", "Whether a bed is dry.", schema(bed="integer")),
]
CHAT_TOOLS = [{"type": "function", "function": {"name": n, "description": d, "parameters": s}} for n, d, s in TOOLS]
ANTHROPIC_TOOLS = [{"name": n, "description": d, "input_schema": s} for n, d, s in TOOLS]
FLAT_TOOLS = [{"type": "function", "name": n, "description": d, "parameters": s} for n, d, s in TOOLS]


def truth() -> dict[str, Any]:
    """The conversation in the product's own form."""
    calls = [{"id": i, "type": "function", "function": {"name": n, "arguments": a}} for i, n, a in CALLS]
    results = [
        {"role": "tool", "content": text, "tool_call_id": i, "name": n}
        for text, (i, n, _) in zip(RESULTS, CALLS, strict=True)
    ]
    messages = [
        {"role": "system", "content": SYSTEM},
        {"role": "user", "content": ASKED[0]},
        {"role": "assistant", "content": WORDS[0], "tool_calls": calls, "reasoning": THOUGHT},
        *results,
        {"role": "assistant", "content": WORDS[1]},
        {"role": "user", "content": ASKED[1]},
        {"role": "assistant", "content": WORDS[2]},
    ]
    return {"messages": messages, "tools": CHAT_TOOLS}


class Server(ThreadingHTTPServer):
    """Answers the turn that a request asks for, which the number of its results and of the user's messages tells."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        threading.Thread(target=self.serve_forever, daemon=True).start()


class Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        given = json.dumps(body, ensure_ascii=False)
        turn = 2 if "Grüße" in given else 1 if "call_2" in given else 0
        if self.path.endswith("/messages"):
            made = anthropic_answer(turn)
        elif self.path.endswith("/responses"):
            made = responses_answer(turn)
        else:
            made = chat_answer(turn)
        data = json.dumps(made).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        pass


def chat_answer(turn: int) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": WORDS[turn]}
    if turn == 0:
        message["reasoning_content"] = THOUGHT
        message["tool_calls"] = [
            {"id": i, "type": "function", "function": {"name": n, "arguments": json.dumps(a, ensure_ascii=False)}}
            for i, n, a in CALLS
        ]
    choice = {"index": 0, "message": message, "finish_reason": "tool_calls" if turn == 0 else "stop"}
    usage = {"prompt_tokens": 9, "completion_tokens": 5, "total_tokens": 14}
    head = {"id": f"chatcmpl-{turn}", "object": "chat.completion", "created": 1_790_000_000 + turn, "model": "m"}
    return head | {"choices": [choice], "usage": usage}


def anthropic_answer(turn: int) -> dict[str, Any]:
    content: list[dict[str, Any]] = [{"type": "text", "text": WORDS[turn]}]
    if turn == 0:
        content.insert(0, {"type": "thinking", "thinking": THOUGHT, "signature": "c2ln"})
        content += [{"type": "tool_use", "id": i, "name": n, "input": a} for i, n, a in CALLS]
    return {
        "id": f"msg_{turn}", "type": "message", "role": "assistant", "model": "m", "content": content,
        "stop_reason": "tool_use" if turn == 0 else "end_turn", "stop_sequence": None,
        "usage": {"input_tokens": 9, "output_tokens": 5},
    }  # fmt: skip


def responses_answer(turn: int) -> dict[str, Any]:
    text = {"type": "output_text", "text": WORDS[turn], "annotations": []}
    output: list[dict[str, Any]] = [
        {"type": "message", "id": f"msg_{turn}", "role": "assistant", "status": "completed", "content": [text]}
    ]
    if turn == 0:
        summary = [{"type": "summary_text", "text": THOUGHT}]
        output.insert(0, {"type": "reasoning", "id": "rs_0", "summary": summary})
        output += [
            {"type": "function_call", "id": f"fc_{i}", "call_id": i, "name": n, "status": "completed",
             "arguments": json.dumps(a, ensure_ascii=False)}
            for i, n, a in CALLS
        ]  # fmt: skip
    usage = {"input_tokens": 9, "output_tokens": 5, "total_tokens": 14, "input_tokens_details": {"cached_tokens": 0},
             "output_tokens_details": {"reasoning_tokens": 0}}  # fmt: skip
    return {
        "id": f"resp_{turn}", "object": "response", "created_at": 1_790_000_000 + turn, "model": "m", "output": output,
        "status": "completed", "parallel_tool_calls": True, "tool_choice": "auto", "tools": [], "usage": usage,
        "error": None, "incomplete_details": None, "instructions": None, "metadata": {}, "temperature": 1, "top_p": 1,
    }  # fmt: skip


def chat(client: Any) -> None:
    """The conversation by OpenAI's chat completions."""
    messages: list[Any] = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": ASKED[0]}]
    for turn in range(3):
        answer = client.chat.completions.create(model="m", messages=messages, tools=CHAT_TOOLS)
        messages.append(answer.choices[0].message.model_dump(exclude_none=True))
        if turn == 0:
            for (name, _, _), text in zip(CALLS, RESULTS, strict=True):
                messages.append({"role": "tool", "tool_call_id": name, "content": text})
        elif turn == 1:
            messages.append({"role": "user", "content": ASKED[1]})


def responses(client: Any) -> None:
    """... by OpenAI's Responses, each with the whole history."""
    items: list[Any] = [{"role": "user", "content": ASKED[0]}]
    for turn in range(3):
        answer = client.responses.create(model="m", instructions=SYSTEM, input=items, tools=FLAT_TOOLS)
        items += [item.model_dump(exclude_none=True) for item in answer.output]
        if turn == 0:
            for (name, _, _), text in zip(CALLS, RESULTS, strict=True):
                items.append({"type": "function_call_output", "call_id": name, "output": text})
        elif turn == 1:
            items.append({"role": "user", "content": ASKED[1]})


def anthropic(client: Any) -> None:
    """... by Anthropic's messages."""
    messages: list[Any] = [{"role": "user", "content": ASKED[0]}]
    for turn in range(3):
        answer = client.messages.create(
            model="m", max_tokens=64, system=SYSTEM, messages=messages, tools=ANTHROPIC_TOOLS
        )
        blocks = [block.model_dump(exclude_none=True) for block in answer.content]
        messages.append({"role": "assistant", "content": blocks})
        if turn == 0:
            results = [
                {"type": "tool_result", "tool_use_id": name, "content": text}
                for (name, _, _), text in zip(CALLS, RESULTS, strict=True)
            ]
            messages.append({"role": "user", "content": results})
        elif turn == 1:
            messages.append({"role": "user", "content": ASKED[1]})


class Recorder:
    """A tracer provider whose spans are kept, and written as OTLP's JSON."""

    def __init__(self) -> None:
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import SimpleSpanProcessor
        from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

        self.kept, self.provider = InMemorySpanExporter(), TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self.kept))

    def write(self, name: str) -> None:
        from google.protobuf.json_format import MessageToDict
        from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans

        request = MessageToDict(encode_spans(self.kept.get_finished_spans()), use_integers_for_enums=True)
        save(name, [cleaned(request)])


def cleaned(request: dict[str, Any]) -> dict[str, Any]:
    """A request with ids in hexadecimal digits, as OTLP's JSON has them, and nothing of this machine."""
    for owner in request["resourceSpans"]:
        owner["resource"] = {"attributes": []}
        for scope in owner["scopeSpans"]:
            for span in scope["spans"]:
                for name in ("traceId", "spanId", "parentSpanId"):
                    if name in span:
                        span[name] = base64.b64decode(span[name]).hex()
    return request


def save(name: str, rows: list[Any]) -> None:
    GOLDEN.mkdir(parents=True, exist_ok=True)
    text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    (GOLDEN / f"{name}.jsonl").write_text(text, encoding="utf-8")


def openai_client(url: str) -> Any:
    import openai

    return openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)


def anthropic_client(url: str) -> Any:
    import anthropic

    return anthropic.Anthropic(base_url=url, api_key="none", max_retries=0)


def traced(name: str, url: str, instrumentor: Any, said: Any, client: Any) -> None:
    """Record a conversation inside a span that says who agreed."""
    recorder = Recorder()
    instrumentor.instrument(tracer_provider=recorder.provider)
    with recorder.provider.get_tracer("app").start_as_current_span("chat", attributes={"consent": "yes"}):
        said(client(url))
    instrumentor.uninstrument()
    recorder.write(name)


def openllmetry(url: str, old: str = "") -> None:
    from opentelemetry.instrumentation.anthropic import AnthropicInstrumentor
    from opentelemetry.instrumentation.openai import OpenAIInstrumentor

    traced(f"openllmetry_{old}openai", url, OpenAIInstrumentor(), chat, openai_client)
    traced(f"openllmetry_{old}anthropic", url, AnthropicInstrumentor(), anthropic, anthropic_client)
    if old:  # the newer one records no call of Responses
        traced(f"openllmetry_{old}responses", url, OpenAIInstrumentor(), responses, openai_client)


def openinference(url: str) -> None:
    from openinference.instrumentation.anthropic import AnthropicInstrumentor
    from openinference.instrumentation.openai import OpenAIInstrumentor

    traced("openinference_openai", url, OpenAIInstrumentor(), chat, openai_client)
    traced("openinference_responses", url, OpenAIInstrumentor(), responses, openai_client)
    traced("openinference_anthropic", url, AnthropicInstrumentor(), anthropic, anthropic_client)


def in_langchain(url: str) -> None:
    """The conversation by LangChain's client."""
    from langchain_core.messages import HumanMessage, SystemMessage, ToolMessage
    from langchain_openai import ChatOpenAI

    model = ChatOpenAI(model="m", base_url=f"{url}/v1", api_key="none", max_retries=0).bind_tools(CHAT_TOOLS)
    messages: list[Any] = [SystemMessage(SYSTEM), HumanMessage(ASKED[0])]
    for turn in range(3):
        messages.append(model.invoke(messages))
        if turn == 0:
            for (name, tool, _), text in zip(CALLS, RESULTS, strict=True):
                messages.append(ToolMessage(text, tool_call_id=name, name=tool))
        elif turn == 1:
            messages.append(HumanMessage(ASKED[1]))


def langchain(url: str) -> None:
    from openinference.instrumentation.langchain import LangChainInstrumentor

    traced("openinference_langchain", url, LangChainInstrumentor(), in_langchain, lambda url: url)


def langsmith(url: str) -> None:
    """Runs as LangSmith's client sends them to its server."""
    import langsmith
    from langchain_core.tracers import LangChainTracer
    from langchain_core.tracers.context import tracing_v2_enabled

    rows: dict[str, dict[str, Any]] = {}

    class Client(langsmith.Client):
        def create_run(self, name: str, inputs: Any, run_type: str, **more: Any) -> None:
            rows[str(more["id"])] = {"name": name, "inputs": inputs, "run_type": run_type, **more}

        def update_run(self, run_id: Any, **more: Any) -> None:
            rows[str(run_id)] |= {name: value for name, value in more.items() if value is not None}

    with tracing_v2_enabled(client=Client(api_url=url, api_key="none", auto_batch_tracing=False)) as tracer:
        assert isinstance(tracer, LangChainTracer)
        in_langchain(url)
    texts = [json.loads(json.dumps(row, default=str)) for row in rows.values()]
    for row in texts:
        for name in ("serialized", "attachments", "events", "session_name"):
            row.pop(name, None)
        runtime = (row.get("extra") or {}).pop("runtime", None)
        assert runtime
        row["extra"].setdefault("metadata", {})["consent"] = "yes"
        row["extra"]["metadata"]["session_id"] = "greenhouse"
    save("langsmith", texts)


def pydantic_ai(url: str) -> None:
    from pydantic_ai import Agent
    from pydantic_ai.models.instrumented import InstrumentationSettings
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    recorder = Recorder()
    model = OpenAIChatModel("m", provider=OpenAIProvider(openai_client=async_client(url)))
    Agent.instrument_all(InstrumentationSettings(tracer_provider=recorder.provider))
    agent = Agent(model, instructions=SYSTEM, name="keeper")

    @agent.tool_plain(description=TOOLS[0][1])
    def read_bed(bed: int, unit: str) -> str:
        return RESULTS[0]

    @agent.tool_plain(description=TOOLS[1][1])
    def is_dry(bed: int) -> str:
        return RESULTS[1]

    with recorder.provider.get_tracer("app").start_as_current_span("chat", attributes={"consent": "yes"}):
        first = agent.run_sync(ASKED[0])
        agent.run_sync(ASKED[1], message_history=first.all_messages())
    recorder.write("pydantic_ai")


def async_client(url: str) -> Any:
    import openai

    return openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)


def langfuse(url: str) -> None:
    from langfuse import Langfuse, propagate_attributes
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    recorder = Recorder()
    recorder.kept = InMemorySpanExporter()
    client = Langfuse(
        public_key="pk", secret_key="sk", host=url, span_exporter=recorder.kept, tracer_provider=recorder.provider
    )
    from langfuse.openai import OpenAI

    with propagate_attributes(session_id="greenhouse", metadata={"consent": "yes"}):
        chat(OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0))
    client.flush()
    recorder.write("langfuse_otlp")


def mlflow(url: str) -> None:
    import mlflow  # here the whole package, which is in the project's own environment

    os.environ["MLFLOW_ENABLE_ASYNC_TRACE_LOGGING"] = "false"
    mlflow.set_tracking_uri(f"sqlite:////{os.environ.get('TMPDIR', '/tmp').strip('/')}/producers-{os.getpid()}.db")
    mlflow.openai.autolog()
    for name, said in (("chat", chat), ("responses", responses)):
        with mlflow.start_span("chat", span_type="AGENT") as root:
            mlflow.update_current_trace(tags={"consent": "yes"})
            said(openai_client(url))
        mlflow.flush_trace_async_logging()
        trace = json.loads(mlflow.get_trace(root.trace_id).to_json())
        for field in ("trace_metadata", "tags"):
            kept = trace["info"][field].items()
            drop = ("mlflow.source", "mlflow.user", "mlflow.artifactLocation", "mlflow.git")
            trace["info"][field] = {key: value for key, value in kept if not key.startswith(drop)}
        save(f"mlflow_{name}", [trace])


def vercel(url: str, folder: str) -> None:
    """The AI SDK in the folder where npm installed it; its exporter writes OTLP's JSON."""
    script = (HERE / "vercel.mjs").read_text(encoding="utf-8")
    (Path(folder) / "vercel.mjs").write_text(script, encoding="utf-8")
    said = {"url": url, "system": SYSTEM, "asked": ASKED, "results": RESULTS}
    said["tools"] = [{"name": n, "description": d, "schema": s} for n, d, s in TOOLS]
    done = subprocess.run(
        ["node", "vercel.mjs", json.dumps(said)], cwd=folder, check=True, capture_output=True, encoding="utf-8"
    )
    save("vercel", [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")])


def main(words: list[str]) -> None:
    url = Server().url
    GOLDEN.mkdir(parents=True, exist_ok=True)
    text = json.dumps(truth(), ensure_ascii=False, indent=1) + "\n"
    (GOLDEN / "truth.json").write_text(text, encoding="utf-8")
    if words[:1] == ["vercel"]:
        vercel(url, words[1])
    if words[:1] == ["old"]:
        openllmetry(url, "old_")
    makers = (openllmetry, openinference, langchain, langsmith, pydantic_ai, langfuse, mlflow)
    for make in makers:
        if not words or make.__name__ in words:
            print(make.__name__)
            make(url)


if __name__ == "__main__":
    main(sys.argv[1:])
