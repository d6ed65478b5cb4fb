"""Every field of a config, with its default: the only place where a default stands.

A base setting (`configs/taps.py`, ...) and an experiment start from `get_config()` here and change
fields. Integer fields of `config.model` marked *per layer* take a number or a comma string with one
entry a layer ("4,4,2").
"""

from ml_collections import ConfigDict


def get_config(arg: str | None = None) -> ConfigDict:
    """The default config: the `relations` task, four heads."""
    del arg
    config = ConfigDict(type_safe=False)
    config.experiment = ""  # directory name under --workdir; "": the name of the config file

    config.task = task = ConfigDict(type_safe=False)
    task.name = (
        "relations"  # a module of mha_jax.tasks; only its own section below takes part in a run
    )
    task.seed = 0  # draws the task's constants and the validation, test and probe sets

    task.relations = dict(
        n_classes=6,  # word classes
        words_per_class=4,  # words in a class
        classes_per_sentence=3,  # classes drawn for a sentence: two words of each, each word twice
        n_values=16,  # symbols a position can carry
        # what is asked, of prev, class, word, delimiter, next, class_last, rhyme, rhyme_last
        relations="prev,class,word,delimiter",
        causal=False,  # read the past only; answers that do not stand there are not asked
        n_distractors=0,  # further single words, each of a class of its own
    )
    task.english = dict(
        length=12,  # positions: 7 words, up to length - 7 inserted ones, and filler
        n_values=16,  # symbols a position can carry
    )
    task.taps = dict(
        length=16,  # positions
        n_taps=4,  # taps of the convolution, k
        n_channels=16,  # channels, n
    )
    task.wide_taps = dict(
        length=16,  # positions
        n_taps=4,  # taps of the convolution, k
        n_channels=16,  # channels, n; the answer has k * n columns
        readout="linear",  # linear | none: the columns of the last layer are the answer
    )
    task.attr = dict(
        n_items=16,  # items in the context, N
        n_attributes=4,  # attributes of an item = pointers a query asks for, A
        attribute_vocab=32,  # values an attribute can take, VA >= N
        n_values=16,  # values an item can carry, VV
        n_queries=8,  # query tokens after the items, Q
    )
    task.d_retrieval = dict(
        length=16,  # vectors in a sequence, T
        n_maxima=4,  # maxima the target sums, D
        n_channels=4,  # channels of a vector
        width=32,  # hidden width of the encoder and of the read-out MLP
    )
    task.copy = dict(
        length=12,  # symbols to copy
        vocab=16,  # symbols
    )
    task.histogram = dict(
        length=16,  # tokens
        vocab=16,  # symbols
    )
    task.sort = dict(
        length=10,  # symbols to sort, all different
        vocab=32,  # symbols
    )
    task.agreement = dict(
        max_attractors=4,  # nouns between subject and verb: 1 to this many
        max_adjectives=2,  # adjectives before a noun: 0 to this many
        n_nouns=32,  # nouns, each in singular and plural
        n_verbs=4,  # verbs, each in singular and plural
        n_adjectives=4,  # adjectives
        n_prepositions=3,  # prepositions
    )
    task.dyck = dict(
        n_pairs=12,  # pairs of brackets in a string
        max_depth=4,  # deepest nesting
        n_types=4,  # kinds of bracket, k
    )
    task.modular_addition = dict(
        modulus=23,  # p
        train_fraction=0.75,  # share of the p * p pairs in the training split
    )
    task.memorise = dict(
        n_examples=512,  # queries with a label, N
        n_context=16,  # context vectors that a query sees, n
        n_channels=64,  # channels of a vector
        n_classes=16,  # labels
    )
    task.nearest = dict(
        n_context=16,  # context vectors, N
        n_queries=16,  # query vectors after them, Q
        n_channels=16,  # dimension of a vector, n
    )
    task.mixture = dict(
        n_context=16,  # context vectors, and queries after them, N
        n_channels=16,  # dimension of a vector, n
        n_taps=3,  # taps of the convolution, k
    )
    task.mqar = dict(
        length=32,  # positions, T >= 4 P
        n_pairs=8,  # keys with a value, P
        vocab=64,  # tokens: the filler, then keys, then (the upper half) values
        random_fillers=False,  # fill what is left with any token; False: with token 0
    )
    task.induction = dict(
        length=48,  # positions
        vocab=32,  # symbols
        min_block=4,  # shortest block of tokens that stands twice
        max_block=12,  # longest
    )
    task.k_hop = dict(
        length=32,  # positions
        vocab=8,  # symbols; a sequence is shuffles of all of them
        n_hops=2,  # hops to the answer, k
    )
    task.needle = dict(
        length=64,  # positions, the question included
        vocab=16,  # symbols
        distance=0,  # from the needle to the question; 0: drawn per sequence
    )
    task.selective_copy = dict(
        length=32,  # tokens before the delimiter
        vocab=16,  # symbols
        n_marked=8,  # marked tokens, all different
    )
    task.markov = dict(
        length=64,  # positions
        vocab=4,  # symbols = states of the chain
    )
    task.text = dict(
        path="pydoc",  # pydoc: CPython's reference text | stdlib: its sources | your file or folder
        length=128,  # bytes the model reads at a time
        suffix=".txt",  # with a folder: the files that count
    )

    config.model = model = ConfigDict(type_safe=False)
    model.d_model = 64  # width of the residual stream, d
    model.n_layers = 1
    model.mixer = "grouped"  # per layer: a module of mha_jax.attention, or a file, "my/mixer.py"
    model.n_heads = 4  # per layer: query heads, n
    model.n_kv_heads = None  # per layer: key/value heads, k; None: n_heads (MHA); 1: MQA
    model.d_head = None  # per layer: width of a head, h; None: d_model // n_heads
    model.d_ff = 0  # per layer: hidden width of the MLP, f; 0: no MLP
    model.window = 0  # per layer: newest keys a query sees, itself included; 0: all
    model.n_sinks = 0  # per layer: first positions that stay visible beside a window
    # per layer: whose keys and values it reads, as "0,0,2,2"; None, or its own number: its own
    model.kv_from = None
    model.positions = "learned"  # rope | learned | none
    model.qk_from = "content"  # content: the residual stream | positions: learned positions alone
    model.norm = "none"  # none | layer | rms: before mixer, MLP and read-out
    model.residual = False  # add each block's input to its output
    model.bias = False  # biases in all linear maps
    model.activation = "gelu"  # gelu | relu | swiglu: of the MLP
    model.scale = True  # divide scores by sqrt(d_head)
    model.use_wo = True  # multiply the concatenated heads by W_O
    model.share = "none"  # none | qk | kv | qkv: projections that are one matrix
    model.qk_norm = False  # RMS-normalise queries and keys of each head
    model.gate = False  # sigmoid gate on each head's output
    model.sink_logit = False  # a learned logit per head in the denominator of the softmax
    model.d_latent = 0  # with mixer mla: width of a latent, of which there are n_kv_heads
    model.d_latent_q = 0  # with mixer mla: width of the queries' latent; 0: none
    model.d_rope = 0  # with mixer mla and positions rope: width of the rotated part of a head
    model.kv_quant = "none"  # none | int8 | int4: how keys and values are stored
    model.kv_group = 32  # with kv_quant: tokens that are quantised together
    model.kv_tail = 32  # with kv_quant: the newest tokens, which stay as they are
    model.kv_init = (
        "mean"  # mean: group mean of the MHA draw times sqrt(g) | fresh: a draw of its own
    )
    # auto | reference | fast | cudnn (GPU, bfloat16) | splash (TPU); auto: what the device has
    model.kernel = "auto"
    model.compute_dtype = "float32"  # float32 | bfloat16; the softmax is float32 always
    model.cache_dtype = "float32"  # float32 | bfloat16: what keys and values are stored in

    config.match = match = ConfigDict(type_safe=False)
    match.policy = "none"  # none | d_ff | d_model | n_layers: what changes to match parameters
    match.to = ""  # "n_heads=8,n_kv_heads=8": the model whose parameter count is matched

    # A run may begin with the last parameters of another one with the same seeds, in place of a
    # draw: the source, which the sweep trains first, at the rate of this file whatever rates the
    # sweep tries. start.json of the run says what was made of it. See mha_jax/origin.py.
    config.start = start = ConfigDict(type_safe=False)
    start.source = ""  # how the source's config differs: "n_kv_heads=8,n_steps=3000"; "": none
    start.merge = "mean"  # mean | first | random | similar: how its kv heads become fewer
    start.align = False  # turn the kv heads that become one towards each other before
    # zero | mean | resample | gradient | random: by what the heads are chosen that stay
    start.keep = "zero"

    config.train = train = ConfigDict(type_safe=False)
    train.n_steps = 3000
    train.batch_size = 64  # sequences
    train.seed = 0  # initial weights
    train.data_seed = 0  # training batches; runs with equal data_seed see the same ones
    train.eval_every = 500  # steps
    # Both draws are rounded up to whole batches of min(n_eval, 128) sequences.
    train.n_eval = 1024  # sequences of the validation draw
    train.n_test = 4096  # sequences of the test draw
    train.n_probe = 256  # sequences whose attention is scored at the end
    # A step is bad when its loss or gradient is not finite, or its loss has exploded. stop: the run
    # has diverged at that step | ignore: its update is left out, and summary.json counts it.
    train.on_bad_step = "stop"
    # A loss above this many times that of the first step, or above this where that was below 1, has
    # exploded; 0: none has.
    train.explode = 1e4

    config.optim = optim = ConfigDict(type_safe=False)
    optim.lr = 3e-3  # peak learning rate
    optim.weight_decay = 0.0  # decoupled, on matrices only
    optim.warmup_steps = 200
    optim.decay_fraction = (
        0.2  # the last share of the steps, over which the rate falls linearly to zero
    )
    optim.b1 = 0.9
    optim.b2 = 0.999
    optim.eps = 1e-8
    optim.clip = 1.0  # largest global norm of the gradient; 0: none

    # With a grid, each model of the sweep is trained at every rate of it on seeds that no table
    # reports, then at the rate with the best mean validation metric on the seeds that are reported:
    # train.seed, train.seed + 1, ... Without a grid, the runs that the sweep adds are all.
    config.tune = tune = ConfigDict(type_safe=False)
    tune.lrs = ""  # peak learning rates, ascending: "1e-3,2e-3,4e-3,8e-3"; "": no grid
    tune.n_selection = 2  # seeds that choose the rate
    tune.n_reported = 5  # seeds that are reported at the chosen rate
    tune.widen = 0  # how often the grid grows by one rate past an edge at which the best one lies

    config.converge = converge = ConfigDict(type_safe=False)
    # Train each model again with twice the steps, and compare; not those with a start.source.
    converge.confirm = False
    converge.tol = 0.01  # change of the metric that counts as none (nmse: 10 times this, in log10)

    config.probe = probe = ConfigDict(type_safe=False)
    probe.every = 100  # steps between scores of the heads, on one fixed batch; 0: at the end only

    config.log = log = ConfigDict(type_safe=False)
    log.every = 100  # steps between rows of metrics.jsonl
    log.checkpoint_every = 1000  # steps; the last step is always saved
    log.keep = 3  # checkpoints kept beside the best one
    log.tensorboard = True  # write event files
    log.n_images = 5  # attention images of a run in TensorBoard

    config.limits = limits = ConfigDict(type_safe=False)
    limits.memory_gib = 8.0  # a run whose estimate is above this is refused
    return config
