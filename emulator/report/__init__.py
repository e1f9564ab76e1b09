"""Shows a run to people: tables and lines on a terminal, and one HTML page, light or dark, wide or narrow.

Read in this order:

- `blocks`: the parts of a page as data. `dca_proto.cli.show` prints the tables and notes among them.
- `run` (with `learned`), `emulation`, `sweep`, `collusion`, `audit`, `scaling`: turn the record of each kind of run
  into a page. Terminals show the same tables.
- `reading`: reads an untrusted file into a typed record, and makes its page.
- `page`, `page.html`, `page.css`: the template of all pages, the content security policy and the style.
- `charts`: draws charts with matplotlib, as SVG. `figures`: formats numbers with their units.
"""
