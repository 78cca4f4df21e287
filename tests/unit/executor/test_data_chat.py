"""Conversations: rendered as their model expects, and only what the assistant says is learnt."""

import logging
from pathlib import Path
from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast

from infinipipe_executor.data.corpus import open_corpus
from infinipipe_executor.errors import DataError
from support_executor.corpora import (
    CHAT_TEMPLATE,
    VOCAB,
    data_config,
    learnt_texts,
    texts,
    token_lists,
    write_jsonl,
    write_tokenizer,
)

TURNS = [
    {"role": "system", "content": "be kind"},
    {"role": "user", "content": "how is été?"},
    {"role": "assistant", "content": "warm ☀"},
    {"role": "user", "content": "and \nwinter"},
    {"role": "assistant", "content": "\ncold"},
]
# Says "thinking" only in the last turn, as some models do.
FORGETFUL = CHAT_TEMPLATE.replace(
    "message['content']", "('(thinking) ' if loop.last and message['role'] == 'assistant' else '') + message['content']"
)
STRICT = "{% if messages[0]['role'] != 'user' %}{{ raise_exception('a user must begin') }}{% endif %}" + CHAT_TEMPLATE


def write_chats(folder: Path, *conversations: Any) -> Path:
    return write_jsonl(folder / "chat.jsonl", [{"messages": turns} for turns in conversations])


def test_only_the_turns_of_the_assistant_and_their_end_marks_are_targets(tmp_path: Path) -> None:
    tokenizer = write_tokenizer(tmp_path / "t")

    corpus = open_corpus(data_config(tmp_path, write_chats(tmp_path, TURNS), tokenizer=tokenizer), VOCAB)

    assert learnt_texts(corpus, tokenizer) == ["warm ☀<|im_end|>\n\ncold<|im_end|>\n"]


def test_the_tokens_of_a_conversation_are_those_of_transformers(tmp_path: Path) -> None:
    tokenizer = write_tokenizer(tmp_path / "t", adds_begin=True)
    theirs = PreTrainedTokenizerFast.from_pretrained(tokenizer.parent)

    corpus = open_corpus(data_config(tmp_path, write_chats(tmp_path, TURNS, TURNS[1:3]), tokenizer=tokenizer), VOCAB)

    expected = [theirs.apply_chat_template(turns, return_dict=False) for turns in (TURNS, TURNS[1:3])]
    assert token_lists(corpus) == expected


def test_a_template_in_a_file_of_its_own_goes_first(tmp_path: Path) -> None:
    tokenizer = write_tokenizer(tmp_path / "t")
    (tokenizer.parent / "chat_template.jinja").write_text("{% for m in messages %}[{{ m['content'] }}]{% endfor %}")

    corpus = open_corpus(data_config(tmp_path, write_chats(tmp_path, TURNS[1:3]), tokenizer=tokenizer), VOCAB)

    assert texts(corpus, tokenizer) == ["[how is été?][warm ☀]"]


def test_a_template_that_writes_turns_otherwise_later_is_refused_with_file_and_line(tmp_path: Path) -> None:
    tokenizer = write_tokenizer(tmp_path / "t", template=FORGETFUL)
    path = write_chats(tmp_path, TURNS[1:3], TURNS)

    with pytest.raises(
        DataError, match=r"chat\.jsonl:2: the chat template of .* writes the turns up to 3 of 5 otherwise"
    ):
        open_corpus(data_config(tmp_path, path, tokenizer=tokenizer), VOCAB)


@pytest.mark.parametrize(
    ("turns", "reason"),
    [
        (TURNS[:2], "no turn of the assistant"),
        ("hello", '"messages" is not a list of objects with a "role"'),
        ([{"content": "x"}], '"messages" is not a list of objects with a "role"'),
        ([], "no turn of the assistant"),
        (TURNS, "refused by the chat template: a user must begin"),
        ([{"role": "user", "content": None}, TURNS[2]], "refused by the chat template: "),
    ],
)
def test_conversations_that_cannot_be_used_are_skipped_with_file_line_and_reason(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, turns: object, reason: str
) -> None:
    tokenizer = write_tokenizer(tmp_path / "t", template=STRICT)
    path = write_chats(tmp_path, TURNS[1:3], turns)

    with caplog.at_level(logging.INFO):
        corpus = open_corpus(data_config(tmp_path, path, tokenizer=tokenizer), VOCAB)

    assert corpus.report.skipped == {reason.partition(":")[0]: 1}
    assert f"chat.jsonl:2: skipped, {reason}" in caplog.text


@pytest.mark.parametrize("given", [True, False], ids=["no template", "no tokenizer"])
def test_conversations_without_a_template_are_refused_with_what_is_missing(tmp_path: Path, given: bool) -> None:
    tokenizer = write_tokenizer(tmp_path / "t", template=None) if given else None
    config = data_config(tmp_path, write_chats(tmp_path, TURNS), tokenizer=tokenizer)

    with pytest.raises(DataError, match=r"conversations need a chat template: .*\(\[data\] tokenizer\)"):
        open_corpus(config, VOCAB)


def test_a_template_that_is_none_is_refused(tmp_path: Path) -> None:
    tokenizer = write_tokenizer(tmp_path / "t", template="{% for m in messages %}")
    config = data_config(tmp_path, write_chats(tmp_path, TURNS), tokenizer=tokenizer)

    with pytest.raises(DataError, match=r"chat template of .*tokenizer_config\.json cannot be read"):
        open_corpus(config, VOCAB)


def test_a_template_reaches_nothing_but_the_conversation(tmp_path: Path) -> None:
    tokenizer = write_tokenizer(tmp_path / "t", template="{{ messages.__class__.__mro__ }}" + CHAT_TEMPLATE)
    path = write_chats(tmp_path, TURNS)

    with pytest.raises(DataError, match=r"corpus is empty: .*1 refused by the chat template"):
        open_corpus(data_config(tmp_path, path, tokenizer=tokenizer), VOCAB)
