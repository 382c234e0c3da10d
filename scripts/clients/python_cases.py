"""Runs in the clients' own environment: ``python python_cases.py URL``; a JSON line a case."""

from __future__ import annotations

import importlib
import json
from typing import Any

from client_cases import PARAMETERS, TOOL, URL, Skipped, anthropic, case, main, openai, weather_tool

HELLO = [{"role": "user", "content": "Say hello"}]
USE = [{"role": "user", "content": "Now use the tool"}]
ANSWER = "Done, and well."


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


@case("openai", "responses: stream, tools and parse")
def _() -> None:
    client = openai()
    with client.responses.stream(model="any", input="Say hello") as stream:
        assert stream.get_final_response().output_text == ANSWER
    tools = [{"type": "function", "name": "get_weather", "parameters": PARAMETERS}]
    first = client.responses.create(model="any", input="Now use the tool", tools=tools)
    call = next(item for item in first.output if item.type == "function_call")
    assert json.loads(call.arguments) == {"city": "Paris"}
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "Rain."}
    second = client.responses.create(
        model="any", input=[result], tools=tools, previous_response_id=first.id
    )
    assert second.output_text == ANSWER
    parsed = client.responses.parse(
        model="any", input="Say hello", text_format=person(), max_output_tokens=200
    )
    assert isinstance(parsed.output_parsed.name, str)


@case("anthropic", "messages and stream")
def _() -> None:
    made = anthropic().messages.create(model="any", max_tokens=50, messages=HELLO)
    assert made.content[0].text == ANSWER
    with anthropic().messages.stream(model="any", max_tokens=50, messages=HELLO) as stream:
        assert stream.get_final_text() == ANSWER
    assert anthropic().models.list().data[0].display_name
    counted = anthropic().messages.count_tokens(model="any", messages=HELLO)
    assert counted.input_tokens == made.usage.input_tokens


@case("anthropic", "parse")
def _() -> None:
    made = anthropic().messages.parse(
        model="any", max_tokens=200, messages=HELLO, output_format=person()
    )
    assert isinstance(made.parsed_output.name, str)


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


@case("litellm", "stream, tools and Responses")
def _() -> None:
    import litellm

    for model, base in (("openai/any", f"{URL}/v1"), ("anthropic/any", URL)):
        at: dict[str, Any] = {"model": model, "api_base": base, "api_key": "none"}
        chunks = litellm.completion(**at, messages=HELLO, stream=True)
        assert "".join(c.choices[0].delta.content or "" for c in chunks) == ANSWER
        made = litellm.completion(**at, messages=USE, tools=[TOOL])
        call = made.choices[0].message.tool_calls[0]
        assert json.loads(call.function.arguments) == {"city": "Paris"}
        result = {"role": "tool", "tool_call_id": call.id, "content": "Rain."}
        messages = [*USE, made.choices[0].message, result]
        made = litellm.completion(**at, messages=messages, tools=[TOOL])
        assert made.choices[0].message.content == ANSWER
    made = litellm.responses(
        model="openai/any", api_base=f"{URL}/v1", api_key="none", input="Say hello"
    )
    assert made.output[0].content[0].text == ANSWER


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


@case("langchain-anthropic", "structured output")
def _() -> None:
    from langchain_anthropic import ChatAnthropic

    model = ChatAnthropic(base_url=URL, api_key="none", model="any", max_tokens=200)
    for method in ("function_calling", "json_schema"):
        found = model.with_structured_output(person(), method=method).invoke("Say hello")
        assert isinstance(found.name, str), method


@case("langchain", "agents over all three APIs")
def _() -> None:
    from langchain.agents import create_agent
    from langchain_anthropic import ChatAnthropic
    from langchain_openai import ChatOpenAI

    at = {"base_url": f"{URL}/v1", "api_key": "none", "model": "any"}
    for model in (
        ChatOpenAI(**at),
        ChatOpenAI(**at, use_responses_api=True),
        ChatAnthropic(base_url=URL, api_key="none", model="any", max_tokens=200),
    ):
        seen: list[str] = []
        agent = create_agent(model, tools=[weather_tool(seen)])
        assert agent.invoke({"messages": USE})["messages"][-1].text == ANSWER
        assert seen == ["Paris"]


def _pydantic_ai(*models: Any) -> None:
    from pydantic_ai import Agent, ToolOutput

    for model in models:
        seen: list[str] = []
        agent = Agent(model, tools=[weather_tool(seen)])
        assert agent.run_sync("Now use the tool").output == ANSWER
        assert seen == ["Paris"]
        made = Agent(model, output_type=ToolOutput(person())).run_sync("Say hello")
        assert isinstance(made.output.name, str)


@case("pydantic-ai-slim", "agents over chat completions and Responses")
def _() -> None:
    from pydantic_ai import Agent, NativeOutput
    from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
    from pydantic_ai.providers.openai import OpenAIProvider

    provider = OpenAIProvider(base_url=f"{URL}/v1", api_key="none")
    models = [cls("any", provider=provider) for cls in (OpenAIChatModel, OpenAIResponsesModel)]
    _pydantic_ai(*models)
    for model in models:
        made = Agent(model, output_type=NativeOutput(person())).run_sync("Say hello")
        assert isinstance(made.output.name, str)


@case("pydantic-ai-slim", "agents over Messages")
def _() -> None:
    from anthropic.types.beta import BetaMessageParam
    from pydantic_ai.models.anthropic import AnthropicModel
    from pydantic_ai.providers.anthropic import AnthropicProvider

    if not isinstance(BetaMessageParam, type):
        # It calls this type, which in newer SDKs is a union: no request is ever sent.
        raise Skipped
    _pydantic_ai(AnthropicModel("any", provider=AnthropicProvider(base_url=URL, api_key="none")))


@case("instructor", "structured output")
def _() -> None:
    import instructor

    # Not Mode.JSON: there nothing but the model's own sense brings the right keys.
    modes = (instructor.Mode.JSON_SCHEMA, instructor.Mode.TOOLS)
    clients = [instructor.from_openai(openai(), mode=mode) for mode in modes]
    clients.append(instructor.from_anthropic(anthropic(), mode=instructor.Mode.ANTHROPIC_TOOLS))
    for client in clients:
        made = client.chat.completions.create(
            model="any", messages=HELLO, response_model=person(), max_tokens=200, max_retries=1
        )
        assert isinstance(made.name, str)


@case("openai-agents", "agent with a tool")
def _() -> None:
    import agents

    seen: list[str] = []
    get_weather = agents.function_tool(weather_tool(seen))
    client = importlib.import_module("openai").AsyncOpenAI(base_url=f"{URL}/v1", api_key="none")
    agents.set_tracing_disabled(True)
    model = agents.OpenAIResponsesModel(model="any", openai_client=client)
    agent = agents.Agent(name="a", model=model, tools=[get_weather])
    assert agents.Runner.run_sync(agent, "Now use the tool").final_output == ANSWER
    assert seen == ["Paris"]


@case("smolagents", "chat")
def _() -> None:
    import smolagents

    model = smolagents.OpenAIModel("any", api_base=f"{URL}/v1", api_key="none")
    made = model.generate([{"role": "user", "content": [{"type": "text", "text": "Say hello"}]}])
    assert made.content == ANSWER


if __name__ == "__main__":
    main()
