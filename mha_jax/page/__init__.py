"""The attention page: one HTML file that shows the heads of models, and computes with them.

    view.py         numbers of a model at one checkpoint for one sequence, as the page needs them
    arithmetic.py   what files/arithmetic.js computes of them: where the two may differ is told
    badges.py       roles and scores of heads, and their words
    meter.py        what a layer keeps of a token, for the cache meter
    html.py         one file from the numbers and from files/, escaped
    shown.py        a page in a notebook
    tabs.py         tabs of views; the runs of a sweep
    constructed.py  the first tab of the demonstration: a model whose heads do what they were told

The page sends no request: a content security policy allows its own script and style alone.
"""
