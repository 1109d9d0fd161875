"""The blocks of Markdown."""

from llama_index_contextual.node_parser.blocks import blocks_of


def test_a_tab_indented_list_is_a_block_within_its_item():
    text = "- pumps\n\t- the red one\n\n- valves\n"
    items = [text[block.start : block.end].strip() for block in blocks_of(text)]
    assert items.count("- the red one") == 2  # the list and its item
