"""What people see of a run: tables and lines on a terminal, and one HTML page for light and dark, a desk and a phone.

Read in this order:

- `blocks`: what a page and a screen consist of, as data. `screen`: its tables on a terminal.
- `run` (with `learned`), `emulation`, `sweep`, `collusion`, `audit`, `scaling` (with `prediction`): the view of each
  kind of run, from the record that its command writes. Terminals have `run`'s tables and lines, too.
- `reading`: from a file that anybody may have made to a typed record and its page.
- `page`, `page.html`, `page.css`: the template of all pages, the content policy and the style.
- `charts`: pictures by matplotlib as SVG. `figures`: numbers with their units.
"""
