"""Renders chats with a model's template, and finds which characters the assistant wrote.

Templates see what transformers gives them: the same environment, functions and message keys. If a
template marks its answers with {% generation %}, these marks decide. Otherwise each answer is found by
rendering again: a prompt that ends before it gives its begin, and another content in its place its end.
The token that ends the answer is trained too, since a model must learn to stop.
"""
import datetime
import json
import re
from pathlib import Path

from .errors import DataError, need

OPEN, CLOSE = "\ufdd0", "\ufdd1"  # no text has them: Unicode reserves them for use inside programs
REASONING = ("reasoning_content", "thinking", "reasoning")
GENERATION = re.compile(r"\{%-?\s*generation\s*-?%\}")


class TemplateRefuses(Exception):
    """The template called raise_exception, or could not render the messages."""


def environment():
    """A Jinja environment in which templates behave as in transformers."""
    jinja2 = need("jinja2", "a chat template")
    version = tuple(int(part) for part in jinja2.__version__.split(".")[:3])
    # Templates come from the Hub. Debian mends the sandbox of its older version.
    if version < (3, 1, 6) and "/dist-packages/" not in jinja2.__file__:
        raise DataError(f"jinja2 {jinja2.__version__} lets templates leave the sandbox: pip install -U "
                        "jinja2")
    from jinja2.ext import Extension, loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(Extension):
        """{% generation %} ... {% endgeneration %}: what it encloses was written by the assistant."""
        tags = {"generation"}

        def parse(self, parser):
            line = next(parser.stream).lineno
            body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
            call = self.call_method("_mark")
            return jinja2.nodes.CallBlock(call, [], [], body).set_lineno(line)

        def _mark(self, caller):
            return OPEN + caller() + CLOSE

    class Namespace(jinja2.utils.Namespace):
        def __setitem__(self, name, value):
            if isinstance(name, str) and name.startswith("_"):
                raise jinja2.exceptions.SecurityError(f"a namespace must not have {name}")
            super().__setitem__(name, value)

    def raise_exception(message):
        raise TemplateRefuses(message)

    def tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators,
                          sort_keys=sort_keys)

    made = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True,
                                         extensions=[Generation, loopcontrols])
    made.filters["tojson"] = tojson
    made.globals |= {"raise_exception": raise_exception, "namespace": Namespace,
                     "strftime_now": lambda style: datetime.datetime.now().strftime(style)}
    return made


def plain(message):
    """A message as templates expect it: without null values, and reasoning under its usual name."""
    message = {key: value for key, value in message.items() if value is not None}
    reasoning = next((message[key] for key in REASONING if key in message), None)
    if reasoning is not None:
        message = {"thinking": reasoning, **message, "reasoning_content": reasoning}
    return message


SHAREGPT = {"human": "user", "gpt": "assistant", "chatgpt": "assistant", "tool": "tool",
            "system": "system", "user": "user", "assistant": "assistant"}


def messages_of(place, record):
    """The messages of a record: `messages`, or `conversations` as ShareGPT names them."""
    messages = record.get("messages", record.get("conversations"))
    if not isinstance(messages, list) or not messages:
        raise DataError(f"{place}: `messages` is not a list of messages")
    result = []
    for number, message in enumerate(messages, 1):
        if not isinstance(message, dict):
            raise DataError(f"{place}: message {number} is not an object with `role` and `content`")
        role, content = "role", "content"
        if "from" in message and ("value" in message or "role" not in message):
            role, content = "from", "value"
        if not isinstance(message.get(role), str):
            raise DataError(f"{place}: message {number} has no `{role}`")
        # An assistant that calls tools may say nothing.
        if message.get(content) is None and not message.get("tool_calls"):
            raise DataError(f"{place}: message {number} has no `{content}`")
        if role == "from":
            message = {"role": SHAREGPT.get(message[role], message[role]), "content": message[content]}
        text = json.dumps(message, ensure_ascii=False, default=str)
        if OPEN in text or CLOSE in text:
            raise DataError(f"{place}: message {number} has a character that is no text (U+FDD0)")
        result.append(plain(message))
    return result


def template_of(folder, settings, given):
    """The text of a chat template, and where it is from."""
    place = Path(given) if given else (folder / "chat_template.jinja" if folder else None)
    if place is not None:
        try:
            return place.read_text(encoding="utf-8"), str(place)
        except (OSError, UnicodeDecodeError) as error:
            if given:
                raise DataError(f"--template {given}: {error}") from None
    template = settings.get("chat_template")
    if isinstance(template, list):  # several templates, of which `default` is for chats
        template = {entry.get("name"): entry.get("template") for entry in template}.get("default")
    if isinstance(template, str):
        return template, "tokenizer_config.json"
    raise DataError("the tokenizer has no chat_template.jinja and no chat_template in "
                    "tokenizer_config.json: name a template with --template FILE")


