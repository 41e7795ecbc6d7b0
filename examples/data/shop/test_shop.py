from shop import price


def test_small_orders_have_no_rebate():
    assert price(99) == 99


def test_the_rebate_begins_at_100():
    assert price(100) == 90
