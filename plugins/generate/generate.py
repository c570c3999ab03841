"""Generates, labels or embeds texts with a Hugging Face model from a folder, a list of items at a time: freeride-ctl batch
generate.py --param model=/models/small --input prompts.jsonl --output texts.jsonl. docs/generate.md has the whole of it."""

import collections
import inspect
import os

os.environ["HF_HUB_OFFLINE"] = "1"  # a side task has no network, and is not to wait for one

import torch
import transformers
from freeride_plugin import BadParameter, Param, Stream, TaskError

LEAST_LENGTH = 64  # tokens that the shortest decode looks back at; each longer one looks at twice as many
NOT_GREEDY = {
    "num_beams": 1,
    "repetition_penalty": 1.0,
    "no_repeat_ngram_size": 0,
    "encoder_repetition_penalty": 1.0,
    "min_length": 0,
    "min_new_tokens": None,
    "bad_words_ids": None,
    "suppress_tokens": None,
    "begin_suppress_tokens": None,
    "forced_bos_token_id": None,
    "forced_eos_token_id": None,
    "sequence_bias": None,
    "guidance_scale": None,
}


class Sequence:
    """One item under way: its prompt, of which `read` tokens are in the cache, and what was made of it."""

    def __init__(self, prompt):
        self.prompt, self.read, self.made, self.slot = prompt, 0, [], -1


class SlotCache(transformers.Cache):
    """Keys and values of a fixed number of sequences, each in a slot of its own at its own length. The model's layers write
    to the places that were named before the call, and get back all that lies before `upto`."""

    def __init__(self, slots, length):
        super().__init__(layers=[])
        self.slots, self.length, self.tensors = slots, length, {}

    def at(self, rows, positions, upto):
        """`rows`: slots, or None for all of them in order; `positions`: of each row's tokens."""
        self.rows, self.positions, self.upto = rows, positions, upto

    def update(self, keys, values, layer, *_, **__):
        if layer not in self.tensors:
            shape = (self.slots, keys.shape[1], self.length)
            self.tensors[layer] = [one.new_zeros((*shape, one.shape[-1])) for one in (keys, values)]
        rows = torch.arange(self.slots, device=keys.device) if self.rows is None else self.rows
        seen = []
        for tensor, new in zip(self.tensors[layer], (keys, values)):
            tensor[rows[:, None], :, self.positions] = new.transpose(1, 2)
            part = tensor[:, :, : self.upto]
            seen.append(part if self.rows is None else part[rows])
        return seen

    def get_seq_length(self, *_):
        return 0

    def get_mask_sizes(self, *_):
        return self.upto, 0


