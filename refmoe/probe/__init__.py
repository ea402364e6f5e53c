"""What a chip's tensor cores compute, found from its answers alone: questions, inference, kernels, bundles.

`instructions` lists what is asked, `vectors` makes operands, `infer` asks and decides, `family` computes what found
parameters mean, `kernels` and `hosts` put the questions to the executor or to a GPU, `claims` compares with refmoe's
models, `bundle` is the file that an owner of a chip can send. `merge` and `parts` check it, `committed` is what the
gate checks of `refmoe/evidence.json`, and `sentences` is what pages say of it.
"""
