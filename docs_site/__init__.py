"""The documentation site: the pages of `docs/`, and the reference pages that are made from the code.

`python -m docs_site` puts both under `.cache/docs`, where mkdocs builds the site from; `make docs` runs both.
`python -m docs_site --write` draws the layouts of `docs/formats.md` again; a test holds them to the code.
"""
