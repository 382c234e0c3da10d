"""The prompt in an admin request: the body of a public one, read as the public API reads it."""

from __future__ import annotations

from dataclasses import replace

from mlxceld.admin.context import AdminContext
from mlxceld.admin.errors import AdminError
from mlxceld.admin.schemas import PromptOrder
from mlxceld.api.errors import ApiError
from mlxceld.api.prompts import Api, Prompt


async def read_prompt(context: AdminContext, order: PromptOrder, *, keep: bool = False) -> Prompt:
    """An order's prompt, to be explained or, with ``keep``, to be stored.

    Raises AdminError as the public API would refuse the request.
    """
    api = None if order.api is None else Api(order.api)
    read = context.prompts.to_keep if keep else context.prompts.read
    try:
        prompt = await read(order.request(), api)
    except ApiError as error:
        named = {} if error.param is None else {"field": error.param}
        raise AdminError(error.status, str(error), **named) from None
    return prompt if order.session is None else replace(prompt, session=order.session)