class Template:
    """A compiled chat template."""

    def __init__(self, text, place, settings, variables=None):
        jinja2 = need("jinja2", "a chat template")
        self.errors = (jinja2.exceptions.TemplateError, TemplateRefuses, TypeError, ValueError,
                       KeyError, AttributeError, IndexError, RecursionError, OverflowError)
        try:
            self.template = environment().from_string(text)
        except jinja2.exceptions.TemplateError as error:
            raise DataError(f"{place}: not a chat template: {error}") from None
        self.marked = GENERATION.search(text) is not None
        self.variables = {key: value for key, value in settings.items()
                          if key.endswith("_token") and isinstance(value, str)} | (variables or {})

    def _raw(self, messages, tools=None, prompt=False):
        try:
            return self.template.render(messages=messages, tools=tools, documents=None,
                                        add_generation_prompt=prompt, **self.variables)
        except self.errors as error:
            raise TemplateRefuses(str(error)) from None

    def render(self, messages, tools=None, prompt=False):
        """The text of the messages; with `prompt` also what comes before an answer."""
        return self._raw(messages, tools, prompt).replace(OPEN, "").replace(CLOSE, "")

    def render_marked(self, messages, ends, tools=None, first=0):
        """Renders messages. Returns the text and the spans [begin, end) of the assistant's answers from
        message `first` on. `ends` are the special tokens, one of which may end an answer."""
        if self.marked:
            whole, spans = unmark(self._raw(messages, tools))
            return whole, self._from_message(first, messages, whole, spans, tools)
        whole = self.render(messages, tools)
        spans = []
        for number, message in enumerate(messages):
            if number >= first and message["role"] == "assistant":
                spans.append(self._answer(messages, number, whole, ends, tools))
        return whole, spans

    def _from_message(self, first, messages, whole, spans, tools):
        """The marked spans without those of the messages before `first`."""
        if not any(message["role"] == "assistant" for message in messages[:first]):
            return spans
        before, marked = unmark(self._raw(messages[:first], tools))
        if whole.startswith(before):
            return [span for span in spans if span[0] >= len(before)]
        return spans[len(marked):]  # the template writes early messages in another way when more follow

    def _answer(self, messages, number, whole, ends, tools):
        """The span of answer `number` in the text `whole`."""
        other = list(messages)
        other[number] = messages[number] | {"content": OPEN + "x" + CLOSE}
        # Marks of this text are contents, not answers, so they are kept.
        changed = self._raw(other, tools)
        if OPEN not in changed:
            raise TemplateRefuses(f"message {number + 1} does not appear in the text")
        begin = common_prefix(whole, changed)
        end = len(whole) - common_prefix(whole[begin:][::-1], changed[begin:][::-1])
        try:
            prompt = self.render(messages[:number], tools, prompt=True)
            if len(prompt) <= begin and whole.startswith(prompt):
                begin = len(prompt)
        except TemplateRefuses:
            pass  # some templates refuse messages that end early; the content alone is trained then
        return begin, end + length_of_end(whole[end:], ends)


def common_prefix(a, b):
    """The number of characters with which both texts begin."""
    low, high = 0, min(len(a), len(b))
    while low < high:
        middle = (low + high + 1) // 2
        if a[:middle] == b[:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def untrained_end(text, spans, ends):
    """How the first answer ends, as a part of a sentence, if it teaches no model to stop; "" if it does."""
    if not spans:
        return ""
    begin, end = spans[0]
    ends = [token for token in ends if token]
    if any(text[begin:end].rstrip("\n ").endswith(token) for token in ends):
        return ""
    for token in ends:
        if text[end:].lstrip("\n ").startswith(token):
            return f"the template's generation marks leave out {token!r}"
    line = text[end:end + 20].split("\n")[0]
    follows = repr(line) if line else "a new line" if text[end:] else "the end of the text"
    return f"{follows} follows them, which is no special token of the tokenizer"


def length_of_end(rest, ends):
    """The length of the special token that ends an answer, with one blank before it."""
    blank = 1 if rest[:1] in ("\n", " ") else 0
    return max((blank + len(token) for token in ends if token and rest.startswith(token, blank)),
               default=0)


def unmark(text):
    """Removes the marks of {% generation %}; returns the text and the spans between them."""
    parts, spans, at, depth = [], [], 0, 0
    for part in re.split(f"([{OPEN}{CLOSE}])", text):
        if part == OPEN:
            begin = at if depth == 0 else begin
            depth += 1
        elif part == CLOSE:
            depth -= 1
            if depth == 0:
                spans.append((begin, at))
        else:
            parts.append(part)
            at += len(part)
    return "".join(parts), spans
