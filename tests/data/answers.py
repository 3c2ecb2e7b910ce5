#!/usr/bin/env python3
"""Chat templates without marks: the whole answer is trained, with thoughts, tool calls and its end, or refused."""
import json
import sys
import tempfile
from pathlib import Path

from python import HERE, atoll_data, has

if not has("jinja2"):
    sys.exit(77)

from atoll_data import chat, conversation, encoding  # noqa: E402
from atoll_data.errors import DataError  # noqa: E402

SPECIAL = {"bos_token": "<s>", "eos_token": "</s>"}
ENDS = ["<s>", "</s>", "<|im_start|>", "<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end|>", "<|call|>", "<|stop|>"]
CALLS = ("{% if m.content %}{{ m.content }}{% endif %}{% for c in m.tool_calls or [] %}<tool_call>"
         "{{ c.function | tojson }}</tool_call>{% endfor %}")
PROMPT = "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
CHATML = ("{% for m in messages %}<|im_start|>{{ m.role }}\n" + CALLS + "<|im_end|>\n{% endfor %}" + PROMPT)
CALL = [{"type": "function", "function": {"name": "f", "arguments": {"a": 1}}}]
WRITTEN = '<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>'

user = lambda text: {"role": "user", "content": text}
assistant = lambda text, **more: {"role": "assistant", "content": text, **more}
tool = lambda text: {"role": "tool", "content": text}


def trained(template, messages, **variables):
    """The trained texts, or the refusal."""
    made = chat.Template(template, "template", SPECIAL, variables)
    messages = conversation.messages_of("here", {"messages": messages})
    try:
        text, spans = made.render_marked(messages, ENDS)
    except chat.TemplateRefuses as refusal:
        return str(refusal)
    assert text == made.render(messages)
    return [text[begin:end] for begin, end in spans]


def same(found, expected):
    assert found == expected, f"{found} is not {expected}"


def says(found, *parts):
    for part in parts:
        assert isinstance(found, str) and part in found, f"{part!r} is not in {found!r}"


def check_calls():
    """An answer that calls tools is trained from its text to the end of its turn, whatever its content."""
    silent = ({"content": None}, {"content": ""}, {})
    for call in (*silent, {"content": "Look."}):
        turn = {"role": "assistant", "tool_calls": CALL} | call
        first = (call.get("content") or "") + WRITTEN + "<|im_end|>"
        same(trained(CHATML, [user("q"), turn]), [first])
        same(trained(CHATML, [user("q"), turn, tool("3"), assistant("x")]), [first, "x<|im_end|>"])
    two = assistant(None, tool_calls=CALL * 2)
    same(trained(CHATML, [user("q"), two, tool("3"), tool("3")]), [WRITTEN * 2 + "<|im_end|>"])
    # A message with tool calls ends with another token than a message with text.
    turns = ("{% for m in messages %}<|im_start|>{{ m.role }}\n" + CALLS + "{{ '<|eom_id|>' if m.tool_calls else "
             "'<|eot_id|>' }}{% endfor %}" + PROMPT)
    chats = [user("q"), assistant("", tool_calls=CALL), tool("3"), assistant("x")]
    same(trained(turns, chats), [WRITTEN + "<|eom_id|>", "x<|eot_id|>"])
    # The template refuses the result of a tool without the call before it.
    strict = ("{% set ns = namespace(name='') %}{% for m in messages %}{% if m.role == 'tool' %}{% if not ns.name %}"
              "{{ raise_exception('no call') }}{% endif %}<|im_start|>{{ ns.name }}{% else %}<|im_start|>{{ m.role }}"
              "{% endif %}\n" + CALLS + "{% if m.tool_calls %}{% set ns.name = m.tool_calls[0].function.name %}<|call|>"
              "{% else %}<|end|>{% endif %}{% endfor %}" + PROMPT)
    same(trained(strict, chats), [WRITTEN + "<|call|>", "x<|end|>"])
    # Tool results belong to the answer's turn, so the answer ends with the token before them.
    inside = ("{% for m in messages %}{% if m.role == 'tool' %}{{ m.content }}{% else %}{% if not loop.first and "
              "loop.previtem.role != 'tool' or loop.first %}<|im_start|>{{ m.role }}\n{% endif %}" + CALLS +
              "{{ END if m.tool_calls else '<|im_end|>\n' }}{% endif %}{% endfor %}{% if add_generation_prompt and "
              "messages[-1].role != 'tool' %}<|im_start|>assistant\n{% endif %}")
    same(trained(inside.replace("END", "'<|stop|>'"), chats), [WRITTEN + "<|stop|>", "x<|im_end|>"])
    says(trained(inside.replace("END", "''"), chats), "message 2", "not known")
    # Answers with tool calls that the template does not write are refused.
    says(trained(CHATML.replace("m.tool_calls or []", "[]"), chats),
         "message 2 calls tools, which the template does not write")
    either = CHATML.replace("{% endif %}{% for c", "{% else %}{% for c", 1)
    either = either.replace("{% endfor %}<", "{% endfor %}{% endif %}<", 1)
    same(trained(either, chats), [WRITTEN + "<|im_end|>", "x<|im_end|>"])
    says(trained(either, [*chats[:3], assistant("Look.", tool_calls=CALL), tool("3"), assistant("x")]),
         "message 4 calls tools, which the template does not write")
    print("answers with tool calls are trained to their end")


