"""Compares greedy generation of `bitnet` with transformers on the same weights.

    hf_parity.py FOLDER FILE [FOLDER FILE ...] [--json] [--require N]
    hf_parity.py --write --prompt TEXT --tokens N FOLDER FILE

FILE comes from `bitnet generate --temperature 0 --logits FILE`: one safetensors file with
    prompt_ids     I32 [P]      BOS included, as fed to the model
    generated_ids  I32 [G]      greedy choices
    logits         F32 [G, V]   row i is what generated_ids[i] was chosen from

References, each loaded from FOLDER (packed or masters):
    f32    transformers' model in f32, its linear layers replaced by exact integer
           products with the epilogue `(acc / s) * g`; keys and values in the type of --kv
    f64    the evaluator of exact.py: no transformers code, everything but the epilogue f64
    stock  transformers as it comes, in bf16; for information, it rounds after every step

Free-running: the reference generates by itself; the first token that differs, and how
far apart its two best candidates were there. Forced: the reference reads our tokens; errors
over all logits. `--write` makes a FILE with the f64 evaluator, to try the tool without `bitnet`.
"""

import argparse
import json
import os
import sys

import torch
from torch import nn

import exact

MODEL_KEYS = (
    "hidden_size intermediate_size num_hidden_layers num_attention_heads num_key_value_heads head_dim hidden_act "
    "max_position_embeddings rms_norm_eps rope_theta rope_parameters tie_word_embeddings vocab_size attention_bias "
    "bos_token_id eos_token_id"
).split()


class ExactLinear(nn.Module):
    """y = (sum(q * t) / s) * g in f32; the sum is exact, its integers held in f64."""

    def __init__(self, t, g):
        super().__init__()
        self.register_buffer("t", t, persistent=False)
        self.g = float(g)

    def forward(self, x):
        q, s = exact.quantise(x)
        return (q @ self.t.double().T).float() / s * self.g


def load_f32(folder, device, kv_dtype):
    """transformers' BitNet in f32 with the folder's weights and exact linear layers."""
    import transformers
    from transformers.models.bitnet import modeling_bitnet as module

    raw, tensors = exact.read_folder(folder)
    config = transformers.BitNetConfig(**{k: raw[k] for k in MODEL_KEYS if raw.get(k) is not None})
    if not hasattr(module, "plain_attention"):
        module.plain_attention = module.eager_attention_forward

    def attention(self, query, key, value, *args, **kwargs):
        net.rounded += 1
        return module.plain_attention(
            self, query, key.to(kv_dtype).float(), value.to(kv_dtype).float(), *args, **kwargs
        )

    module.eager_attention_forward = attention
    net = transformers.BitNetForCausalLM._from_config(config, dtype=torch.float32, attn_implementation="eager")
    net.rounded = 0
    for name, child in list(net.named_modules()):
        if name.endswith(exact.PROJECTIONS):
            t, g = exact.load_ternary(raw, tensors, name)
            want = (child.out_features, child.in_features)
            if tuple(t.shape) != want:
                raise ValueError(f"{name}: {tuple(t.shape)} in the file, {want} by the config")
            parent, _, leaf = name.rpartition(".")
            setattr(net.get_submodule(parent), leaf, ExactLinear(t, g))
    rest = {
        n: t.float()
        for n, t in tensors.items()
        if not n.endswith(("_proj.weight", "_proj.weight_scale"))
    }
    missing, unexpected = net.load_state_dict(rest, strict=False)
    if unexpected or set(missing) - {"lm_head.weight"}:
        raise ValueError(f"tensors missing {missing}, unexpected {unexpected}")
    if raw.get("tie_word_embeddings"):
        net.tie_weights()
        if net.lm_head.weight.data_ptr() != net.model.embed_tokens.weight.data_ptr():
            raise ValueError("the head is not tied to the embedding")
    return net.to(device).eval()


def load_stock(folder, device):
    import transformers

    net = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
    return net.to(device).eval()


@torch.no_grad()
def greedy_hf(net, prompt, count, device):
    """Greedy ids and, per step, the gap between the two best logits."""
    ids, gaps, past = [], [], None
    step = torch.tensor([prompt], device=device)
    for _ in range(count):
        out = net(step, past_key_values=past, use_cache=True)
        past = out.past_key_values
        top = out.logits[0, -1].float().topk(2)
        ids.append(int(top.indices[0]))
        gaps.append(float(top.values[0] - top.values[1]))
        step = torch.tensor([[ids[-1]]], device=device)
    return ids, gaps


def greedy_exact(model, prompt, count, device, rows=None):
    ids, gaps = [], []
    for _ in range(count):
        last = model(torch.tensor([prompt + ids], device=device))[0, -1]
        top = last.topk(2)
        ids.append(int(top.indices[0]))
        gaps.append(float(top.values[0] - top.values[1]))
        if rows is not None:
            rows.append(last.float().cpu())
    return ids, gaps


def compare(ours, logits, ids, gaps):
    """Our tokens and logits [G, V] against a reference's forced logits and free run."""
    tokens = [int(t) for t in ours["generated_ids"]]
    mine = ours["logits"].double()
    theirs = logits.double().cpu()
    error = (mine - theirs).abs()
    first = next((i for i, (a, b) in enumerate(zip(tokens, ids)) if a != b), None)
    report = {
        "tokens": len(tokens),
        "first_difference": first,
        "max_abs_error": error.max().item(),
        "mean_abs_error": error.mean().item(),
        "max_abs_logit": theirs.abs().max().item(),
        "cosine": torch.nn.functional.cosine_similarity(mine, theirs, dim=-1).min().item(),
        "forced_top1_agreement": (mine.argmax(-1) == theirs.argmax(-1)).double().mean().item(),
    }
    if first is not None:
        report["difference"] = {"ours": tokens[first], "reference": ids[first], "reference_gap": gaps[first]}
    return report


