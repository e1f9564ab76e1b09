"""One HTML page from what a command wrote with `--json`: self-contained, for light and dark, for a desk and a phone.

Read in this order:

- `reading`: from a file that anybody may have made to a typed record and its page.
- `swarm`, `learning` (with `learned`), `emulation`, `sweep`, `collusion`, `audit`, `scaling` (with `prediction`): the
  page of each kind of run, from the records that its command writes.
- `page`, `page.html`, `page.css`: what all pages share, the template, the content policy and the style.
- `charts`: pictures by matplotlib as SVG. `figures`: numbers with their units.
"""