def check_ends():
    """Every special token that ends an answer is trained, and none of the next turn."""
    turns = [user("a"), assistant("b"), user("c"), assistant("d")]
    twice = CHATML.replace("<|im_end|>\n", "<|im_end|>{{ '</s>' if m.role == 'assistant' }}")
    same(trained(twice, turns), ["b<|im_end|></s>", "d<|im_end|></s>"])
    last = CHATML.replace("{% endif %}", "{% else %}{{ eos_token }}{% endif %}").replace(CALLS, "{{ m.content }}")
    same(trained(last, turns), ["b<|im_end|>", "d<|im_end|>\n</s>"])
    close = CHATML.replace("<|im_end|>\n", "<|im_end|>")
    same(trained(close, turns), ["b<|im_end|>", "d<|im_end|>"])
    # A template without a generation prompt does not tell which tokens begin an answer.
    bare = "{% for m in messages %}{{ m.content }}</s><|im_start|>{% endfor %}"
    same(trained(bare, turns), ["b</s>", "d</s>"])
    none = CHATML.replace("<|im_end|>\n", "")
    same(trained(none, [user("a"), assistant("b"), assistant("c")]), ["b", "c"])
    print("the tokens that end an answer are trained")


def check_begins():
    """Where the generation prompt is no prefix of the text, the answer is trained from its beginning, or refused."""
    qwen3 = (HERE / "templates" / "qwen3.jinja").read_text()
    empty = "<think>\n\n</think>\n\n"
    row = [user("a"), assistant("b"), assistant("c")]
    same(trained(qwen3, row), ["b<|im_end|>", empty + "c<|im_end|>"])
    same(trained(qwen3, row, enable_thinking=False), ["b<|im_end|>", "c<|im_end|>"])
    thoughts = [user("a"), assistant("b", reasoning_content="why"), user("c"), assistant("<think>\nso\n</think>\n\nd")]
    same(trained(qwen3, thoughts), ["b<|im_end|>", "<think>\nso\n</think>\n\nd<|im_end|>"])
    says(trained(qwen3, thoughts, enable_thinking=False), "message 4", "not known", "enable_thinking")
    # The prompt opens a think block, which the text leaves out.
    stripped = ("{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content.split('</think>')[-1] }}<|im_end|>\n"
                "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n<think>\n{% endif %}")
    same(trained(stripped, [user("a"), assistant("<think>why</think>b"), user("c"), assistant("d")]),
         ["b<|im_end|>", "d<|im_end|>"])
    print("answers are trained from their beginning")