def read_run(path):
    ours = exact.read_safetensors(path)
    for name, rank in (("prompt_ids", 1), ("generated_ids", 1), ("logits", 2)):
        if name not in ours or ours[name].dim() != rank:
            raise ValueError(f"{path}: {name} missing or not of rank {rank}; write it with `bitnet generate --logits`")
    g = len(ours["generated_ids"])
    if not g or not len(ours["prompt_ids"]) or ours["logits"].shape[0] != g:
        raise ValueError(f"{path}: {len(ours['prompt_ids'])} prompt ids, {g} tokens, {ours['logits'].shape[0]} rows of logits")
    if not torch.equal(ours["logits"].argmax(-1).to(torch.int32), ours["generated_ids"]):
        raise ValueError(f"{path}: generated_ids are not the argmax of logits; use --temperature 0 and no penalties")
    return ours


def parity(folder, path, args):
    """One pair -> report; a reference that cannot run is reported with its error."""
    ours = read_run(path)
    prompt = [int(t) for t in ours["prompt_ids"]]
    tokens = [int(t) for t in ours["generated_ids"]]
    forced = torch.tensor([prompt + tokens[:-1]], device=args.device)
    rows = slice(len(prompt) - 1, len(prompt) + len(tokens) - 1)
    kv = {"bf16": torch.bfloat16, "f32": torch.float32}[args.kv]
    out = {"folder": folder, "file": path, "kv": args.kv, "prompt_tokens": len(prompt), "references": {}}
    for kind in args.references:
        try:
            with torch.no_grad():
                if kind == "f64":
                    net = exact.Exact(folder, args.device, kv)
                    logits = net(forced)[0, rows]
                    ids, gaps = greedy_exact(net, prompt, len(tokens), args.device)
                else:
                    net = load_stock(folder, args.device) if kind == "stock" else load_f32(folder, args.device, kv)
                    logits = net(forced).logits[0, rows]
                    if kind == "f32" and net.rounded != len(net.model.layers):
                        raise RuntimeError("the attention that rounds keys and values was not used")
                    ids, gaps = greedy_hf(net, prompt, len(tokens), args.device)
            out["references"][kind] = compare(ours, logits, ids, gaps)
        except Exception as e:
            out["references"][kind] = {"error": f"{type(e).__name__}: {e}"[:2000]}
        net = None
        if args.device != "cpu":
            torch.cuda.empty_cache()
    return out


def show(report):
    lines = [f"{report['folder']}  ({report['file']}, kv {report['kv']}, prompt {report['prompt_tokens']} tokens)"]
    for kind, r in report["references"].items():
        if "error" in r:
            lines.append(f"  {kind:5}  could not run: {r['error']}")
            continue
        first = "all greedy tokens equal" if r["first_difference"] is None else (
            f"first difference at {r['first_difference']} of {r['tokens']}: ours {r['difference']['ours']}, reference "
            f"{r['difference']['reference']} (its two best are {r['difference']['reference_gap']:.4g} apart)"
        )
        lines.append(f"  {kind:5}  {r['tokens']} tokens: {first}")
        lines.append(
            f"         forced: max error {r['max_abs_error']:.3g}, mean {r['mean_abs_error']:.3g}, largest logit "
            f"{r['max_abs_logit']:.3g}, lowest cosine {r['cosine']:.8f}, same best token {100 * r['forced_top1_agreement']:.1f} %"
        )
    return "\n".join(lines)


def write(args):
    import tokenizers

    folder, path = args.pairs
    ids = tokenizers.Tokenizer.from_file(os.path.join(folder, "tokenizer.json")).encode(args.prompt).ids
    model, rows = exact.Exact(folder, args.device), []
    out, _ = greedy_exact(model, ids, args.tokens, args.device, rows)
    exact.write_safetensors(
        path,
        {
            "prompt_ids": torch.tensor(ids, dtype=torch.int32),
            "generated_ids": torch.tensor(out, dtype=torch.int32),
            "logits": torch.stack(rows),
        },
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pairs", nargs="+", metavar="FOLDER FILE")
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout")
    parser.add_argument("--kv", choices=("bf16", "f32"), default="bf16", help="cache type that `bitnet` used")
    parser.add_argument("--references", type=lambda s: s.split(","), default=["f32", "f64", "stock"])
    parser.add_argument("--require", type=int, metavar="N", help="exit 1 unless the first N tokens equal the f32 reference's")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--prompt", default="fn main() {")
    parser.add_argument("--tokens", type=int, default=64)
    args = parser.parse_args()
    if len(args.pairs) % 2:
        parser.error(f"{len(args.pairs)} arguments: give FOLDER FILE pairs")
    if set(args.references) - {"f32", "f64", "stock"}:
        parser.error("--references: a list of f32, f64, stock")
    if args.write:
        if len(args.pairs) != 2:
            parser.error("--write takes one pair")
        return write(args)

    torch.set_float32_matmul_precision("highest")
    try:
        reports = [parity(f, p, args) for f, p in zip(args.pairs[::2], args.pairs[1::2])]
    except (OSError, ValueError) as e:
        sys.exit(f"hf_parity: {e}")
    print(json.dumps(reports, indent=2) if args.json else "\n".join(map(show, reports)))
    if args.require is not None:
        for report in reports:
            r = report["references"].get("f32", {"error": "not run"})
            if "error" in r or r["tokens"] < args.require or (
                r["first_difference"] is not None and r["first_difference"] < args.require
            ):
                sys.exit(1)


if __name__ == "__main__":
    main()
