"""The real sizes of heads of GLM-5, 4.7-Flash and 4.5 in two layers, made and computed by transformers on the spot (skipped
where transformers or torch is not installed): latents of 512 + 64, heads of 192 + 64 and 256, an indexer of 32 heads of 128
that chooses 2,048 of more than 6,000 tokens; heads of 128 of which half is rotated.  The sparse case takes minutes and
gigabytes, and runs only with PENSTOCK_LONG_TESTS in the environment."""
import os
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "..", "behaviour")]
import harness  # noqa: E402
from harness import equal  # noqa: E402

try:
    import make_dense
    import make_moe
except ImportError as missing:
    # Gigabytes that contrib/check does not install: this skip is no failure even where every other one is.
    print(f"SKIP: {missing.name} is not installed")
    sys.exit(77)

import torch  # noqa: E402
from safetensors.torch import save_file  # noqa: E402

LATENT = dict(hidden_size=256, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=4, q_lora_rank=128,
              kv_lora_rank=512, qk_nope_head_dim=192, qk_rope_head_dim=64, v_head_dim=256, head_dim=64,
              mlp_layer_types=["dense", "sparse"])


@torch.no_grad()
def run(model_type, config, lengths, positions):
    """Logits at a few POSITIONS of prompts: greedy steps would take too long."""
    generator = torch.Generator().manual_seed(11)
    model = make_dense.make_model(model_type, config, generator)
    make_moe.fill_bias(model, generator)
    golden = {}
    with tempfile.TemporaryDirectory() as path:
        model.save_pretrained(path)
        for k, length in enumerate(lengths):
            ids = torch.randint(3, make_dense.VOCAB, (length,), generator=generator)
            at = sorted({min(p, length - 1) for p in positions})
            hidden = model.model(ids[None], use_cache=False).last_hidden_state[0, at]
            golden.update({f"ids.{k}": ids.int(), f"at.{k}": torch.tensor(at, dtype=torch.int32),
                           f"logits.{k}": model.lm_head(hidden).contiguous()})
        save_file(golden, os.path.join(path, "golden.safetensors"))
        done = subprocess.run([harness.program("penstock"), "eval", "--golden", path], capture_output=True, text=True)
        print(done.stdout)
        equal(done.returncode, 0, done.stdout + done.stderr)


def test_heads_of_128():
    run("glm4_moe", make_moe.mixed(hidden_size=256, num_hidden_layers=2, num_attention_heads=12, num_key_value_heads=1,
                                   head_dim=128, attention_bias=True, use_qk_norm=True, **make_moe.half), [300], [0, 255, 256, 299])


def test_latents_of_512():
    run("glm4_moe_lite", make_moe.mixed(**LATENT, max_position_embeddings=4096, **make_dense.rope(theta=1e6)), [700],
        [0, 256, 511, 699])


def test_choices_of_2048():
    if not os.environ.get("PENSTOCK_LONG_TESTS"):
        print("not run: PENSTOCK_LONG_TESTS is not set")
        return
    run("glm_moe_dsa", make_moe.mixed(**LATENT, index_n_heads=32, index_head_dim=128, index_topk=2048,
                                      indexer_types=["full", "shared"], max_position_embeddings=8192,
                                      **make_dense.rope(theta=8e6)), [6150], [0, 2047, 2048, 4100, 6149])


if __name__ == "__main__":
    harness.main(globals())
