#!/usr/bin/env python3
"""Chat templates of five families render as in transformers, and answers alone are trained.

The templates are our own; they use what those of Mistral, Llama 3, Qwen2.5, Qwen3 and SmolLM3 use.
ATOLL_TEST_TEMPLATES=FOLDER also renders the published templates (*.jinja) in a folder, or compares how they refuse.
Without transformers, jinja2 and tokenizers the test is skipped: pip install transformers jinja2."""
import json
import os
import sys
import tempfile
from pathlib import Path

from python import HERE, SOURCE, has

try:
    import tokenizers
    import transformers
    from transformers.utils.chat_template_utils import render_jinja_template
except ImportError as error:
    print(f"skipped: {error}; pip install transformers jinja2 tokenizers, or set ATOLL_TEST_PYTHON to a "
          "Python that has them")
    sys.exit(77)

from atoll_data import chat, conversation, documents, encoding  # noqa: E402
from atoll_data.errors import DataError  # noqa: E402

SPECIAL = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>"}
ENDS = ["<s>", "</s>", "<|eot_id|>", "<|im_end|>", "<|im_start|>", "<|start_header_id|>",
        "<|end_header_id|>"]
FAMILIES = ("mistral", "llama3", "qwen25", "qwen3", "smollm3")
TODAY = {"today": "26 Jul 2024"}

user = lambda text: {"role": "user", "content": text}
assistant = lambda text, **more: {"role": "assistant", "content": text, **more}
system = lambda text: {"role": "system", "content": text}

CHATS = {
    "one": [user("Hi?"), assistant("Hello.")],
    "system": [system("Be <kind> & \"short\"."), user("Hi?"), assistant("Hello.")],
    "turns": [user("a"), assistant("b"), user("a"), assistant("a"), user("c"), assistant("b")],
    "blanks": [user("  a\n"), assistant("\n b \n"), user("\n"), assistant(" ")],
    "empty": [user("a"), assistant("")],
    "unicode": [user("Grüße 🐚, 你好?"), assistant("Grüße 🐚 «你好»\u0301.")],
    "marks": [user("{{ 1 }} {% if %} <s></s><|im_end|>"), assistant("</s>x<|im_end|>y")],
    "thoughts": [user("a"), assistant("<think>\nold\n</think>\n\nb"), user("c"),
                 assistant("<think>\nnew\n</think>\n\nd")],
    "reasoning": [user("a"), assistant("b", reasoning_content="because"), user("c"),
                  assistant("d", thinking="so\n")],
    "quiet": [system("/no_think"), user("a"), assistant("b")],
    "question": [user("a"), assistant("b"), user("c")],
    "nulls": [user("a") | {"name": None}, assistant("b", tool_calls=None)],
}
REFUSED = {
    "mistral": [[assistant("a")], [user("a"), user("b")], [user("a"), {"role": "tool", "content": "b"}]],
    "llama3": [[user("a"), {"role": "tool", "content": "b"}]],
}


def template(family, **variables):
    text = (HERE / "templates" / f"{family}.jinja").read_text()
    return text, chat.Template(text, family, SPECIAL, variables)


def theirs(text, messages, **more):
    messages = [{k: v for k, v in message.items() if v is not None} for message in messages]
    rendered, _ = render_jinja_template(conversations=[messages], chat_template=text, **SPECIAL, **more)
    return rendered[0]


def check_rendering():
    count = 0
    for family in FAMILIES:
        for variables in ({}, TODAY, TODAY | {"enable_thinking": False}):
            text, ours = template(family, **variables)
            for name, messages in CHATS.items():
                messages = [conversation.plain(message) for message in messages]
                for prompt in (False, True):
                    expected = theirs(text, messages, add_generation_prompt=prompt, **variables)
                    found = ours.render(messages, prompt=prompt)
                    assert found == expected, f"{family}, {name}: {found!r} is not {expected!r}"
                    count += 1
        if family == "qwen25":
            tools = [{"type": "function", "function": {"name": "f", "description": "<ü>"}}]
            messages = CHATS["one"]
            assert ours.render(messages, tools) == theirs(text, messages, tools=tools, **variables)
        for messages in REFUSED.get(family, []):
            reasons = []
            for render in (ours.render, lambda m: theirs(text, m)):
                try:
                    render(messages)
                except Exception as refusal:  # transformers throws several types
                    reasons.append(str(refusal))
                else:
                    raise AssertionError(f"{family} accepts {messages}")
            assert reasons[0] == reasons[1], reasons
    print(f"{count} texts equal those of transformers {transformers.__version__}")


