"""Evaluates each new checkpoint of a training on a dataset, in the training's own bubbles: freeride-ctl load evaluate.py --read
/checkpoints --read /data/held_out.jsonl --write /scores --param checkpoints=/checkpoints --param data=/data/held_out.jsonl
--param output=/scores. docs/evaluate.md has the whole of it."""

import hashlib
import json
import math
import os
import re
import statistics
import struct
import time
import zipfile

os.environ["HF_HUB_OFFLINE"] = "1"  # a side task has no network, and is not to wait for one

import torch
import transformers
from freeride_plugin import BadParameter, Param, SideTask, Step, TaskError
from safetensors import safe_open

WEIGHTS = (".safetensors", ".pt", ".pth", ".bin")
UNDER_WORK = (".tmp", ".part", ".partial", ".incomplete", ".lock")
MOST_HEADER = 100 << 20  # bytes of a safetensors header: its own limit
MOST_SHAPES = 16  # of batches: each has graphs of its own, and their memory
PLAIN_PASSES = 5  # over a shape, before its graphs
SHORT_MS = 2.0  # of a layer, for one launch: it is not cut at a bubble's end


# ---- whether a checkpoint is whole


def whole_safetensors(path):
    """A header, and behind it exactly as many bytes as it speaks of."""
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        prefix = file.read(8)
        if len(prefix) < 8:
            return False
        (length,) = struct.unpack("<Q", prefix)
        if length > min(MOST_HEADER, size - 8):
            return False
        try:
            header = json.loads(file.read(length))
            ends = [one["data_offsets"][1] for name, one in header.items() if name != "__metadata__"]
        except (ValueError, KeyError, TypeError, IndexError, AttributeError):
            return False
    return size == 8 + length + max(ends, default=0)


def whole_torch(path):
    """The zip archive of torch.save(): its directory is written last. An older pickle has no end that could be seen."""
    try:
        with zipfile.ZipFile(path) as archive:
            return any(name.endswith("/data.pkl") for name in archive.namelist())
    except (zipfile.BadZipFile, OSError):
        return False


def whole_file(path):
    return whole_safetensors(path) if path.endswith(".safetensors") else whole_torch(path)


class Checkpoint:
    """What lies in the watched folder under one name: a folder with a model, or a file of weights."""

    def __init__(self, folder, name):
        self.name, self.path = name, f"{folder}/{name}"

    def look(self):
        """What it is made of: (name, size, time of change, inode) of each file. None: it is none, or not any more."""
        try:
            if not os.path.isdir(self.path):
                return (self.of_file(self.name, self.path),) if self.name.endswith(WEIGHTS) else None
            names = sorted(os.listdir(self.path))
            if any(name.endswith(UNDER_WORK) for name in names) or "config.json" not in names:
                return None
            found = tuple(self.of_file(name, f"{self.path}/{name}") for name in names if self.matters(name))
            return found if any(name.endswith(WEIGHTS) for name, *_ in found) else None
        except OSError:
            return None

    @staticmethod
    def of_file(name, path):
        status = os.stat(path)
        return (name, status.st_size, status.st_mtime_ns, status.st_ino)

    @staticmethod
    def matters(name):
        """Optimizer and random states may come after the weights, and are not read."""
        return name == "config.json" or (
            name.endswith((*WEIGHTS, ".index.json")) and name.startswith(("model", "pytorch_model"))
        )

    def files(self):
        """Its files of weights. None: the list of shards names one that is not there."""
        if not os.path.isdir(self.path):
            return [self.path]
        names = sorted(name for name in os.listdir(self.path) if self.matters(name))
        for index in (name for name in names if name.endswith(".index.json")):
            with open(f"{self.path}/{index}", encoding="utf-8") as file:
                shards = sorted(set(json.load(file)["weight_map"].values()))
            return [f"{self.path}/{name}" for name in shards] if set(shards) <= set(names) else None
        weights = [name for name in names if name.endswith(WEIGHTS)]
        safe = [name for name in weights if name.endswith(".safetensors")]
        return [f"{self.path}/{name}" for name in safe or weights]

    def whole(self, marker):
        if marker and not os.path.exists(f"{self.path}/{marker}" if os.path.isdir(self.path) else self.path + marker):
            return False
        try:
            files = self.files()
            return files is not None and all(map(whole_file, files))
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return False


