// The conversation by Vercel's AI SDK with its telemetry; prints OTLP's JSON. Started by make.py.
import { context } from "@opentelemetry/api";
import { AsyncLocalStorageContextManager } from "@opentelemetry/context-async-hooks";
import { generateText, jsonSchema, stepCountIs, tool } from "ai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { BasicTracerProvider, InMemorySpanExporter, SimpleSpanProcessor } from "@opentelemetry/sdk-trace-base";
import { JsonTraceSerializer } from "@opentelemetry/otlp-transformer";

globalThis.AI_SDK_LOG_WARNINGS = false;
context.setGlobalContextManager(new AsyncLocalStorageContextManager().enable());
const said = JSON.parse(process.argv[2]);
const kept = new InMemorySpanExporter();
const provider = new BasicTracerProvider({ spanProcessors: [new SimpleSpanProcessor(kept)] });
const model = createOpenAICompatible({ name: "here", baseURL: `${said.url}/v1`, apiKey: "none" })("m");
const tools = Object.fromEntries(
  said.tools.map((each, place) => [
    each.name,
    tool({ description: each.description, inputSchema: jsonSchema(each.schema), execute: async () => said.results[place] }),
  ]),
);
const telemetry = { isEnabled: true, tracer: provider.getTracer("ai"), metadata: { sessionId: "greenhouse", consent: "yes" } };
const common = { model, tools, system: said.system, stopWhen: stepCountIs(4), maxRetries: 0, experimental_telemetry: telemetry };
const messages = [{ role: "user", content: said.asked[0] }];
const first = await generateText({ ...common, messages });
messages.push(...first.response.messages, { role: "user", content: said.asked[1] });
await generateText({ ...common, messages });
const request = JSON.parse(new TextDecoder().decode(JsonTraceSerializer.serializeRequest(kept.getFinishedSpans())));
request.resourceSpans.forEach((owner) => (owner.resource = { attributes: [] }));
console.log(JSON.stringify(request));
