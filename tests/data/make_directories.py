#!/usr/bin/env python3
"""Makes directories.json: model directories whose files disagree about special tokens, and what transformers makes of them
(5.24 with tokenizers 0.23.3; not needed by the tests).  Written by hand where a rule is known, at random beside that."""
import json
import os
import random
import sys
import tempfile

os.environ["TRANSFORMERS_VERBOSITY"] = "error"
PIECES = ["<unk>", "</s>"] + list("abcdefg <>|/") + ["zz", "ab"]


def token(content, **flags):
    return dict({"content": content, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}, **flags)


def written(content, **flags):
    return dict(token(content, **flags), __type="AddedToken")


def base(own=(), post=None):
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": list(own), "normalizer": {"type": "Lowercase"}, "pre_tokenizer": None,
            "post_processor": post, "decoder": {"type": "Fuse"},
            "model": {"type": "BPE", "unk_token": "<unk>", "vocab": {piece: at for at, piece in enumerate(PIECES)}, "merges": [["a", "b"]]}}


def case(config=None, special=None, added=None, own=(), post=None):
    files = {"tokenizer.json": base(own, post), "tokenizer_config.json": config, "special_tokens_map.json": special, "added_tokens.json": added}
    return {name: body for name, body in files.items() if body is not None}


N = len(PIECES)
LOUD = token("<x>", lstrip=True, special=False, normalized=True)
BOS = {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<x>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}], "pair": [],
       "special_tokens": {"<x>": {"id": "<x>", "ids": [N], "tokens": ["<x>"]}}}
WRITTEN = [
    case({"eos_token": "</s>"}), case({"eos_token": "</s>", "pad_token": "<x>"}),
    case({"eos_token": "</s>"}, {"pad_token": "<x>", "eos_token": {"content": "</s>", "lstrip": True, "rstrip": False, "normalized": True, "single_word": False}}),
    case({"eos_token": "</s>"}, {"pad_token": "<x>"}, {"<x>": N, "<y>": N + 1}), case({"eos_token": "</s>"}, None, {"<x>": N}, [dict(LOUD, id=N)]),
    case({"pad_token": "<x>"}, None, {"<x>": N}, [dict(LOUD, id=N)]), case({"added_tokens_decoder": {str(N): LOUD}}, None, None, [dict(token("<x>"), id=N)]),
    case({"added_tokens_decoder": {str(N): LOUD}}, {"pad_token": "<p>"}, {"<q>": N + 1}), case({"additional_special_tokens": ["<x>", written("<z>", normalized=True)]}),
    case({"extra_special_tokens": ["<x>", "zz"]}), case({"extra_special_tokens": {"image_token": "<x>"}}), case({"image_token": "<x>", "boi_token": "<y>"}),
    case({"eos_token": "zz", "pad_token": written("<x>", lstrip=True, special=False, normalized=True)}), case({"pad_token": "<x>"}, None, None, [dict(LOUD, id=N)]),
    case({"pad_token": written("<x>", rstrip=True)}, None, None, [dict(LOUD, id=N)]), case(None, {"pad_token": "<x>"}, {"<y>": N}),
    case({"eos_token": None, "pad_token": ""}), case({"additional_special_tokens": ["<y>"]}, {"additional_special_tokens": ["<z>", "<x>"]}),
    case({}, {"additional_special_tokens": ["<x>"]}), case({"extra_special_tokens": ["<y>"]}, {"extra_special_tokens": ["<x>"]}),
    case({"added_tokens_decoder": {str(N): token("<x>")}, "extra_special_tokens": ["<y>"], "pad_token": "<p>"}, {"extra_special_tokens": ["<q>"]}),
    case({"pad_token": "<X>"}), case({"bos_token": "<x>", "eos_token": "</s>", "add_bos_token": True, "add_eos_token": True}),
    case({"bos_token": "<x>", "add_bos_token": False}, None, None, [dict(token("<x>"), id=N)], BOS),
    case({"bos_token": "<x>"}, None, None, [dict(token("<x>"), id=N)], BOS), case({"eos_token": "<y>", "add_eos_token": True}, None, {"<y>": N}),
]
TEXTS = ["a<x>b</s> <y>zz", "AB <X>  <x>  zz<z></s>", "<p><q>a<Y>", "ab a<x>g"]


def at_random(chance):
    names = ["<x>", "<y>", "<z>", "<p>", "<q>", "zz", "</s>"]
    chance.shuffle(names)
    taken = iter(names)

    def flags():
        return {flag: chance.random() < 0.3 for flag in ("single_word", "lstrip", "rstrip", "normalized")}

    style = {name: flags() if chance.random() < 0.4 else None for name in names} # a token is named in one way

    def place(content, next_id):
        return (PIECES.index(content), next_id) if content in PIECES else (next_id, next_id + 1)
    at, own, config, special, added = N, [], {}, {}, {}
    for _ in range(chance.randrange(3)):
        name = next(taken)
        where, at = place(name, at)
        own.append(dict(token(name, special=chance.random() < 0.6, **flags()), id=where))
    own.sort(key=lambda entry: entry["id"])
    keys = ["bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token", "image_token"]
    for target in (config, special):
        for key in chance.sample(keys, chance.randrange(4)):
            name = chance.choice(names)
            target[key] = name if style[name] is None else written(name, **style[name]) if target is config else {"content": name, **style[name]}
    if chance.random() < 0.4:
        config[chance.choice(("additional_special_tokens", "extra_special_tokens"))] = [name for name in names if style[name] is None][:2]
    if chance.random() < 0.4:
        decoder = {}
        for _ in range(chance.randrange(1, 3)):
            name = next(taken)
            where, at = place(name, at)
            decoder[str(where)] = token(name, special=chance.random() < 0.6, **flags())
        config["added_tokens_decoder"] = decoder
        if any(not entry["special"] and json.dumps(entry["content"]) in json.dumps([config, special]) for entry in own):
            return at_random(chance) # a role beside added_tokens_decoder, which does not state it: special here, not there
    elif chance.random() < 0.5:
        for _ in range(chance.randrange(1, 3)):
            name = next(taken)
            where, at = place(name, at)
            added[name] = where
    return case(config, special or None, added or None, own)


def answers(files):
    from transformers import PreTrainedTokenizerFast
    with tempfile.TemporaryDirectory() as directory:
        for name, body in files.items():
            with open(os.path.join(directory, name), "w", encoding="utf-8") as f:
                json.dump(body, f)
        tokenizer = PreTrainedTokenizerFast.from_pretrained(directory)
        ids = [[tokenizer.encode(text, add_special_tokens=add) for add in (False, True)] for text in TEXTS]
        return {"files": files, "ids": ids, "texts": [[tokenizer.decode(pair[1], skip_special_tokens=skip) for skip in (False, True)] for pair in ids]}


def main():
    chance, cases = random.Random(8), [answers(files) for files in WRITTEN]
    while len(cases) < len(WRITTEN) + (int(sys.argv[1]) if len(sys.argv) > 1 else 40):
        cases.append(answers(at_random(chance)))
    with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "directories.json"), "w", encoding="utf-8") as f:
        f.write('{"texts": ' + json.dumps(TEXTS) + ',\n"cases": [\n' + ",\n".join(json.dumps(entry, ensure_ascii=False, separators=(",", ":")) for entry in cases) + "\n]}\n")


main()
