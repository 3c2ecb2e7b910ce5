#!/usr/bin/env python3
"""Trains tokenizer.model, a small SentencePiece model, on the texts of alpaca.json in this folder.

Its settings are those of Mistral's tokenizer: BPE with byte fallback and without normalization. Needs
`pip install sentencepiece==0.2.0`; neither the build nor the tests run this script.
"""
import io
import json
import pathlib

import sentencepiece

HERE = pathlib.Path(__file__).resolve().parent
texts = [text for record in json.loads((HERE / "alpaca.json").read_text()) for text in record.values() if text]
model = io.BytesIO()
sentencepiece.SentencePieceTrainer.train(
    sentence_iterator=iter(texts), model_writer=model, model_type="bpe", vocab_size=400, byte_fallback=True,
    normalization_rule_name="identity", remove_extra_whitespaces=False, character_coverage=1.0, num_threads=1)
(HERE / "tokenizer.model").write_bytes(model.getvalue())