def outcome(render):
    try:
        return render()
    except Exception as refusal:  # transformers throws several types
        return f"refused: {refusal}"


def check_published(folder):
    files = sorted(Path(folder).glob("*.jinja"))
    assert files, f"{folder}: no *.jinja"
    texts = refusals = 0
    for file in files:
        text = file.read_text()
        ours = chat.Template(text, file.stem, SPECIAL, TODAY)
        for name, messages in CHATS.items():
            messages = [conversation.plain(message) for message in messages]
            for prompt in (False, True):
                expected = outcome(lambda: theirs(text, messages, add_generation_prompt=prompt, **TODAY))
                found = outcome(lambda: ours.render(messages, prompt=prompt))
                assert found == expected, f"{file.name}, {name}: {found!r} is not {expected!r}"
                texts += 1
                refusals += found.startswith("refused: ")
    assert refusals < texts, "every template refuses everything"
    print(f"{len(files)} published templates: {texts} texts equal those of transformers, of which {refusals} refusals")


# For each template, computes the text that is trained for an answer from the answer's content.
ANSWERS = {
    "mistral": lambda answer, last: " " + answer.strip() + "</s>",
    "llama3": lambda answer, last: answer.strip() + "<|eot_id|>",
    "qwen25": lambda answer, last: answer + "<|im_end|>",
    "qwen3": lambda answer, last: ("<think>\n\n</think>\n\n" if last else "") + answer + "<|im_end|>",
    "smollm3": lambda answer, last: answer.lstrip("\n") + "<|im_end|>",
}


def check_answers():
    for family in FAMILIES:
        _, ours = template(family, **TODAY)
        for name in ("one", "system", "turns", "blanks", "empty", "unicode", "marks"):
            messages = CHATS[name]
            text, spans = ours.render_marked(messages, ENDS)
            answers = [m["content"] for m in messages if m["role"] == "assistant"]
            expected = [ANSWERS[family](answer, i + 1 == len(answers)) for i, answer in enumerate(answers)]
            found = [text[begin:end] for begin, end in spans]
            assert found == expected, f"{family}, {name}: {found} is not {expected}"
            assert text == ours.render(messages)
    _, ours = template("qwen3")
    text, spans = ours.render_marked(CHATS["thoughts"], ENDS)
    assert [text[b:e] for b, e in spans] == ["b<|im_end|>", "<think>\nnew\n</think>\n\nd<|im_end|>"]
    text, spans = ours.render_marked([conversation.plain(m) for m in CHATS["reasoning"]], ENDS)
    assert [text[b:e] for b, e in spans] == ["b<|im_end|>", "<think>\nso\n</think>\n\nd<|im_end|>"]
    _, ours = template("smollm3", enable_thinking=False)
    text, spans = ours.render_marked(CHATS["one"], ENDS)
    assert [text[b:e] for b, e in spans] == ["<think>\n\n</think>\nHello.<|im_end|>"]
    # With `first`, only answers from this message on are trained, as for prompts that are lists of messages.
    _, ours = template("qwen25")
    text, spans = ours.render_marked(CHATS["turns"], ENDS, first=4)
    assert [text[b:e] for b, e in spans] == ["b<|im_end|>"]
    print("the trained text of every answer is the answer and its end")


def byte_tokenizer():
    """A byte-level tokenizer.json with the special tokens of all families."""
    alphabet = sorted(encoding.BYTE_LEVEL)
    model = tokenizers.models.BPE(vocab={char: id for id, char in enumerate(alphabet)}, merges=[])
    made = tokenizers.Tokenizer(model)
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    made.add_special_tokens([*ENDS, "<pad>"])
    return made


