"""A streaming server that no one here wrote, in seconds: `transformers serve` with a tiny Llama made on the spot.

    with transformers_server(folder) as server: …        # server.target, server.model, server.tokenizer

torch and transformers are our own; what serving needs besides is installed once, into an environment in the user's
cache folder.  The model's weights are random and a token is a character, so its answers are as long as asked and
mean nothing: what is real is the server, its streams and its counting.
"""

import os
import socket
import string
import subprocess
import time
import urllib.request
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

from tests.support.venvs import venv_with

_NEEDS = ("transformers[serving]",)
_START_S, _LIVES_S = 90, 300


def make_model(folder):
    """A Llama of 60 thousand weights and a tokenizer of characters, as files; nothing is fetched.

    The same weights each time, and no token that would end an answer before its length.
    """
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    letters = [
        *string.ascii_letters,
        *string.digits,
        *".,:;!?-",
        "\u0120",
        "\u010a",
    ]  # byte-level: a space, a newline
    vocabulary = {token: n for n, token in enumerate(["<unk>", "<s>", "</s>", *letters])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[], unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="<unk>", bos_token="<s>", eos_token="</s>", pad_token="</s>"
    )
    fast.chat_template = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}assistant: "
    fast.save_pretrained(folder)
    config = LlamaConfig(vocab_size=len(vocabulary), hidden_size=32, intermediate_size=64, num_hidden_layers=2,
                         num_attention_heads=4, num_key_value_heads=4, max_position_embeddings=4096,
                         bos_token_id=1, eos_token_id=None, pad_token_id=2)  # fmt: skip
    torch.manual_seed(0)
    LlamaForCausalLM(config).save_pretrained(folder)


@contextmanager
def transformers_server(folder):
    """Serves a model made in `folder` on a free port until the block ends; at most five minutes."""
    model = Path(folder) / "tiny"
    make_model(model)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = ["timeout", str(_LIVES_S), venv_with(*_NEEDS, on_ours=True) / "python", "-m", "transformers.cli.transformers",
               "serve", str(model), "--host", "127.0.0.1", "--port", str(port), "--device", "cpu"]  # fmt: skip
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "HF_HOME": str(folder), "OMP_NUM_THREADS": "1"}
    log = Path(folder) / "serve.log"
    with log.open("w") as file:
        process = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT, env=environment)
    try:
        _wait(process, port, log)
        yield SimpleNamespace(
            target=f"openai+http://127.0.0.1:{port}/v1",
            model=str(model),
            tokenizer=model / "tokenizer.json",
            log=log,
        )
    finally:
        process.terminate()
        process.wait(30)


def _wait(process, port, log):
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    give_up = time.monotonic() + _START_S
    while time.monotonic() < give_up and process.poll() is None:
        try:
            opener.open(f"http://127.0.0.1:{port}/v1/models", timeout=2).close()
        except OSError:
            time.sleep(0.1)
        else:
            return
    raise RuntimeError(f"transformers serve did not start: {log.read_text()[-2000:]}")
