"""Two shapes that are not in tests/data/dense, made and computed by transformers on the spot (skipped where transformers or
torch is not installed): many heads on one KV head with a head that is no multiple of 8, and a deep narrow model with rotary
scaling and a vocabulary that is no multiple of anything."""
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
except ImportError as missing:
    # Gigabytes that contrib/check does not install: this skip is no failure even where every other one is.
    print(f"SKIP: {missing.name} is not installed")
    sys.exit(77)


def run(name, model_type, config, dtype):
    with tempfile.TemporaryDirectory() as directory:
        path = os.path.join(directory, name)
        make_dense.make_case(path, model_type, config, dtype, None, seed=7)
        done = subprocess.run([harness.program("penstock"), "eval", "--golden", path], capture_output=True, text=True)
        equal(done.returncode, 0, done.stdout + done.stderr)


def test_wide_heads():
    config = make_dense.decoder(hidden_size=120, num_attention_heads=9, num_key_value_heads=1, head_dim=36,
                                intermediate_size=100, use_sliding_window=False, **make_dense.rope(theta=1e6))
    run("wide", "qwen3", config, "float16")


def test_deep():
    config = make_dense.decoder(vocab_size=131, hidden_size=32, num_hidden_layers=9, head_dim=8, intermediate_size=52,
                                **make_dense.rope("yarn", 5e5, factor=8.0, original_max_position_embeddings=64))
    run("deep", "llama", config, "bfloat16")


if __name__ == "__main__":
    harness.main(globals())
