"""Runs in the clients' own environment: ``python python_cases.py URL``; a JSON line a case."""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import sys
import traceback
from collections.abc import Callable
from typing import Any

URL = sys.argv[1]
HELLO = [{"role": "user", "content": "Say hello"}]
USE = [{"role": "user", "content": "Now use the tool"}]
ANSWER = "Done, and well."
PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOL = {"type": "function", "function": {"name": "get_weather", "parameters": PARAMETERS}}

CASES: list[tuple[str, str, Callable[[], Any]]] = []


def case(client: str, name: str) -> Callable[[Callable[[], Any]], Callable[[], Any]]:
    """Make a function a case of a client, which is the name of its distribution."""

    def add(run: Callable[[], Any]) -> Callable[[], Any]:
        CASES.append((client, name, run))
        return run

    return add


def openai() -> Any:
    return importlib.import_module("openai").OpenAI(base_url=f"{URL}/v1", api_key="none")


def anthropic() -> Any:
    return importlib.import_module("anthropic").Anthropic(base_url=URL, api_key="none")


def person() -> Any:
    from pydantic import BaseModel

    class Person(BaseModel):
        name: str

    return Person


@case("openai", "chat")
def _() -> None:
    made = openai().chat.completions.create(model="any", messages=HELLO)
    assert made.choices[0].message.content == ANSWER


@case("openai", "stream")
def _() -> None:
    chunks = openai().chat.completions.create(model="any", messages=HELLO, stream=True)
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == ANSWER


@case("openai", "tools")
def _() -> None:
    made = openai().chat.completions.create(model="any", messages=USE, tools=[TOOL])
    call = made.choices[0].message.tool_calls[0]
    assert json.loads(call.function.arguments) == {"city": "Paris"}
    result = {"role": "tool", "tool_call_id": call.id, "content": "Rain."}
    messages = [*USE, made.choices[0].message, result]
    made = openai().chat.completions.create(model="any", messages=messages, tools=[TOOL])
    assert made.choices[0].message.content == ANSWER


@case("openai", "parse")
def _() -> None:
    made = openai().chat.completions.parse(
        model="any", messages=HELLO, response_format=person(), max_tokens=200
    )
    assert made.choices[0].message.parsed is not None


@case("openai", "responses")
def _() -> None:
    text = "Say hello, " + "and hello, " * 50 + "and no more"
    first = openai().responses.create(model="any", input=text)
    assert first.output_text == ANSWER
    second = openai().responses.create(
        model="any", input="And again", previous_response_id=first.id
    )
    assert second.usage.input_tokens_details.cached_tokens > 0
    counted = openai().responses.input_tokens.count(model="any", input=text)
    assert counted.input_tokens == first.usage.input_tokens


@case("anthropic", "messages and stream")
def _() -> None:
    made = anthropic().messages.create(model="any", max_tokens=50, messages=HELLO)
    assert made.content[0].text == ANSWER
    with anthropic().messages.stream(model="any", max_tokens=50, messages=HELLO) as stream:
        assert stream.get_final_text() == ANSWER
    assert anthropic().models.list().data[0].display_name


@case("anthropic", "tool runner")
def _() -> None:
    from anthropic import beta_tool

    seen = []

    @beta_tool
    def get_weather(city: str) -> str:
        """The weather.

        Args:
            city: Which city.
        """
        seen.append(city)
        return "Rain."

    runner = anthropic().beta.messages.tool_runner(
        model="any", max_tokens=100, tools=[get_weather], messages=USE
    )
    last = runner.until_done()
    assert seen == ["Paris"]
    assert last.content[0].text == ANSWER


@case("litellm", "chat over both APIs")
def _() -> None:
    import litellm

    litellm.telemetry = False
    for model, base in (("openai/any", f"{URL}/v1"), ("anthropic/any", URL)):
        made = litellm.completion(model=model, api_base=base, api_key="none", messages=HELLO)
        assert made.choices[0].message.content == ANSWER


@case("litellm", "the context's end")
def _() -> None:
    import litellm

    long = [{"role": "user", "content": "word " * 300_000}]
    try:
        litellm.completion(model="openai/any", api_base=f"{URL}/v1", api_key="none", messages=long)
    except litellm.ContextWindowExceededError:
        return
    raise AssertionError("no ContextWindowExceededError")


def _langchain(method: str) -> None:
    from langchain_openai import ChatOpenAI

    model = ChatOpenAI(base_url=f"{URL}/v1", api_key="none", model="any", max_tokens=200)
    schema = {"title": "Person", **PARAMETERS}
    found = model.with_structured_output(schema, method=method).invoke("As JSON: say hello")
    assert isinstance(found, dict)


@case("langchain-openai", "structured output: json_schema")
def _() -> None:
    _langchain("json_schema")


@case("langchain-openai", "structured output: function_calling")
def _() -> None:
    _langchain("function_calling")


@case("langchain-openai", "structured output: json_mode")
def _() -> None:
    _langchain("json_mode")


@case("langchain-anthropic", "chat")
def _() -> None:
    from langchain_anthropic import ChatAnthropic

    model = ChatAnthropic(base_url=URL, api_key="none", model="any", max_tokens=50)
    assert model.invoke("Say hello").content == ANSWER


@case("pydantic-ai-slim", "agent with a tool")
def _() -> None:
    from pydantic_ai import Agent
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    provider = OpenAIProvider(base_url=f"{URL}/v1", api_key="none")
    agent = Agent(OpenAIChatModel("any", provider=provider))
    seen = []

    @agent.tool_plain
    def get_weather(city: str) -> str:
        seen.append(city)
        return "Rain."

    assert agent.run_sync("Now use the tool").output == ANSWER
    assert seen == ["Paris"]


@case("instructor", "structured output")
def _() -> None:
    import instructor

    client = instructor.from_openai(openai(), mode=instructor.Mode.JSON_SCHEMA)
    made = client.chat.completions.create(
        model="any", messages=HELLO, response_model=person(), max_tokens=200, max_retries=1
    )
    assert isinstance(made.name, str)


@case("openai-agents", "agent with a tool")
def _() -> None:
    import agents

    seen = []

    @agents.function_tool
    def get_weather(city: str) -> str:
        seen.append(city)
        return "Rain."

    client = importlib.import_module("openai").AsyncOpenAI(base_url=f"{URL}/v1", api_key="none")
    agents.set_tracing_disabled(True)
    model = agents.OpenAIResponsesModel(model="any", openai_client=client)
    agent = agents.Agent(name="a", model=model, tools=[get_weather])
    assert agents.Runner.run_sync(agent, "Now use the tool").final_output == ANSWER
    assert seen == ["Paris"]


def main() -> None:
    """Run every case whose client is installed."""
    for client, name, run in CASES:
        try:
            version = importlib.metadata.version(client)
        except importlib.metadata.PackageNotFoundError:
            told = {"client": client, "version": "-", "case": name, "outcome": "skipped"}
        else:
            told = {"client": client, "version": version, "case": name, "outcome": "ok"}
            try:
                run()
            except Exception as error:
                where = traceback.extract_tb(error.__traceback__)[-1]
                text = f"{type(error).__name__} at {where.name}:{where.lineno}: {error}"
                told["outcome"] = " ".join(text.split())[:400]
        print(json.dumps(told), flush=True)


if __name__ == "__main__":
    main()