def identity(look):
    """Another content under the same name is another checkpoint; the same one in a copied folder is not."""
    return hashlib.sha256(repr([one[:3] for one in look]).encode()).hexdigest()[:32]


def step_of(name):
    numbers = re.findall(r"\d+", name)
    return int(numbers[-1]) if numbers else None


class Watch:
    """Which checkpoints are whole: those that have not changed for `settle_s` by this process's clock, of which every file
    of weights has its end, and that have the marker, where one is asked for."""

    def __init__(self, folder, settle_s, marker):
        self.folder, self.settle_s, self.marker, self.seen = folder, settle_s, marker, {}

    def whole(self, now):
        """(checkpoint, look) of all, oldest first."""
        try:
            names = os.listdir(self.folder)
        except OSError as error:
            raise TaskError(f"the folder of checkpoints {self.folder} cannot be read: {error.strerror}") from None
        found, seen = [], {}
        for name in names:
            if name.startswith(".") or name.endswith(UNDER_WORK):
                continue
            checkpoint = Checkpoint(self.folder, name)
            look = checkpoint.look()
            if look is None:
                continue
            before, since, good = self.seen.get(name, (None, now, False))
            if look != before:
                since, good = now, False
            if not good and now - since >= self.settle_s:
                good = checkpoint.whole(self.marker) and checkpoint.look() == look
            seen[name] = (look, since, good)
            if good:
                found.append((checkpoint, look))
        self.seen = seen
        return sorted(found, key=lambda one: (max(part[2] for part in one[1]), one[0].name))


class Scores:
    """A line of JSON for each checkpoint, on the disk before the next one is begun. It is also what is known to be done: a
    checkpoint that has no line is evaluated, whatever was killed."""

    def __init__(self, path):
        self.path, self.done, self.lines = path, set(), 0
        self.file = open(path, "a+b")  # noqa: SIM115: it stays open
        self.file.seek(0)
        good = 0
        for line in self.file:
            try:
                one = json.loads(line) if line.endswith(b"\n") else None
            except ValueError:
                one = None
            if one is None:
                break
            self.done.add((one["checkpoint"], one["identity"]))
            self.lines += 1
            good += len(line)
        self.file.truncate(good)  # half a line of one that was killed

    def add(self, one):
        self.file.seek(0, os.SEEK_END)
        self.file.write(json.dumps(one, ensure_ascii=False).encode() + b"\n")
        self.file.flush()
        os.fsync(self.file.fileno())
        self.done.add((one["checkpoint"], one["identity"]))
        self.lines += 1


# ---- a layer in one launch


def form_of(value, tensors):
    """A layer's arguments without their tensors, which are added to `tensors`: equal and hashable for two calls that one
    graph serves. Raises TypeError if it holds what a graph cannot take, such as a cache."""
    if isinstance(value, torch.Tensor):
        tensors.append(value)
        return ("tensor", value.shape, value.dtype)
    if isinstance(value, (tuple, list)):
        return tuple(form_of(one, tensors) for one in value)
    if isinstance(value, dict):
        return tuple((name, form_of(one, tensors)) for name, one in value.items())
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise TypeError(type(value).__name__)


def with_tensors(value, tensors):
    """The arguments again, with the next of `tensors` (an iterator) in each one's place."""
    if isinstance(value, torch.Tensor):
        return next(tensors)
    if isinstance(value, (tuple, list)):
        return tuple(with_tensors(one, tensors) for one in value)
    if isinstance(value, dict):
        return {name: with_tensors(one, tensors) for name, one in value.items()}
    return value


