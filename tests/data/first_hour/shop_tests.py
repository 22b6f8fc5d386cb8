import shop  # type: ignore[import-not-found]

from orchestrator import Agent


def test_the_clerk_looks_the_price_up() -> None:
    result = Agent(shop.clerk(), tools=[shop.price], observers=()).run_sync("How much is A1?")
    assert result.output == "A1 costs 5 euros."


def test_the_discount_of_an_item_without_one() -> None:
    result = Agent(shop.helper(), tools=[shop.discount], observers=()).run_sync("Is there a discount for A1?")
    assert result.output == "I found no discount for A1."
