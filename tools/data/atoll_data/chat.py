"""Renders chats with a model's template, and finds which characters the assistant wrote.

Templates see what transformers gives them: the same environment, functions and message keys. If a
template marks its answers with {% generation %}, these marks decide. Otherwise each answer, with its thoughts
and tool calls, is found by rendering again: the generation prompt of the messages before it shows where it
begins, and the same chat with another answer in its place shows where it ends. The tokens that end the answer
are trained too, since a model must learn to stop. An answer whose beginning or end is not certain is refused.
"""
import datetime
import json
import re
from pathlib import Path

from . import built_in
from .conversation import CLOSE, OPEN, REASONING
from .errors import DataError, need

GENERATION = re.compile(r"\{%-?\s*generation\s*-?%\}")


class TemplateRefuses(Exception):
    """The template called raise_exception, or could not render the messages."""


def environment():
    """A Jinja environment in which templates behave as in transformers."""
    jinja2 = need("jinja2", "a chat template")
    version = tuple(int(part) for part in jinja2.__version__.split(".")[:3])
    # Templates come from the Hub, so the sandbox must be safe. Debian's older jinja2 has the fixes of the sandbox.
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


def templates_of(folder, settings, given, tokenizer):
    """The texts of the chat templates by name, and where they are from. A single template is `default`. As in
    transformers, files come before tokenizer_config.json. `given` is a name, a file or one that is built in."""
    found, source = {}, "tokenizer_config.json"
    if folder:
        files = [("default", folder / "chat_template.jinja")]
        files += [(file.stem, file) for file in sorted((folder / "additional_chat_templates").glob("*.jinja"))]
        found = {name: read_text(file, file) for name, file in files if file.is_file()}
    if found:
        source = str(folder)
    elif "chat_template" in settings:
        found = settings["chat_template"]
        if isinstance(found, list):
            found = {str(entry.get("name")): entry.get("template") for entry in found if isinstance(entry, dict)}
        elif not isinstance(found, dict):
            found = {"default": found}
        found = {name: text for name, text in found.items() if isinstance(text, str)}
    if given in found:
        return {"default": found[given]}, f"{source}, template {given}"
    if given:
        if given in built_in.NAMES and not Path(given).is_file():
            return {"default": built_in.text_of(given, tokenizer, settings)}, given
        names = f"only templates with the names {', '.join(sorted(found))}" if found else "no template of this name"
        return {"default": read_text(Path(given), f"--template {given}",
                                     f"; the tokenizer has {names}; --template takes a FILE, chatml or mistral as well")}, given
    if not found:
        fits = built_in.fitting(tokenizer, settings)
        raise DataError("the tokenizer has no chat_template.jinja and no chat_template in "
                        "tokenizer_config.json: name a template, --template "
                        + (f"{fits}, whose special tokens it has, or --template FILE" if fits else "FILE"))
    return found, source


def read_text(path, place, more=""):
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise DataError(f"{place}: {error.strerror}{more}") from None
    except UnicodeDecodeError as error:
        raise DataError(f"{place}: not UTF-8: {error.reason}") from None


class Templates:
    """The chat templates of a tokenizer, compiled when a record needs them."""

    def __init__(self, folder, settings, given, variables, tokenizer):
        self.texts, self.source = templates_of(folder, settings, given, tokenizer)
        self.settings, self.variables = settings, variables
        self.compiled = {}

    def choose(self, place, tools):
        """The template of a record: as in transformers, `tool_use` if there are tools and it exists."""
        name = "tool_use" if tools is not None and "tool_use" in self.texts else "default"
        if name not in self.texts:
            raise DataError(f"{place}: {self.source} has no chat template with the name default; choose one of "
                            f"{', '.join(sorted(self.texts))} with --template NAME")
        if name not in self.compiled:
            self.compiled[name] = Template(self.texts[name], self.source, self.settings, self.variables)
        return self.compiled[name]


