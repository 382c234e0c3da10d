// Runs beside the packages: `node ai_sdk_demo.mjs URL`; the four functions on the demo model.
import { generateObject, generateText, streamObject, streamText } from "ai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { z } from "zod";
import { runAll } from "./ai_sdk_cases.mjs";

const url = process.argv[2];
const model = createOpenAICompatible({
  name: "mlxceld", baseURL: `${url}/v1`, apiKey: "none", supportsStructuredOutputs: true,
})("any");
const schema = z.object({ name: z.string().max(20), large: z.boolean() });
const asked = { model, prompt: "What is the capital of France?", temperature: 0 };

function knows(text) {
  if (!text.includes("Paris")) throw new Error(`no Paris in ${JSON.stringify(text)}`);
}

function isCity(object) {
  if (typeof object.large !== "boolean") throw new Error(JSON.stringify(object));
}

await runAll({
  generateText: async () => knows((await generateText({ ...asked, maxOutputTokens: 40 })).text),
  streamText: async () => {
    let text = "";
    for await (const piece of streamText({ ...asked, maxOutputTokens: 40 }).textStream) text += piece;
    knows(text);
  },
  generateObject: async () => isCity((await generateObject({ ...asked, schema })).object),
  streamObject: async () => {
    const made = streamObject({ ...asked, schema });
    for await (const piece of made.partialObjectStream) void piece;
    isCity(await made.object);
  },
});
