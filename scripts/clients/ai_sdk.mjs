// Runs beside the packages: `node ai_sdk.mjs URL`; a JSON line a case.
import { generateObject, generateText, stepCountIs, streamObject, streamText, tool } from "ai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { createOpenAI } from "@ai-sdk/openai";
import { createAnthropic } from "@ai-sdk/anthropic";
import { z } from "zod";
import { runAll } from "./ai_sdk_cases.mjs";

const url = process.argv[2];
const answer = "Done, and well.";
const schema = z.object({ name: z.string() });
const models = {
  compatible: createOpenAICompatible({
    name: "mlxceld", baseURL: `${url}/v1`, apiKey: "none", supportsStructuredOutputs: true,
  })("any"),
  responses: createOpenAI({ baseURL: `${url}/v1`, apiKey: "none" }).responses("any"),
  messages: createAnthropic({ baseURL: `${url}/v1`, apiKey: "none" })("any"),
};

function equal(found, wanted) {
  if (found !== wanted) throw new Error(`${JSON.stringify(found)} instead of ${wanted}`);
}

const cases = {};
for (const [name, model] of Object.entries(models)) {
  cases[`generateText, ${name}`] = async () =>
    equal((await generateText({ model, prompt: "Say hello" })).text, answer);
  cases[`streamText, ${name}`] = async () => {
    let text = "";
    for await (const piece of streamText({ model, prompt: "Say hello" }).textStream) text += piece;
    equal(text, answer);
  };
  cases[`tool loop, ${name}`] = async () => {
    const seen = [];
    const get_weather = tool({
      inputSchema: z.object({ city: z.string() }),
      execute: async ({ city }) => { seen.push(city); return "Rain."; },
    });
    const made = await generateText({
      model, prompt: "Now use the tool", tools: { get_weather }, stopWhen: stepCountIs(3),
    });
    equal(seen.join(), "Paris");
    equal(made.text, answer);
  };
}
for (const name of ["compatible", "responses"]) {
  const model = models[name];
  cases[`generateObject, ${name}`] = async () =>
    equal(typeof (await generateObject({ model, schema, prompt: "Say hello" })).object.name, "string");
  cases[`streamObject, ${name}`] = async () => {
    const made = streamObject({ model, schema, prompt: "Say hello" });
    for await (const piece of made.partialObjectStream) void piece;
    equal(typeof (await made.object).name, "string");
  };
}

await runAll(cases);
