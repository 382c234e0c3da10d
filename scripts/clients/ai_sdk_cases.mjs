// Runs cases and prints a JSON line a case.
import { createRequire } from "node:module";

const version = createRequire(import.meta.url)("ai/package.json").version;

export async function runAll(cases) {
  for (const [name, run] of Object.entries(cases)) {
    const told = { client: "AI SDK", version, case: name, outcome: "ok" };
    try {
      await run();
    } catch (error) {
      told.outcome = `${error.name}: ${error.message}`.replace(/\s+/g, " ").slice(0, 400);
    }
    console.log(JSON.stringify(told));
  }
}
