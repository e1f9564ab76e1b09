"""What people see of a run: tables and lines on a terminal, and one HTML page for light and dark, a desk and a phone.

Read in this order:

- `blocks`: what a page and a terminal show, as data; its tables and notes on a terminal.
- `run` (with `learned`), `emulation`, `sweep`, `collusion`, `audit`, `scaling`: the view of each kind of run, from the
  record that its command writes. Terminals show the same tables.
- `reading`: from a file that anybody may have made to a typed record and its page.
- `page`, `page.html`, `page.css`: the template of all pages, the content policy and the style.
- `charts`: pictures by matplotlib as SVG. `figures`: numbers with their units.
"""
