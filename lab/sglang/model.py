# Copyright (c) 2026, the sparkfleet.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A toy model for the real engine: a Llama of two layers with random weights, made from a seed.

Its answers are noise, but they are text: one channel of the hidden state is the same for every
token, and the head turns it into a preference for letters and spaces. So answers are valid UTF-8,
stream letter by letter, and last until the limit that the request sets.
"""

from __future__ import annotations

import hashlib
import json
import string
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

REPOSITORY = "sparkfleet/toy-llama"
SERVED_NAME = "toy"
CONTEXT = 4096
LAYERS, HIDDEN, HEADS, WIDTH = 2, 128, 4, 256
SHARD = "model-00001-of-00001.safetensors"
# The first 256 tokens are bytes.
SPECIALS = ("<|bos|>", "<|eos|>", "<|system|>", "<|user|>", "<|assistant|>", "<|tool|>")
VOCABULARY = 320
_BOS, _EOS = 256, 257
_STEADY = 0  # the channel that is the same for every token
_TEMPLATE = (
    "{{ '<|bos|>' }}{% for message in messages %}{{ '<|' + message['role'] + '|>' }}"
    "{{ message['content'] or '' }}{{ '<|eos|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)


def make(directory: Path, *, seed: int = 1) -> dict[str, Any]:
    """Write the checkpoint and return the facts about it, in the form of the collection's own.

    Args:
        directory: made if missing; files of the same names are replaced.
        seed: other weights of the same form.
    """
    directory.mkdir(parents=True, exist_ok=True)
    tensors = _tensors(np.random.Generator(np.random.PCG64(seed)))
    (directory / SHARD).write_bytes(_safetensors(tensors))
    size = sum(tensor.nbytes for tensor in tensors.values())
    documents = {
        "model.safetensors.index.json": {
            "metadata": {"total_size": size},
            "weight_map": dict.fromkeys(sorted(tensors), SHARD),
        },
        "config.json": _config(),
        "generation_config.json": {"bos_token_id": _BOS, "eos_token_id": _EOS},
        "tokenizer.json": _tokenizer(),
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": "<|bos|>",
            "eos_token": "<|eos|>",
            "model_max_length": CONTEXT,
            "clean_up_tokenization_spaces": False,
            "chat_template": _TEMPLATE,
        },
    }
    for name, document in documents.items():
        (directory / name).write_text(json.dumps(document, indent=2) + "\n")
    config = hashlib.sha256((directory / "config.json").read_bytes()).hexdigest()
    return {
        "served_name": SERVED_NAME,
        "repository": REPOSITORY,
        "weight_files": 1,
        "weight_bytes": (directory / SHARD).stat().st_size,
        "config_sha256": config,
        "context_limit": CONTEXT,
        "layers": LAYERS,
        "hidden_size": HIDDEN,
        "attention_heads": HEADS,
        "vocabulary": VOCABULARY,
    }


def _config() -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": HIDDEN,
        "intermediate_size": WIDTH,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": HEADS,
        "head_dim": HIDDEN // HEADS,
        "hidden_act": "silu",
        "max_position_embeddings": CONTEXT,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "vocab_size": VOCABULARY,
        "bos_token_id": _BOS,
        "eos_token_id": _EOS,
    }


def _tensors(draw: np.random.Generator) -> dict[str, NDArray[np.uint16]]:
    """By name, in the order of the library's writer; bfloat16 as its upper 16 bits."""

    def random(*shape: int) -> NDArray[np.float32]:
        return draw.normal(0, 0.05, shape).astype(np.float32)

    ones = np.ones(HIDDEN, dtype=np.float32)
    embedding, head = random(VOCABULARY, HIDDEN), random(VOCABULARY, HIDDEN)
    embedding[:, _STEADY] = 1
    likely = [ord(letter) for letter in f"{string.ascii_lowercase} "]
    head[:, _STEADY] = -2
    head[likely, _STEADY] = 2
    tensors = {"model.embed_tokens.weight": embedding, "lm_head.weight": head}
    for layer in range(LAYERS):
        prefix = f"model.layers.{layer}"
        out, down = random(HIDDEN, HIDDEN), random(HIDDEN, WIDTH)
        out[_STEADY] = down[_STEADY] = 0
        tensors |= {
            f"{prefix}.input_layernorm.weight": ones,
            f"{prefix}.post_attention_layernorm.weight": ones,
            f"{prefix}.self_attn.q_proj.weight": random(HIDDEN, HIDDEN),
            f"{prefix}.self_attn.k_proj.weight": random(HIDDEN, HIDDEN),
            f"{prefix}.self_attn.v_proj.weight": random(HIDDEN, HIDDEN),
            f"{prefix}.self_attn.o_proj.weight": out,
            f"{prefix}.mlp.gate_proj.weight": random(WIDTH, HIDDEN),
            f"{prefix}.mlp.up_proj.weight": random(WIDTH, HIDDEN),
            f"{prefix}.mlp.down_proj.weight": down,
        }
    tensors["model.norm.weight"] = ones
    return {
        name: (tensor.view(np.uint32) >> 16).astype(np.uint16)
        for name, tensor in sorted(tensors.items())
    }


def _safetensors(tensors: Mapping[str, NDArray[np.uint16]]) -> bytes:
    entries: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name, tensor in tensors.items():
        end = at + tensor.nbytes
        entries[name] = {"dtype": "BF16", "shape": tensor.shape, "data_offsets": [at, end]}
        at = end
    header = json.dumps(entries, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)
    body = b"".join(tensor.astype("<u2").tobytes() for tensor in tensors.values())
    return len(header).to_bytes(8, "little") + header + body


def _tokenizer() -> dict[str, Any]:
    """One token for each byte, in the letters that byte-level tokenizers write bytes as."""
    shown = {byte: chr(byte) for byte in (*range(33, 127), *range(161, 173), *range(174, 256))}
    others = (byte for byte in range(256) if byte not in shown)
    shown |= {byte: chr(256 + number) for number, byte in enumerate(others)}
    names = [*SPECIALS, *(f"<|unused{n}|>" for n in range(VOCABULARY - 256 - len(SPECIALS)))]
    added = [
        {
            "id": number,
            "content": name,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": True,
        }
        for number, name in enumerate(names, start=256)
    ]
    byte_level = {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": True,
        "use_regex": False,
    }
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": None,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "vocab": {letter: byte for byte, letter in shown.items()},
            "merges": [],
        },
    }