class Shape:
    """What is known of batches of one shape: the graphs, and until they are there how long the layers take."""

    def __init__(self):
        self.passes, self.graphs, self.written = 0, {}, set()
        self.events = []  # before and behind each layer, of the last pass
        self.pass_ms = []  # a layer's median, of each pass

    def timed(self):
        if self.events:
            self.events[-1][1].synchronize()
            self.pass_ms.append(statistics.median(begin.elapsed_time(end) for begin, end in self.events))
            self.events = []

    def is_short(self):
        return min(self.pass_ms, default=0) <= SHORT_MS


class LayerGraphs:
    """Each layer of a model as one CUDA graph for each shape of a batch. Its kernels, launched one by one from Python, take
    longer to launch than to execute, and in a bubble none are launched ahead. The model as a whole would be too long for a
    graph: what is one launch is not cut at a bubble's end. In the first pass over a shape the libraries choose their
    kernels; in the next ones the layers are timed, while the GPU's clock rises; then they are captured.

    A graph reads and writes at addresses that stay. So the tensors that a layer is given are copied there, unless they are
    what the graph before it has written."""

    def __init__(self, net, say):
        lists = (part for part in net.modules() if isinstance(part, torch.nn.ModuleList))
        layers = list(next(lists, ()))  # the outermost: experts and heads are within layers
        self.layers = [] if any("forward" in vars(layer) for layer in layers) else layers
        self.forwards = [layer.forward for layer in self.layers]
        self.shapes, self.now, self.say = {}, None, say
        self.pool, self.stream = torch.cuda.graph_pool_handle(), torch.cuda.Stream()
        for index, layer in enumerate(self.layers):
            layer.forward = lambda *args, index=index, **kwargs: self.run(index, args, kwargs)

    def run(self, index, args, kwargs):
        given = []
        try:
            form = (index, form_of((args, kwargs), given))
        except TypeError:
            return self.forwards[index](*args, **kwargs)
        if index == 0:
            self.begin(form)
        if self.now is None:
            return self.forwards[index](*args, **kwargs)
        if self.now.passes <= PLAIN_PASSES:
            return self.timed(index, args, kwargs)
        try:
            statics, graph, output = self.now.graphs.get(form) or self.capture(form, args, kwargs, given)
        except Exception as error:
            self.drop(f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}")
            return self.forwards[index](*args, **kwargs)
        for static, tensor in zip(statics, given):
            at = static.data_ptr()
            if at != tensor.data_ptr() and self.copied.get(at) is not tensor:
                static.copy_(tensor)
                self.copied[at] = tensor
        graph.replay()
        return output

    def begin(self, form):
        """A pass over the model begins."""
        self.copied, self.cloned, self.now = {}, [], None
        if form not in self.shapes and len(self.shapes) < MOST_SHAPES:
            self.shapes[form] = Shape()
        shape = self.shapes.get(form)
        if shape is None:
            return
        shape.passes += 1
        shape.timed()
        if shape.passes != PLAIN_PASSES + 1 or shape.is_short():
            self.now = shape
        else:
            self.shapes[form] = None

    def timed(self, index, args, kwargs):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        output = self.forwards[index](*args, **kwargs)
        end.record()
        if self.now.passes > 1:
            self.now.events.append((begin, end))
        return output

    def capture(self, form, args, kwargs, given):
        shape = self.now
        if len(shape.graphs) == 2 * len(self.layers):
            raise ValueError("its layers are called otherwise in each pass")
        statics = [self.static(tensor) for tensor in given]
        args, kwargs = with_tensors((args, kwargs), iter(statics))
        graph = torch.cuda.CUDAGraph()
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            graph.capture_begin(pool=self.pool, capture_error_mode="thread_local")
            try:
                output = self.forwards[form[0]](*args, **kwargs)
            finally:
                graph.capture_end()
        torch.cuda.current_stream().wait_stream(self.stream)
        written = []
        form_of(output, written)
        shape.written.update(tensor.data_ptr() for tensor in written)
        shape.graphs[form] = statics, graph, output
        return shape.graphs[form]

    def static(self, tensor):
        """The tensor's copy at an address that stays; one for all layers that are given it."""
        if tensor.data_ptr() in self.now.written:
            return tensor
        for original, copy in self.cloned:
            if original is tensor:
                return copy
        self.cloned.append((tensor, tensor.clone()))
        return self.cloned[-1][1]

    def drop(self, why):
        self.close()
        self.say(f"evaluates without CUDA graphs: {why}")

    def close(self):
        """The layers are as they were, and the graphs' memory is free."""
        torch.cuda.synchronize()
        for layer in self.layers:
            vars(layer).pop("forward", None)
        self.shapes, self.now, self.layers = {}, None, []