def check_tokens(folder):
    """Ids and masks of marked answers equal those of transformers."""
    byte_tokenizer().save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(
        SPECIAL | {"tokenizer_class": "PreTrainedTokenizerFast"}))
    text, _ = template("smollm3")
    (folder / "chat_template.jinja").write_text(text)
    reference = transformers.PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"), **SPECIAL)

    class Options:
        tokenizer, format, template, field = str(folder), "chat", None, "text"
        bos, eos, train_on = None, None, "output"
        variables = TODAY

    converter = documents.Converter(Options)
    for name, messages in CHATS.items():
        expected = reference.apply_chat_template(
            messages, chat_template=text, return_dict=True, return_assistant_tokens_mask=True, **TODAY)
        ids, mask = converter.convert(name, {"messages": messages})
        assert ids == list(expected["input_ids"]), name
        assert [bit - 48 for bit in mask] == list(expected["assistant_masks"]), name
    pieces = converter.tokenizer.pieces()
    ids, _ = converter.convert("unicode", {"messages": CHATS["unicode"]})
    assert "Grüße 🐚 «你好»" in b"".join(pieces[id] for id in ids).decode()
    for record, reason in (({"messages": []}, "not a list of messages"),
                           ({"messages": [{"content": "a"}]}, "message 1 has no `role`"),
                           ({"messages": [user("\ufdd0")]}, "a character that is no text")):
        try:
            converter.convert("x", record)
        except DataError as error:
            assert reason in str(error), error
        else:
            raise AssertionError(record)
    # A record with ShareGPT's names of keys and roles gives the same ids and masks.
    shared = {"conversations": [{"from": "human", "value": "Hi?"}, {"from": "gpt", "value": "Hello."}]}
    assert converter.convert("x", shared) == converter.convert("x", {"messages": CHATS["one"]})
    print("ids and masks of marked answers equal those of transformers")


def check_choice():
    """Of several templates, transformers and atoll-data take the same one."""
    texts = {name: name + "{% for m in messages %}{{ m.content }}{% endfor %}{{ tools | tojson }}"
             for name in ("default", "tool_use", "rag")}
    listed = [{"name": name, "template": text} for name, text in texts.items()]
    reference = transformers.PreTrainedTokenizerFast(tokenizer_object=byte_tokenizer(), chat_template=listed)
    for tools in (None, [], [{"name": "f"}]):
        ours = chat.Templates(None, {"chat_template": listed}, None, {}, encoding.Bytes()).choose("x", tools)
        expected = reference.apply_chat_template(CHATS["one"], tools=tools, tokenize=False)
        assert ours.render(CHATS["one"], tools) == expected, (tools, expected)
    print("of several templates, that of transformers is taken")


def check_legacy(folder):
    """A folder with a SentencePiece model gives the ids of transformers, which `legacy` changes."""
    if not has("sentencepiece"):
        return
    (folder / "tokenizer.model").write_bytes((SOURCE / "tests" / "train" / "tokenizer.model").read_bytes())
    for legacy in (True, False):
        (folder / "tokenizer_config.json").write_text(json.dumps(
            {"tokenizer_class": "LlamaTokenizer", "bos_token": "<s>", "eos_token": "</s>", "legacy": legacy}))
        reference = transformers.LlamaTokenizer.from_pretrained(folder)
        ours, _ = encoding.load(str(folder), {})
        for text in ("a", "<s>[INST] Hi? [/INST]Hello.</s>", "<s>a</s>b", "a</s>\n b", "<s>\nGrüße 🐚</s>[INST]x"):
            expected = reference(text, add_special_tokens=False)["input_ids"]
            assert ours.encode(text, [])[0] == expected, (legacy, text)
    print("ids of SentencePiece models equal those of transformers")


if __name__ == "__main__":
    check_rendering()
    if published := os.environ.get("ATOLL_TEST_TEMPLATES"):
        check_published(published)
    check_answers()
    check_choice()
    with tempfile.TemporaryDirectory() as name:
        check_tokens(Path(name))
    with tempfile.TemporaryDirectory() as name:
        check_legacy(Path(name))