class Template:
    """A compiled chat template."""

    def __init__(self, text, place, settings, variables=None):
        jinja2 = need("jinja2", "a chat template")
        self.errors = (jinja2.exceptions.TemplateError, TemplateRefuses, TypeError, ValueError,
                       KeyError, AttributeError, IndexError, RecursionError, ArithmeticError)
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
        message `first` on. `ends` are the special tokens, which may end an answer."""
        raw = self._raw(messages, tools)
        self._check_calls(messages, tools, raw)
        if self.marked:
            whole, spans = unmark(raw)
            return whole, self._from_message(first, messages, whole, spans, tools)
        special = special_pattern(ends)
        spans = [self._answer(messages, number, raw, special, tools)
                 for number, message in enumerate(messages)
                 if number >= first and message["role"] == "assistant"]
        return raw, spans

    def _check_calls(self, messages, tools, raw):
        """Refuses a message whose tool calls the template leaves out."""
        for number, message in enumerate(messages):
            if not message.get("tool_calls"):
                continue
            bare = {key: value for key, value in message.items() if key != "tool_calls"}
            try:
                is_same = self._raw([*messages[:number], bare, *messages[number + 1:]], tools) == raw
            except TemplateRefuses:
                continue  # the template uses the calls
            if is_same:
                raise TemplateRefuses(f"message {number + 1} calls tools, which the template does not write; name "
                                      "a template that writes tool_calls with --template")

    def _from_message(self, first, messages, whole, spans, tools):
        """The marked spans without those of the messages before `first`."""
        if not any(message["role"] == "assistant" for message in messages[:first]):
            return spans
        before, marked = unmark(self._raw(messages[:first], tools))
        if whole.startswith(before):
            return [span for span in spans if span[0] >= len(before)]
        return spans[len(marked):]  # the template writes a message differently when more messages follow

    def _answer(self, messages, number, whole, special, tools):
        """The span of answer `number` in the text `whole`."""
        try:
            return self._span(messages, number, whole, special, tools)
        except TemplateRefuses as refusal:
            reason = refusal
        # Later messages may need the calls of this answer, so that no other answer can take its place. Then a chat
        # that ends with this answer may show where it begins and ends.
        early = messages[:number + 1]
        try:
            text = self._raw(early, tools)
            last = text.rstrip("\n ")
            _, begin = self._header(messages[:number], whole, len(last), special, tools)
            if begin is None or not whole.startswith(last) or not ends_with_token(last[begin:], special):
                begin, end = self._span(early, number, text, special, tools)
                last = text[:end]
            if whole.startswith(last):
                return begin, len(last)
        except TemplateRefuses:
            pass
        raise TemplateRefuses(f"where the answer in message {number + 1} begins and ends is not known: {reason}")

    def _span(self, messages, number, whole, special, tools):
        """The span of an answer, from the text `changed` with another answer in its place.

        The answer begins behind the generation prompt, at the latest where the two texts part. They agree again
        behind the answer, or behind its last token if the template ends answers with tool calls by another one."""
        other = {key: value for key, value in messages[number].items() if key not in (*REASONING, "tool_calls")}
        before, after = messages[:number], messages[number + 1:]
        other = other | {"content": OPEN + "x" + CLOSE}
        changed = self._raw([*before, other, *after], tools)
        if OPEN not in changed:
            raise TemplateRefuses("the template does not write the content of the answer")
        parted = common_prefix(whole, changed)
        common = common_prefix(whole[parted:][::-1], changed[parted:][::-1])
        header, begin = self._header(before, whole, parted, special, tools)
        if begin is None:
            if not changed.startswith(OPEN, parted):
                raise TemplateRefuses(f"it does not begin with the generation prompt {header!r}; try other variables "
                                      "with --template-args, for example enable_thinking")
            begin = parted
        close, end = changed.rindex(CLOSE) + 1, len(whole) - common
        if close < len(changed) - common:
            end = whole_token(whole, end, special)
            rest = changed[close:whole_token(changed, len(changed) - common, special)]
            if not special.fullmatch(rest) or not ends_with_token(whole[begin:end], special):
                raise TemplateRefuses("the text after the answer changes with the answer")
        if begin > end:
            raise TemplateRefuses("it ends within its generation prompt")
        if after and messages[number].get("tool_calls"):
            # Some templates write the results of calls into the answer, which then has no certain end.
            result = [*messages[:number + 1], after[0] | {"content": OPEN + "x" + CLOSE}, *after[1:]]
            result = self._raw(result, tools)
            if common_prefix(whole, result) < end:
                raise TemplateRefuses("the results of its calls are written into it")
        if close < len(changed) - common:
            return begin, end

        def own_end():
            """What the template writes behind the answer if no message follows; "" if it refuses that."""
            try:
                return changed[close:] if not after else self._raw([*before, other], tools).rpartition(CLOSE)[2]
            except TemplateRefuses:
                return ""

        return begin, end + length_of_end(whole[end:], own_end, header, special)

    def _header(self, before, whole, parted, special, tools):
        """The generation prompt behind the messages `before`, and where it ends in the text `whole`, or None."""
        try:
            prompt = self._raw(before, tools, prompt=True)
            text = self._raw(before, tools)
        except TemplateRefuses:
            return "", None  # some templates refuse messages that end early
        same = common_prefix(prompt, text)
        header = prompt[next((found.start(1) for found in special.finditer(prompt)
                              if found.start(1) < same < found.end()), same):]
        if whole.startswith(prompt):
            return header, len(prompt)
        # A template may write the earlier messages differently if others follow, but it writes the same prompt after
        # them.
        at = whole.rfind(header, common_prefix(whole, prompt), parted) if header else -1
        if at < 0 or special.search(whole, at + len(header), parted):
            return header, None
        return header, at + len(header)


def special_pattern(tokens):
    """Finds special tokens, each with one blank before it or none."""
    longest_first = sorted(filter(None, tokens), key=len, reverse=True)
    return re.compile("[ \n]?(" + ("|".join(map(re.escape, longest_first)) or "(?!)") + ")")


def whole_token(text, place, special):
    """The end of the special token in which the place lies, or the place."""
    return next((found.end() for found in special.finditer(text) if found.start(1) < place < found.end()), place)


def ends_with_token(text, special):
    last = None
    for last in special.finditer(text):
        pass
    return last is not None and last.end() == len(text)


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


def length_of_end(rest, own_end, header, special):
    """The length of the special tokens that end an answer, at the beginning of `rest`. The first one counts unless
    `header`, the generation prompt, begins with it. Each later one counts if `own_end()`, which is what follows the
    answer at the end of a chat, has it too and `header` does not. Without a header it could begin the next turn,
    and does not count."""
    length = 0
    while found := special.match(rest, length):
        token = found.group(1)
        if header.startswith(token) or length and (
                not header or token in header or not own_end().startswith(rest[:found.end()])):
            break
        length = found.end()
    return length


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
