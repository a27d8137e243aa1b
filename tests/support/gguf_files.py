"""A tiny Llama model with random weights, as a GGUF file of half a megabyte. Needs the package `gguf`."""

import numpy as np

LAYERS, WIDTH, HEADS, HIDDEN, WORDS = 2, 64, 4, 128, 256


def write_tiny_llama(path):
    """Write it; its tokens have numbers and no text."""
    from gguf import GGUFWriter

    source = np.random.default_rng(0)
    writer = GGUFWriter(path, "llama")
    writer.add_context_length(128)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(HIDDEN)
    writer.add_head_count(HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(WORDS)
    writer.add_tokenizer_model("none")
    shapes = {"token_embd": (WORDS, WIDTH), "output": (WORDS, WIDTH), "output_norm": (WIDTH,)}
    for layer in range(LAYERS):
        of_layer = {
            "attn_norm": (WIDTH,), "ffn_norm": (WIDTH,), "ffn_down": (WIDTH, HIDDEN),
            **dict.fromkeys(("attn_q", "attn_k", "attn_v", "attn_output"), (WIDTH, WIDTH)),
            **dict.fromkeys(("ffn_gate", "ffn_up"), (HIDDEN, WIDTH)),
        }  # fmt: skip
        shapes |= {f"blk.{layer}.{name}": shape for name, shape in of_layer.items()}
    for name, shape in shapes.items():
        writer.add_tensor(f"{name}.weight", (0.02 * source.standard_normal(shape)).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
