"""A tiny BERT with random weights, saved as a Hugging Face folder: real enough to convert in seconds."""

import json
from pathlib import Path

VOCAB = 101
WIDTH = 24
POSITIONS = 64


def write_encoder(folder: Path, *, pooling: str | None = None, normalize: bool = True) -> Path:
    """A plain encoder folder; with `pooling`, one of sentence-transformers."""
    import torch
    from transformers import BertConfig, BertModel
    from transformers.utils import logging

    torch.manual_seed(7)
    config = BertConfig(
        vocab_size=VOCAB,
        hidden_size=WIDTH,
        num_hidden_layers=1,
        num_attention_heads=4,
        intermediate_size=36,
        max_position_embeddings=POSITIONS,
        initializer_range=0.2,  # large, so that a mask or a position that is ignored shows
    )
    logging.disable_progress_bar()
    BertModel(config, add_pooling_layer=False).save_pretrained(folder)
    if pooling is not None:
        write_modules(folder, pooling, normalize)
    return folder


def write_modules(folder: Path, pooling: str, normalize: bool = True) -> None:
    """What sentence-transformers adds to an encoder folder."""
    kinds = [("", "Transformer"), ("1_Pooling", "Pooling")] + [("2_Normalize", "Normalize")] * normalize
    modules = [
        {"idx": n, "name": str(n), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for n, (path, kind) in enumerate(kinds)
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(
        json.dumps({"word_embedding_dimension": WIDTH, f"pooling_mode_{pooling}": True})
    )
    (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 48}))
    (folder / "tokenizer.json").write_text("{}")
