"""The room where each class of ours runs beside the stock class of LlamaIndex that it may stand in for.

One file for each stock class, ``test_<stock class>.py``. It holds a table ``CASES`` and one test:

    CASES = [
        Case("every character is in a node", lambda parser: covered(parser())),
        Case("...", lambda parser: ..., stock="what the stock class gives", gives="what ours gives", differs="row-id"),
    ]

    @pytest.mark.parametrize("case", CASES, ids=str)
    def test_markdown_node_parser(case):
        compare(case, MarkdownNodeParser, HeadingAwareMarkdownNodeParser)

A case gives the same with both, unless ``differs`` names a row of ``differences.py``. After a change there run
``python scripts/compatibility_page.py``, which writes the rows into ``docs/compatibility.md``. ``test_differences.py``
fails where the page is old, a row has no case, or a case names no row.
"""