def check_records():
    """Tools and messages in the forms that public data have."""
    tools = [{"type": "function", "function": {"name": "f"}}]
    for given in (tools, json.dumps(tools), [json.dumps(tools[0])]):
        same(conversation.tools_of("here", {"tools": given}), tools)
    for given in (None, "", "null"):
        same(conversation.tools_of("here", {"tools": given}), None)
    call = {"name": "f", "arguments": {"a": 1}}
    for value in (call, [call]):
        shared = {"system": "s", "messages": None, "conversations": [
            {"from": "human", "value": "q"}, {"from": "function_call", "value": json.dumps(value)},
            {"from": "observation", "value": "3"}, {"from": "gpt", "value": "x", "weight": 1}]}
        same(conversation.messages_of("here", shared),
             [{"role": "system", "content": "s"}, user("q"), assistant("", tool_calls=CALL), tool("3"),
              assistant("x", weight=1)])
    text = {"messages": [user("q"), assistant(None, tool_calls=json.dumps(CALL))]}
    same(conversation.messages_of("here", text)[1]["tool_calls"], CALL)
    shared = lambda name, value: {"conversations": [{"from": name, "value": value}]}
    for record, *reasons in (
            ({"tools": "f"}, "`tools`: not JSON"), ({"tools": "3"}, "`tools` is not a list"),
            ({"tools": [3]}, "`tools` is not a list"), ({"tools": {"name": "f"}}, "`tools` is not a list"),
            (shared("bing", "x"), "message 1 is from 'bing'", "human", "observation"),
            (shared("function_call", "f(1)"), "message 1: `value`: not JSON"),
            (shared("function_call", "[3]"), "message 1: `value` is not a list"),
            (shared("function_call", "{}"), "message 1: `value` is no call"),
            (shared("gpt", {"a": 1}), "message 1: `value` is not a string"),
            ({"messages": [user(3)]}, "message 1: `content` is neither a string nor a list"),
            ({"messages": [assistant("", tool_calls="f")]}, "message 1: `tool_calls`: not JSON"),
            ({"messages": [assistant("", tool_calls=[3])]}, "message 1: `tool_calls` is not a list"),
            ({"messages": [assistant("", function_call=call)]}, "message 1 has `function_call`", "`tool_calls`")):
        try:
            conversation.messages_of("here", {"messages": [user("q")]} | record if "tools" in record else record)
            conversation.tools_of("here", record)
        except DataError as error:
            says(str(error), "here: ", *reasons)
        else:
            raise AssertionError(record)
    print("tools and messages are checked and named")


def check_templates(folder):
    """A tokenizer with several templates: records with tools take tool_use, and --show shows what the file gets."""
    made = lambda found, given=None: chat.Templates(None, {"chat_template": found}, given, {}, encoding.Bytes())
    listed = [{"name": "default", "template": "D"}, {"name": "tool_use", "template": "T"}]
    for tools, expected in ((None, "D"), ([], "T"), ([{}], "T")):
        same(made(listed).choose("here", tools).render([]), expected)
    same(made(listed[:1]).choose("here", [{}]).render([]), "D")
    same(made(listed, "tool_use").choose("here", None).render([]), "T")
    for attempt, reasons in ((lambda: made([*listed[1:], {"name": "rag", "template": "R"}]).choose("here", None),
                              ("here: ", "name default", "rag, tool_use", "--template NAME")),
                             (lambda: made(listed, "ragg"), ("--template ragg: No such file", "default, tool_use"))):
        try:
            attempt()
        except DataError as error:
            says(str(error), *reasons)
        else:
            raise AssertionError(reasons)
    (folder / "additional_chat_templates").mkdir()
    (folder / "chat_template.jinja").write_text("D")
    (folder / "additional_chat_templates" / "tool_use.jinja").write_text("T")
    same(chat.Templates(folder, {"chat_template": "old"}, None, {}, encoding.Bytes()).choose("here", [{}]).render([]), "T")
    source, template = folder / "a.jsonl", folder / "t.jinja"
    template.write_text(CHATML.replace("<|im_end|>", ""))
    options = (source, "--tokenizer", "bytes", "--template", template, "--show", 1)
    source.write_text(json.dumps({"messages": [user("q"), assistant("a")]}) + "\n")
    count = len("<|im_start|>user\nq<|im_start|>assistant\na")
    says(atoll_data(*options), f"{count} tokens, 1 trained")
    says(atoll_data(*options, "--train-on", "all"), f"{count} tokens, {count} trained")
    source.write_text(json.dumps({"messages": [user("q"), assistant("")]}) + "\n")
    says(atoll_data(*options, code=1), "line 1: nothing of it would be trained")
    print("templates are chosen by name and by tools")


if __name__ == "__main__":
    check_calls()
    check_ends()
    check_begins()
    check_records()
    with tempfile.TemporaryDirectory() as name:
        check_templates(Path(name))
