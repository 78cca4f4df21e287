"""Chat template: a conversation becomes the text that its model expects, and every turn is found again in it.

The template is the one that comes with the tokenizer. What the assistant says is found by rendering the conversation
up to the turn, with the opening of an answer, and once more with the turn: the difference is learnt, the end mark that
the template sets behind it included.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from jinja2 import TemplateError, TemplateSyntaxError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from infinipipe_executor.data.documents import MarkedText, UnusableRowError
from infinipipe_executor.errors import DataError

Message = Mapping[str, Any]


class ChatTemplate:
    """One template of a tokenizer.

    Args:
        source: The template, in the language of Jinja.
        special_tokens: Tokens that the template may name, such as ``eos_token``.
        path: Where it comes from, for messages.

    Raises:
        DataError: If it is no template.
    """

    def __init__(self, source: str, special_tokens: Mapping[str, str], path: Path) -> None:
        # A template comes with a download: it must reach nothing but what it is given.
        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _raise
        try:
            self._template = environment.from_string(source)
        except TemplateSyntaxError as error:
            raise DataError(f"the chat template of {path} cannot be read: {error} ([data] tokenizer)") from error
        self._special_tokens = dict(special_tokens)
        self._path = path

    def render(self, messages: Sequence[Message]) -> MarkedText:
        """Render a conversation; what the assistant says is learnt.

        Raises:
            UnusableRowError: If the template refuses the conversation.
            DataError: If a turn reads otherwise once others follow, so that it cannot be told which text is learnt.
        """
        text = self._text(messages)
        spans = []
        for index, message in enumerate(messages):
            if message["role"] != "assistant":
                continue
            before = self._text(messages[:index], add_generation_prompt=True)
            behind = self._text(messages[: index + 1])
            if not (text.startswith(behind) and behind.startswith(before)):
                raise DataError(
                    f"the chat template of {self._path} writes the turns up to {index + 1} of {len(messages)} "
                    "otherwise once others follow: which tokens are the assistant's cannot be told ([data] tokenizer)"
                )
            spans.append((len(before), len(behind)))
        return MarkedText(text, tuple(spans))

    def _text(self, messages: Sequence[Message], *, add_generation_prompt: bool = False) -> str:
        try:
            return self._template.render(
                messages=messages,
                add_generation_prompt=add_generation_prompt,
                tools=None,
                documents=None,
                **self._special_tokens,
            )
        except (TemplateError, TypeError, ValueError, LookupError, AttributeError) as error:
            raise UnusableRowError("refused by the chat template", str(error)) from error


def _to_json(value: object, indent: int | None = None) -> str:
    """Write JSON as a model reads it; Jinja's own filter escapes it for web pages."""
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _raise(message: str) -> NoReturn:
    raise TemplateError(message)
