"""The chat templates that --template has built in, and which of them fits a tokenizer."""
from . import encoding
from .errors import DataError

# OpenAI's ChatML, which many models use.
CHATML = ("{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
          "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}")
# The format of Mistral's models up to v0.3. `before`, `inside` and `close` are blanks, or empty.
MISTRAL = """\
{{- bos_token }}
{%- set first = 1 if messages[0].role == 'system' else 0 %}
{%- for message in messages[first:] %}
    {%- if message.role != ('user', 'assistant')[loop.index0 % 2] %}
        {{- raise_exception('user and assistant must take turns, but message ' ~ (first + loop.index) ~ ' is of '
                            ~ message.role) }}
    {%- elif message.role == 'user' %}
        {{- before ~ '[INST]' ~ inside }}
        {%- if loop.first and first %}
            {{- messages[0].content ~ '\\n\\n' }}
        {%- endif %}
        {{- message.content ~ close ~ '[/INST]' }}
    {%- else %}
        {{- inside ~ message.content | trim ~ eos_token }}
    {%- endif %}
{%- endfor %}"""
NAMES = ("chatml", "mistral")


def missing_tokens(name, tokenizer, settings):
    """What a template writes as special tokens, but the tokenizer would cut into several."""
    wanted = ("<|im_start|>", "<|im_end|>") if name == "chatml" else (settings.get("eos_token") or "eos",)
    return [token for token in wanted if tokenizer.id_of(token) not in tokenizer.encode(token, [])[0]]


def fitting(tokenizer, settings):
    """The built-in template whose special tokens the tokenizer has, or ""."""
    return next((name for name in NAMES if not missing_tokens(name, tokenizer, settings)), "")


def text_of(name, tokenizer, settings):
    missing = missing_tokens(name, tokenizer, settings)
    if missing:
        other = fitting(tokenizer, settings)
        raise DataError(f"--template {name}: the tokenizer has no special token {' or '.join(missing)}, so a model would "
                        f"learn no end of an answer: use {f'--template {other}' if other else '--template FILE'}, whose "
                        f"special tokens it {'has' if other else 'must have'}")
    if name == "chatml":
        return CHATML
    return f"{{%- set before, inside, close = {blanks(tokenizer, settings['eos_token'])!r} %}}" + MISTRAL


def blanks(tokenizer, eos):
    """The blanks before and behind [INST], and before [/INST], that Mistral's own tokenizers have there and this
    tokenizer does not add itself. Where [INST] is a special token, as from v0.3 on, none is before it and [/INST];
    where bytes are characters, as in Tekken, none is behind it either."""
    adds = tokenizer.pieces()[tokenizer.encode(eos + "x", [])[0][1]].startswith(b" ")
    is_special = "[INST]" in tokenizer.special
    is_tekken = is_special and encoding.uses_byte_level(getattr(tokenizer, "description", {}))
    return ("" if adds or is_special else " ", "" if is_special and (adds or is_tekken) else " ", "" if is_special else " ")
