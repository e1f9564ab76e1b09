"""Shows results to people: tables and lines on a terminal, and one HTML page, light or dark, wide or narrow.

Read in this order:

- `blocks`: the parts of a page as data. `dca_proto.cli.show` prints the tables and notes among them.
- `run`, with `learned`: turns the record of a run into tables and a page. `emulator.report` does the same for
  emulations, sweeps, coalitions, audits and scaling.
- `reading`: reads an untrusted file into a typed record, and makes its page.
- `page`, `page.html`, `page.css`: the template of all pages, the content security policy and the style.
- `charts`: draws charts with matplotlib, as SVG. `formats`: formats numbers with their units.
"""
