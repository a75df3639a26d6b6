import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from securevfl.crypto.masks import MaskKey

NAMES = st.lists(st.text(max_size=8), min_size=2, max_size=6, unique=True)


@given(NAMES, st.data())
def test_shares_of_any_members_sum_to_zero(names: list[str], data: st.DataObject) -> None:
    shape = data.draw(st.sampled_from([(), (0,), (3,), (2, 5)]))
    members = data.draw(st.lists(st.sampled_from(names), min_size=2, unique=True))
    keys = {name: MaskKey.generate() for name in names}
    public = {name: key.public_bytes for name, key in keys.items()}
    shares = []
    for name in members:
        peers = {peer: value for peer, value in public.items() if peer != name}
        share = keys[name].agree(name, peers, b"job").zero_share(members, "x", shape)
        assert share.shape == shape
        shares.append(share)
    assert not np.any(np.add.reduce(shares, axis=0, dtype=np.uint64))
