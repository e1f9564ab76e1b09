"""One HTML page from what a command wrote with `--json`: self-contained, for light and dark, for a desk and a phone.

Read in this order:

- `reading`: the one door, from a file that anybody may have made to a typed value.
- `kinds`, and `swarm` (with `run`), `learning`, `emulation`, `sweep`, `collusion`, `scaling` (with `prediction`),
  `audit`: what is read of each kind of run, and its page. `types`, `traffic`, `learned`, `nodes`: what several have.
- `page`: what all pages share, the content policy and the style. `markup`: elements, and all escaping.
- `bars`, `lanes`, `intervals`, `plot`: the charts. `figures`: numbers with their units.

The charts are drawn here and not by matplotlib, whose pictures have one width and one palette: on a phone their text
shrinks with them, and in the dark they stay white. Here positions are percentages of an SVG as wide as the page and
texts keep their size; colours are CSS variables. Libraries that draw in the browser need scripts, which these pages
forbid.
"""
