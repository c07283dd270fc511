"""Asks a model folder the held-out questions, or a few questions of your own, with transformers on the CPU.

    python assets/builtin_model/evaluate.py DIR
    python assets/builtin_model/evaluate.py DIR --ask "who are you" --ask "and what is 3 + 4"
"""

import argparse
import json
from collections import defaultdict
from pathlib import Path

import corpus
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

Message = dict[str, str]


def load(folder: Path) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """The float16 weights, computed in float32."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    return model.eval(), AutoTokenizer.from_pretrained(folder, padding_side="left")


@torch.no_grad()
def answers(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    chats: list[list[Message]],
    new_tokens: int = 80,
    **sampling: float,
) -> list[str]:
    """The model's next message in each chat: greedy, or sampled if `temperature` is given."""
    texts = [tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True) for chat in chats]
    inputs = tokenizer(texts, return_tensors="pt", padding=True, add_special_tokens=False, return_token_type_ids=False)
    options = {"do_sample": bool(sampling), "temperature": 1.0, "top_p": 1.0} | sampling
    output = model.generate(**inputs, max_new_tokens=new_tokens, **options)
    prompt = inputs["input_ids"].shape[1]
    return [str(tokenizer.decode(row[prompt:], skip_special_tokens=True)) for row in output]


def ask_heldout(folder: Path, batch: int = 64) -> list[tuple[dict, str]]:
    """Every held-out question with the model's greedy answer."""
    model, tokenizer = load(folder)
    rows = json.loads((corpus.HERE / "heldout.json").read_text(encoding="utf-8"))
    asked: list[tuple[dict, str]] = []
    for start in range(0, len(rows), batch):
        part = rows[start : start + batch]
        chats = [[{"role": "user", "content": row["question"]}] for row in part]
        asked += zip(part, answers(model, tokenizer, chats), strict=True)
    return asked


def report(asked: list[tuple[dict, str]]) -> float:
    """Prints the wrong answers and the accuracy per kind; returns the accuracy over all questions."""
    right: dict[str, list[bool]] = defaultdict(list)
    for row, answer in asked:
        good = corpus.is_right(answer, row["expect"])
        right[row["kind"]].append(good)
        if not good:
            print(f"  wrong [{row['kind']}] {row['question']!r} -> {answer[:100]!r}")
    for kind, results in right.items():
        print(f"  {kind:14s} {sum(results):3d}/{len(results)}")
    total = [good for results in right.values() for good in results]
    accuracy = sum(total) / len(total)
    print(f"held-out questions answered rightly: {sum(total)}/{len(total)} = {accuracy:.1%}")
    return accuracy


def main() -> None:
    parser = argparse.ArgumentParser(description="ask a model the held-out questions")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--ask", action="append", help="ask this instead; several make one conversation")
    args = parser.parse_args()
    torch.set_num_threads(2)
    if not args.ask:
        report(ask_heldout(args.folder))
        return
    model, tokenizer = load(args.folder)
    chat: list[Message] = []
    for question in args.ask:
        chat.append({"role": "user", "content": question})
        chat.append({"role": "assistant", "content": answers(model, tokenizer, [chat], 250)[0]})
        print(f"> {question}\n{chat[-1]['content']}")


if __name__ == "__main__":
    main()