# ---- the task


class Evaluate(SideTask):
    "Evaluates each new checkpoint of a training on a dataset."

    checkpoints = Param("", "the folder in which checkpoints appear; it needs --read")
    data = Param("", "lines of JSON with a text, or lines of text; it needs --read")
    output = Param("", "folder of scores.jsonl; it needs --write. Empty: the scratch folder")
    model = Param("", "folder with the config.json and tokenizer of checkpoints that have none of their own")
    field = Param("text", "of a line of JSON: its text")
    length = Param(512, "tokens of a text at most", (2, 1_000_000))
    batch = Param(8, "texts in a step", (1, 4096))
    dtype = Param("auto", "of the weights", ("auto", "float32", "float16", "bfloat16"))
    settle_s = Param(10.0, "a checkpoint that has not changed for so long may be whole", (0, 86400))
    marker = Param("", "a file that says that a checkpoint is whole: in its folder, or behind the name of its file")
    look_s = Param(1.0, "how often the folder is looked at", (0.01, 3600))
    piece_mib = Param(64, "of weights that are read in one step", (1, 65536))
    most = Param(0, "finish after so many checkpoints; 0: go on", (0, 1_000_000_000))
    graphs = Param(True, "CUDA graphs for the layers, on a GPU")

    # ---- what an author would replace to evaluate something else
    def make_model(self, config):
        """The model of a config, with weights that do not matter."""
        return transformers.AutoModelForCausalLM.from_config(config)

    def read_items(self):
        """The dataset as a list of items, in host memory."""
        with open(self.data, encoding="utf-8") as file:
            lines = [line for line in file.read().splitlines() if line.strip()]
        texts = [json.loads(line)[self.field] for line in lines] if self.data.endswith((".jsonl", ".ndjson")) else lines
        return [ids for ids in (self.tokenizer(text)["input_ids"][: self.length] for text in texts) if len(ids) > 1]

    def score_items(self, items):
        """Sums over some items, as a dict of numbers; of all items they are added up."""
        width = self.width_for(max(map(len, items)))
        tokens = torch.tensor([ids + [0] * (width - len(ids)) for ids in items], device=self.torch_device)
        there = torch.tensor([[1] * len(ids) + [0] * (width - len(ids)) for ids in items], device=self.torch_device)
        logits = self.net(input_ids=tokens, attention_mask=there).logits[:, :-1]
        # A row for each token: over a middle dimension the softmax of a large vocabulary takes a hundred times as long.
        rows, wanted, counted = logits.flatten(0, 1).float(), tokens[:, 1:].flatten(), there[:, 1:].flatten().bool()
        losses = torch.nn.functional.cross_entropy(rows, wanted, reduction="none")
        right = (rows.argmax(-1) == wanted) & counted
        sums = torch.stack([losses[counted].double().sum(), right.sum().double(), counted.sum().double()])
        loss, right, tokens = sums.tolist()  # waits for the GPU
        return {"loss": loss, "right": right, "tokens": tokens}

    def width_for(self, longest):
        """How wide a batch is made: few widths, for few graphs, where there are any."""
        if not self.graphs or self.torch_device == "cpu":
            return longest
        limits = [getattr(self.net.config, name, None) for name in ("max_position_embeddings", "n_positions")]
        part = max(8, self.length // 8)
        most = min([self.length, *(limit for limit in limits if isinstance(limit, int) and limit > 0)])
        return max(longest, min(most, -(-longest // part) * part))

    def score(self, sums):
        """The scores of a checkpoint from the sums over all items."""
        loss = sums["loss"] / sums["tokens"]
        return {
            "loss": loss,
            "perplexity": math.exp(loss) if loss < 700 else math.inf,
            "accuracy": sums["right"] / sums["tokens"],
        }

    # ---- transitions
    def CreateSideTask(self):
        if not self.checkpoints or not self.data:
            raise BadParameter("parameters checkpoints and data: both must be given")
        self.watch = Watch(self.checkpoints, self.settle_s, self.marker)
        self.waiting, self.look_at, self.now, self.failed = [], 0.0, None, set()
        self.net, self.config_text, self.tokenizer, self.items = None, None, None, None
        self.layer_graphs = None
        if self.model:
            self.read_data(self.model)
        self.restored = None

    def InitSideTask(self):
        torch.set_grad_enabled(False)
        if self.model:
            self.build(self.model)
        self.scores = Scores(f"{self.output}/scores.jsonl" if self.output else self.scratch_path("scores.jsonl"))
        self.metric("checkpoints", self.scores.lines)

    def RunNextStep(self):
        if self.now is None:
            return self.find()
        try:
            return next(self.now)
        except (FileNotFoundError, NotADirectoryError):
            self.warn(f"{self.current[0].name} was removed before it was evaluated")
        except StopIteration:
            self.now = None
            return Step.FINISHED if self.most and self.scores.lines >= self.most else Step.MORE
        self.now = None
        return Step.MORE

    def SaveState(self):
        if self.now is None or not self.sums:
            return b"{}"
        checkpoint, look = self.current
        return json.dumps(
            {"checkpoint": checkpoint.name, "identity": identity(look), "at": self.at, "sums": self.sums}
        ).encode()

    def RestoreState(self, version, state):
        if version != self.state_version:
            raise TaskError("the saved state is of another version of evaluate")
        self.restored = json.loads(state) or None

    # ---- a checkpoint, in pieces
    def find(self):
        now = time.monotonic()
        if not self.waiting and now >= self.look_at:
            self.look_at = now + self.look_s
            self.waiting = [one for one in self.watch.whole(now) if not self.is_done(*one)]
            self.metric("waiting", len(self.waiting))
        if not self.waiting:
            time.sleep(0.0003)  # nothing to do: let others have the core
            return Step.MORE
        self.current = self.waiting.pop(0)
        self.metric("waiting", len(self.waiting))
        if not self.is_done(*self.current) and self.current[0].look() == self.current[1]:
            self.sums, self.at = {}, 0
            self.now = self.evaluate(*self.current)
        return Step.MORE

    def is_done(self, checkpoint, look):
        key = (checkpoint.name, identity(look))
        return key in self.scores.done or key in self.failed

    def evaluate(self, checkpoint, look):
        begin = time.monotonic()
        folder = checkpoint.path if os.path.isdir(checkpoint.path) else self.model
        if not folder:
            raise TaskError(f"{checkpoint.path} is a file: parameter model must name a folder with its config.json")
        try:
            self.build(folder)
            yield Step.MORE
            yield from self.read_weights(checkpoint)
        except (FileNotFoundError, NotADirectoryError, TaskError, MemoryError):
            raise
        except Exception as error:
            if "out of memory" in str(error):
                raise
            self.failed.add((checkpoint.name, identity(look)))
            self.warn(f"{checkpoint.name} cannot be read: {type(error).__name__}: {str(error).splitlines()[0]}")
            return
        if checkpoint.look() != look:
            self.log(f"{checkpoint.name} has changed while it was read: it counts once it is whole again")
            return
        self.go_on(checkpoint, look)
        while self.at < len(self.items):
            part = self.items[self.at : self.at + self.batch]
            for name, value in self.score_items(part).items():
                self.sums[name] = self.sums.get(name, 0) + value
            self.at += len(part)
            yield Step.MORE
        scores = self.score(self.sums)
        self.scores.add(
            {
                "checkpoint": checkpoint.name,
                "step": step_of(checkpoint.name),
                "identity": identity(look),
                "items": len(self.items),
                **scores,
                "seconds": round(time.monotonic() - begin, 3),
                "time": round(time.time(), 3),
            }
        )
        self.metric("step", step_of(checkpoint.name) or 0)
        for name, value in list(scores.items())[:4]:
            self.metric(name, value)
        self.metric("checkpoints", self.scores.lines)
        self.log(f"{checkpoint.name}: " + ", ".join(f"{name} {value:.6g}" for name, value in scores.items()))

    def go_on(self, checkpoint, look):
        """From the saved state, if it is of this checkpoint."""
        state = self.restored
        if state and (state["checkpoint"], state["identity"]) == (checkpoint.name, identity(look)):
            self.restored = None
            self.sums, self.at = state["sums"], state["at"]
            self.log(f"{checkpoint.name} goes on from item {self.at}")

    def read_data(self, folder):
        if self.items is None:
            self.tokenizer = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)
            self.items = self.read_items()
            if not self.items:
                raise TaskError(f"{self.data} has no texts of two tokens or more")

    def build(self, folder):
        """The model and the dataset, unless they are there already."""
        with open(f"{folder}/config.json", encoding="utf-8") as file:
            text = file.read()
        self.read_data(self.model or folder)
        if text == self.config_text:
            return
        if self.layer_graphs:
            self.layer_graphs.close()
        self.net, self.layer_graphs, self.config_text = None, None, None  # no memory for two models
        config = transformers.AutoConfig.from_pretrained(folder, local_files_only=True)
        config.use_cache = False
        net = self.make_model(config).eval()
        dtype = getattr(config, "dtype", None) if self.dtype == "auto" else getattr(torch, self.dtype)
        self.net = net.to(device=self.torch_device, dtype=dtype or torch.float32)
        self.make_graphs()
        self.config_text = text

    def make_graphs(self):
        if self.graphs and self.torch_device != "cpu":
            self.layer_graphs = LayerGraphs(self.net, self.log)

    def read_weights(self, checkpoint):
        wanted, read, bytes_read = self.net.state_dict(), set(), 0
        for path in checkpoint.files():
            for name, tensor in self.tensors(path):
                if name in wanted:
                    if wanted[name].shape != tensor.shape:
                        raise ValueError(
                            f"{name} has the shape {tuple(tensor.shape)}, the model's {tuple(wanted[name].shape)}"
                        )
                    wanted[name].copy_(tensor)
                    read.add(wanted[name].data_ptr())
                    bytes_read += tensor.numel() * tensor.element_size()
                if bytes_read >= self.piece_mib << 20:
                    bytes_read = 0
                    yield Step.MORE
        # Of tied weights one name is enough.
        missing = [name for name, tensor in wanted.items() if tensor.numel() > 0 and tensor.data_ptr() not in read]
        if missing:
            raise KeyError(f"it has no {missing[0]}" + (f" and {len(missing) - 1} more" if len(missing) > 1 else ""))

    @staticmethod
    def tensors(path):
        """(name, tensor), one at a time: a file is mapped, never read as a whole."""
        if path.endswith(".safetensors"):
            with safe_open(path, framework="pt") as file:
                for name in file.keys():  # noqa: SIM118: it is no dict
                    yield name, file.get_tensor(name)
            return
        content = torch.load(path, map_location="cpu", mmap=True, weights_only=True)
        for key in ("model", "state_dict", "module"):
            if isinstance(content, dict) and isinstance(content.get(key), dict):
                content = content[key]
        for name, tensor in content.items():
            if isinstance(tensor, torch.Tensor):
                yield name.removeprefix("module."), tensor