class Generate(Stream):
    "Generates, labels or embeds texts with a Hugging Face model from a folder."

    model = Param("", "folder of the model, as save_pretrained() writes it; it needs --read")
    what = Param("generate", "what is made of an item", ("generate", "label", "embed"))
    field = Param("prompt", "of an item: its text; an item that is a text needs none")
    chat = Param(False, "the text is a message to the model's chat template")
    most_new = Param(128, "tokens made for an item at most", (1, 1_000_000))
    length = Param(0, "tokens of an item at most, those made included; 0: as many as the model knows", (0, 10_000_000))
    sequences = Param(16, "items under way side by side", (1, 4096))
    piece = Param(512, "tokens of prompts read in one step", (1, 1_000_000))
    dtype = Param("auto", "of the weights", ("auto", "float32", "float16", "bfloat16"))
    graphs = Param(True, "CUDA graphs for the decode, on a GPU")

    # ---- transitions
    def CreateSideTask(self):
        if not self.model:
            raise BadParameter("parameter model: it must name the folder of a model, which --read lets it see")
        if not os.path.exists(f"{self.model}/config.json"):
            raise TaskError(f"{self.model} is no folder of a model here: it has no config.json; is it below a --read?")
        self.most_at_once, self.ahead = self.sequences, 8 * self.sequences
        kind = {
            "generate": transformers.AutoModelForCausalLM,
            "label": transformers.AutoModelForSequenceClassification,
            "embed": transformers.AutoModel,
        }[self.what]
        dtype = self.dtype if self.dtype == "auto" else getattr(torch, self.dtype)
        self.tokenizer = transformers.AutoTokenizer.from_pretrained(self.model, local_files_only=True)
        self.net = kind.from_pretrained(self.model, local_files_only=True, dtype=dtype).eval()
        if self.what == "generate":
            self.check_model()
        self.limit = self.length_limit()
        self.joining, self.running, self.made = collections.deque(), {}, 0

    def check_model(self):
        config, settings = self.net.config, self.net.generation_config
        odd = [
            kind for kind in getattr(config, "layer_types", None) or [] if "attention" not in kind or "linear" in kind
        ]
        if config.is_encoder_decoder or odd:
            raise TaskError(
                f"{self.model}: a model of type {config.model_type} keeps more than keys and values of one text"
            )
        for name, plain in NOT_GREEDY.items():
            value = getattr(settings, name, None)
            if value is not None and value != plain:
                raise TaskError(f"{self.model}: its generation_config.json has {name}={value}, which is not done here")
        ends = settings.eos_token_id
        self.ends = set(ends if isinstance(ends, list) else [] if ends is None else [ends])

    def length_limit(self):
        config = self.net.config
        known = [getattr(config, name, None) for name in ("max_position_embeddings", "n_positions", "sliding_window")]
        limits = [limit for limit in (*known, self.length) if isinstance(limit, int) and limit > 0]
        return min(limits) if limits else 2048

    def InitSideTask(self):
        torch.set_grad_enabled(False)
        self.net.to(self.torch_device)
        if self.what != "generate":
            return
        self.free = list(range(self.sequences))
        self.cache = SlotCache(self.sequences, self.limit)
        self.one_logit = (
            {"logits_to_keep": 1} if "logits_to_keep" in inspect.signature(self.net.forward).parameters else {}
        )
        self.tokens = torch.zeros((self.sequences, 1), dtype=torch.long, device=self.torch_device)
        self.positions = torch.zeros_like(self.tokens)
        self.captured = {}
        self.decode(self.lengths()[0])  # takes the cache's memory
        if self.graphs and self.torch_device != "cpu":
            self.capture()

    # ---- items
    def text_of(self, item):
        text = item.get(self.field) if isinstance(item, dict) else item
        if not isinstance(text, str):
            raise ValueError(f"the item has no text '{self.field}'")
        return text

    def begin(self, item):
        text = self.text_of(item)
        if self.chat:
            message = [{"role": "user", "content": text}]
            text = self.tokenizer.apply_chat_template(message, tokenize=False, add_generation_prompt=True)
        tokens = self.tokenizer(text, add_special_tokens=not self.chat)["input_ids"]
        if not tokens:
            raise ValueError("its text has no tokens")
        room = self.limit - (1 if self.what == "generate" else 0)
        if len(tokens) > room:
            raise ValueError(f"its text has {len(tokens)} tokens, and there is room for {room}")
        sequence = Sequence(tokens)
        self.joining.append(sequence)
        return sequence

    def drop(self):
        self.joining.clear()
        self.running.clear()
        if self.what == "generate":
            self.free = list(range(self.sequences))

    def step(self):
        if self.what != "generate":
            done = self.pass_over()
        elif self.joining:
            done = self.read_prompts()
        else:
            done = self.decode_one()
        self.metric("tokens", self.made)
        return done

    # ---- generate: a step reads prompts, or makes one token of every sequence
    def lengths(self):
        lengths = [min(LEAST_LENGTH, self.limit)]
        while lengths[-1] < self.limit:
            lengths.append(min(2 * lengths[-1], self.limit))
        return lengths

    def length_for(self, tokens):
        return next(length for length in self.lengths() if length >= tokens)

    def forward(self, tokens, positions, rows, upto, **more):
        self.cache.at(rows, positions, upto)
        # A token sees those before it. What lies behind, in the cache, is of the slot's last sequence.
        hidden = torch.arange(upto, device=tokens.device)[None, None, None, :] > positions[:, None, :, None]
        mask = torch.zeros(hidden.shape, dtype=self.net.dtype, device=tokens.device)
        mask = mask.masked_fill(hidden, torch.finfo(self.net.dtype).min)
        return self.net(
            input_ids=tokens,
            attention_mask=mask,
            position_ids=positions,
            past_key_values=self.cache,
            use_cache=True,
            **more,
        ).logits

    def read_prompts(self):
        """Some prompts as a whole, side by side, or a piece of a long one. Where the shorter ones are filled up, what is
        written behind their end is written over, token by token, before it is seen."""
        group, widest = [], 0
        for sequence in self.joining:
            widest = max(widest, len(sequence.prompt))
            if widest * (len(group) + 1) > self.piece or sequence.read > 0:
                break
            group.append(sequence)
        if not group:
            group = [self.joining[0]]
        ends = [min(len(one.prompt), one.read + self.piece) for one in group]
        parts = [one.prompt[one.read : end] for one, end in zip(group, ends)]
        width = max(map(len, parts))
        for one in group:
            if one.slot < 0:
                one.slot = self.free.pop()
        device = self.torch_device
        tokens = torch.tensor([part + [0] * (width - len(part)) for part in parts], device=device)
        starts = torch.tensor([one.read for one in group], device=device)
        positions = (starts[:, None] + torch.arange(width, device=device)[None, :]).clamp_(max=self.limit - 1)
        rows = torch.tensor([one.slot for one in group], device=device)
        logits = self.forward(tokens, positions, rows, self.length_for(max(ends)))
        last = torch.tensor([len(part) - 1 for part in parts], device=device)
        first = logits[torch.arange(len(group), device=device), last].argmax(-1).tolist()  # waits for the GPU
        done = []
        for one, end, token in zip(group, ends, first):
            one.read = end
            if end == len(one.prompt):
                self.joining.remove(one)
                self.running[one.slot] = one
                done += self.take(one, token)
        return done

    def decode_one(self):
        longest = 1
        tokens, positions = [0] * self.sequences, [0] * self.sequences
        for slot, one in self.running.items():
            tokens[slot], positions[slot] = one.made[-1], len(one.prompt) + len(one.made) - 1
            longest = max(longest, positions[slot] + 1)
        self.tokens.copy_(torch.tensor(tokens)[:, None])
        self.positions.copy_(torch.tensor(positions)[:, None])
        following = self.decode(self.length_for(longest)).tolist()  # waits for the GPU
        return [each for slot, one in list(self.running.items()) for each in self.take(one, following[slot])]

    def decode(self, upto):
        if upto in self.captured:
            graph, following = self.captured[upto]
            graph.replay()
            return following
        return self.next_tokens(upto)

    def next_tokens(self, upto):
        return self.forward(self.tokens, self.positions, None, upto, **self.one_logit)[:, -1].argmax(-1)

    def capture(self):
        """A graph for each length that is looked back at: then a step is one launch, and no kernel waits for Python."""
        try:
            beside = torch.cuda.Stream()
            beside.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(beside):
                for upto in self.lengths():
                    self.next_tokens(upto)
            torch.cuda.current_stream().wait_stream(beside)
            pool = torch.cuda.graph_pool_handle()
            for upto in self.lengths():
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph, pool=pool):
                    following = self.next_tokens(upto)
                self.captured[upto] = (graph, following)
            torch.cuda.synchronize()
        except Exception as error:
            self.captured = {}
            torch.cuda.synchronize()
            self.log(f"decodes without CUDA graphs: {type(error).__name__}: {str(error).splitlines()[0]}")

    def take(self, one, token):
        """The sequence has its next token; what it is, if it is done by that."""
        one.made.append(token)
        self.made += 1
        ended = token in self.ends
        full = len(one.made) == self.most_new or len(one.prompt) + len(one.made) == self.limit
        if not ended and not full:
            return []
        del self.running[one.slot]
        self.free.append(one.slot)
        text = self.tokenizer.decode(one.made, skip_special_tokens=True)
        return [(one, {"text": text, "tokens": len(one.made), "end": "stop" if ended else "length"})]

    # ---- label, embed: a step is one pass over the items that are there
    def pass_over(self):
        group = list(self.joining)
        self.joining.clear()
        width, device = max(len(one.prompt) for one in group), self.torch_device
        tokens = torch.tensor([one.prompt + [0] * (width - len(one.prompt)) for one in group], device=device)
        there = torch.tensor([[1] * len(one.prompt) + [0] * (width - len(one.prompt)) for one in group], device=device)
        if self.net.config.pad_token_id is not None:
            tokens.masked_fill_(there == 0, self.net.config.pad_token_id)
        output = self.net(input_ids=tokens, attention_mask=there)
        self.made += int(there.sum())
        if self.what == "label":
            best = output.logits.float().softmax(-1).max(-1)
            names = self.net.config.id2label
            return [
                (one, {"label": names[number], "score": score})
                for one, number, score in zip(group, best.indices.tolist(), best.values.tolist())
            ]
        weights = there[:, :, None].to(output.last_hidden_state.dtype)
        means = (output.last_hidden_state * weights).sum(1) / weights.sum(1)
        return list(zip(group, torch.nn.functional.normalize(means.float(), dim=-1).tolist()))
