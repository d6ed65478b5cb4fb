"""The mixers: one module each, chosen in `config.model.mixer` by the name of a module here or by
the path of a file of the user's, "my_mixers/gated_conv.py".

A mixer moves information between positions. Its module holds

    Mixer(layer, model, *, key)   an `nnx.Module`, or a function that makes one, from a LayerSpec, a
                                  ModelSpec and the layer's key; a parameter is drawn with
                                  `init.normal(key, name, shape)`. It has `width`, the number of
                                  columns it returns, and the method

        mix(x, *, b, t, context) -> (y, stops)

            x        [b*t, d] float32: the residual stream after its norm, sequence by sequence
            context  stops.Context: the task's mask, whether stops are wanted, factors of the heads,
                     what replaces which stop (`context.put`), and other rows for queries and keys
                     where the model makes them from positions
            y        [b*t, width]; the layer adds the residual
            stops    those of `stops.STOPS` with a meaning for this mixer, if
                     `context.wants_stops`; "resid_btd" is added by the layer

        and, where the model is to decode token by token, what the layer keeps of earlier tokens:

        init_cache(b, capacity) -> kept               arrays for b sequences of up to `capacity`
                                                      tokens
        extend(x, kept, *, step) -> (y, kept, lent)   `mix` of the next tokens, rows [b*c, d];
                                                      cache.Step says where they stand; `lent` is
                                                      for layers that read this one's keys and
                                                      values (model.kv_from), None: there are none

    cost(layer, model) -> dict    integers of one layer by arithmetic on the config: "params",
                                  "cache_elements" (kept for each token of a sequence while
                                  decoding), "state_elements" (kept for a sequence however long it
                                  is), and forward operations: "flops" (a token, products with
                                  parameters) and "flops_per_key" (a pair of query and key); the
                                  dry run calls it, which imports jax if the module does; a run
                                  whose model has other parameters than were told fails

Of the package itself are `grouped` (MHA, GQA, MQA), `mla` (latents: MLA, GLA) and `gta` (tied keys
and values), each a `kind.Kind`. `core.py` and `fast.py` hold the pure functions, `cache.py` and
`quantised.py` what is stored. Their cost is in `mha_jax/layer_cost.py`, which imports no
jax.
"""
