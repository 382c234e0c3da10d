"""Runs in the clients' own environment: ``python demo_cases.py URL``; a JSON line a case.

The daemon serves the demo model, whose answers make sense. It knows nothing of tools, so a call is
one that the client forces.
"""

from __future__ import annotations

import json
from typing import Any

from client_cases import PARAMETERS, TOOL, URL, anthropic, case, main, openai, weather_tool

QUESTION = "What is the capital of France?"
ASKED = [{"role": "user", "content": QUESTION}]
KNOWN = "Paris"
TOKENS = 40
"""Enough for the answer."""
GREEDY = {"temperature": 0}
"""Newer SDKs have no argument for it."""
WEATHER = [{"role": "user", "content": "What is the weather in Paris?"}]


def city() -> Any:
    from pydantic import BaseModel, Field

    class City(BaseModel):
        name: str = Field(max_length=20)
        large: bool

    return City


def knows(text: str) -> None:
    assert KNOWN in text, text


@case("openai", "a question, whole and streamed")
def _() -> None:
    client = openai()
    asked: dict[str, Any] = {"model": "any", "messages": ASKED, "temperature": 0}
    whole = client.chat.completions.create(**asked, max_tokens=TOKENS)
    knows(whole.choices[0].message.content)
    chunks = client.chat.completions.create(**asked, max_tokens=TOKENS, stream=True)
    streamed = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert streamed == whole.choices[0].message.content
    made = client.responses.create(
        model="any", input=QUESTION, temperature=0, max_output_tokens=TOKENS
    )
    assert made.output_text == streamed


@case("openai", "parsed output and a forced call")
def _() -> None:
    client = openai()
    parsed = client.chat.completions.parse(
        model="any", messages=ASKED, response_format=city(), max_tokens=TOKENS
    )
    assert isinstance(parsed.choices[0].message.parsed.large, bool)
    made = client.chat.completions.create(
        model="any", messages=WEATHER, tools=[TOOL], tool_choice="required", max_tokens=80
    )
    (call,) = made.choices[0].message.tool_calls
    assert list(json.loads(call.function.arguments)) == ["city"]


@case("anthropic", "a question and a forced call")
def _() -> None:
    client = anthropic()
    made = client.messages.create(model="any", max_tokens=TOKENS, messages=ASKED, extra_body=GREEDY)
    knows(made.content[0].text)
    with client.messages.stream(
        model="any", max_tokens=TOKENS, messages=ASKED, extra_body=GREEDY
    ) as stream:
        assert stream.get_final_text() == made.content[0].text
    made = client.messages.create(
        model="any",
        max_tokens=80,
        messages=WEATHER,
        tools=[{"name": "get_weather", "input_schema": PARAMETERS}],
        tool_choice={"type": "any"},
    )
    (call,) = [block for block in made.content if block.type == "tool_use"]
    assert list(call.input) == ["city"]


@case("anthropic", "a tool's result")
def _() -> None:
    made = anthropic().messages.create(
        model="any",
        max_tokens=TOKENS,
        extra_body=GREEDY,
        tools=[{"name": "get_weather", "input_schema": PARAMETERS}],
        messages=[
            *WEATHER,
            {
                "role": "assistant",
                "content": [
                    {
                        "type": "tool_use",
                        "id": "t1",
                        "name": "get_weather",
                        "input": {"city": "Paris"},
                    }
                ],
            },
            {
                "role": "user",
                "content": [{"type": "tool_result", "tool_use_id": "t1", "content": "Rain."}],
            },
        ],
    )
    assert made.content[0].text


@case("litellm", "a question over both APIs")
def _() -> None:
    import litellm

    for model, base in (("openai/any", f"{URL}/v1"), ("anthropic/any", URL)):
        made = litellm.completion(
            model=model,
            api_base=base,
            api_key="none",
            messages=ASKED,
            max_tokens=TOKENS,
            temperature=0,
        )
        knows(made.choices[0].message.content)


@case("langchain-openai", "a question and three ways of structured output")
def _() -> None:
    from langchain_openai import ChatOpenAI

    at = {"base_url": f"{URL}/v1", "api_key": "none", "model": "any", "temperature": 0}
    knows(ChatOpenAI(**at, max_tokens=TOKENS).invoke(QUESTION).content)
    model = ChatOpenAI(**at, max_tokens=200)
    for method in ("json_schema", "function_calling"):
        found = model.with_structured_output(city(), method=method).invoke(QUESTION)
        assert isinstance(found.large, bool), method
    # Here nothing but the model's own sense brings the right keys: any object will do.
    assert isinstance(
        model.with_structured_output(None, method="json_mode").invoke(
            f"{QUESTION} Answer in JSON."
        ),
        dict,
    )


@case("langchain-anthropic", "a question and structured output")
def _() -> None:
    from langchain_anthropic import ChatAnthropic

    model = ChatAnthropic(base_url=URL, api_key="none", model="any", max_tokens=200, temperature=0)
    knows(model.invoke(QUESTION).content)
    assert isinstance(model.with_structured_output(city()).invoke(QUESTION).large, bool)


@case("pydantic-ai-slim", "a question and structured output")
def _() -> None:
    from pydantic_ai import Agent, NativeOutput, ToolOutput
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    provider = OpenAIProvider(base_url=f"{URL}/v1", api_key="none")
    model = OpenAIChatModel("any", provider=provider)
    settings: Any = {"temperature": 0, "max_tokens": 200}
    knows(Agent(model, model_settings=settings).run_sync(QUESTION).output)
    for way in (NativeOutput(city()), ToolOutput(city())):
        made = Agent(model, output_type=way, model_settings=settings).run_sync(QUESTION)
        assert isinstance(made.output.large, bool)


@case("instructor", "structured output")
def _() -> None:
    import instructor

    for mode in (instructor.Mode.JSON_SCHEMA, instructor.Mode.TOOLS):
        made = instructor.from_openai(openai(), mode=mode).chat.completions.create(
            model="any", messages=ASKED, response_model=city(), max_tokens=200, max_retries=1
        )
        assert isinstance(made.large, bool)


@case("openai-agents", "an agent with a tool that it need not use")
def _() -> None:
    import agents
    import openai as sdk

    client = sdk.AsyncOpenAI(base_url=f"{URL}/v1", api_key="none")
    agents.set_tracing_disabled(True)
    model = agents.OpenAIResponsesModel(model="any", openai_client=client)
    tool = agents.function_tool(weather_tool([]))
    settings = agents.ModelSettings(temperature=0, max_tokens=TOKENS)
    agent = agents.Agent(name="a", model=model, tools=[tool], model_settings=settings)
    assert agents.Runner.run_sync(agent, QUESTION).final_output


if __name__ == "__main__":
    main()
