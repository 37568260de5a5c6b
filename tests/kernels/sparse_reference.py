"""NumPy references of block-sparse attention and its methods, in float64, written from the published formulas."""

import numpy as np


def softmax(scores, axis=-1):
    weights = np.exp(scores - scores.max(axis, keepdims=True))
    return weights / weights.sum(axis, keepdims=True)


def block_attention(query, key, value, lists, sizes, block_q, block_kv, summaries=None):
    """Attend one query at a time. Arrays are [B, S, H, D]; `lists[b][h][i]` are the key blocks of query block i, `sizes[j]` the
    number of keys in block j. `summaries` are (key, value [B, H, N, D], bias [B, H, query blocks, N]). Returns the attention and
    the log-sum-exp, -inf for a query without keys."""
    query, key, value = (np.asarray(array, np.float64) for array in (query, key, value))
    attended = np.zeros(query.shape)
    lse = np.full(query.shape[:3], -np.inf)
    for b, s, h in np.ndindex(query.shape[:3]):
        block = s // block_q
        places = [j * block_kv + np.arange(sizes[j]) for j in lists[b][h][block]]
        places = np.concatenate([np.zeros(0, int), *places]).astype(int)
        scores, values = key[b, places, h] @ query[b, s, h] * query.shape[3] ** -0.5, value[b, places, h]
        if summaries is not None:
            keys, means, bias = (np.asarray(array, np.float64)[b, h] for array in summaries)
            scores = np.concatenate([scores, keys @ query[b, s, h] * query.shape[3] ** -0.5 + bias[block]])
            values = np.concatenate([values, means])
        if len(scores) and scores.max() > -np.inf:
            attended[b, s, h] = softmax(scores) @ values
            lse[b, s, h] = np.log(np.exp(scores - scores.max()).sum()) + scores.max()
    return attended, lse


def sla_lists(query, key, keep, block_q, block_kv):
    """Return the scores of block means [B, H, query blocks, key blocks], and the lists of SLA, sorted."""
    query, key = (np.asarray(array, np.float64) for array in (query, key))
    key = key - key.mean(1, keepdims=True)
    means = [
        np.stack([array[:, start : start + block].mean(1) for start in range(0, array.shape[1], block)], 2)
        for array, block in ((query, block_q), (key, block_kv))
    ]
    scores = np.einsum("bhqd,bhkd->bhqk", *means)
    kept = max(1, min(scores.shape[-1], int(keep * scores.shape[-1])))
    return scores, np.sort(np.argsort(-scores, axis=-1, kind="stable")[..., :kept], axis=-1)


def linear_attention(query, key, value):
    """Compute linear attention with softmax features, all [B, S, H, D]."""
    query, key, value = (
        softmax(np.asarray(query, np.float64)),
        softmax(np.asarray(key, np.float64)),
        np.asarray(value, np.float64),
    )
    weighted = np.einsum("bqhd,bkhd,bkhe->bqhe", query, key, value, optimize=True)
    return weighted / (1e-5 + np.einsum("bqhd,bkhd->bqh", query, key, optimize=True))[..., None]


def vsa_attention(query, key, value, gate, counts, size, kept):
    """Compute VSA, all arrays [B, S, H, D] in tiles of `size` places. `counts` are the tokens of each tile. Returns the attention,
    not defined at the places of padding, and the scores of tiles [B, H, tiles, tiles]."""
    arrays = [np.asarray(array, np.float64) for array in (query, key, value)]
    means = [np.stack([array[:, i * size : i * size + count].mean(1) for i, count in enumerate(counts)], 1) for array in arrays]
    scores = np.einsum("bqhd,bkhd->bhqk", *means[:2])
    coarse = np.einsum("bhqk,bkhd->bqhd", softmax(scores * query.shape[3] ** -0.5), means[2])
    lists = np.sort(np.argsort(-scores, axis=-1, kind="stable")[..., :kept], axis=-1)
    fine, _ = block_attention(*arrays, lists, counts, size, size)
    return fine + np.repeat(coarse, size, axis=1) * np.asarray(gate, np.float64), scores


def sol_attention(query, key, value, tau, block_q, block_kv, space=None):
    """Compute Sol-Attn, all arrays [B, S, H, D], one query at a time. Returns the attention, and the differences of the scores of
    block means from the thresholds, [B, H, query blocks, key blocks]."""
    query, key, value = (np.asarray(array, np.float64) for array in (query, key, value))
    blocks_q, blocks_kv = -(-query.shape[1] // block_q), -(-key.shape[1] // block_kv)
    key_parts = [slice(j * block_kv, (j + 1) * block_kv) for j in range(blocks_kv)]
    factor = query.shape[3] ** -0.5 * np.log2(np.e)
    attended, margins = np.zeros(query.shape), np.zeros((query.shape[0], query.shape[2], blocks_q, blocks_kv))
    for b, h, i in np.ndindex(margins.shape[:3]):
        rows = slice(i * block_q, (i + 1) * block_q)
        mean_keys, sums = (
            np.stack([form(array[b, part, h], 0) for part in key_parts]) for form, array in ((np.mean, key), (np.sum, value))
        )
        scores = factor * (query[b, rows, h] @ mean_keys.T).mean(0)
        mean_query = query[b, rows, h].mean(0)
        variance = factor**2 * (mean_query**2 * mean_keys.var(0)).sum()
        margins[b, h, i] = scores - (factor * mean_query @ mean_keys.mean(0) + tau * np.sqrt(variance + 1e-6))
        near = [j for j in range(blocks_kv) if i * block_q < (j + 2) * block_kv and (j - 1) * block_kv < (i + 1) * block_q]
        others = [j for j in np.argsort(-scores, kind="stable") if margins[b, h, i, j] > 0 and j not in near]
        exact = {*near, *others[: None if space is None else space - len(near)]}
        for s in range(query.shape[1])[rows]:
            total, weighted = 0.0, np.zeros(query.shape[3])
            for j, part in enumerate(key_parts):
                if j in exact:
                    weights = 2.0 ** (factor * key[b, part, h] @ query[b, s, h])
                    total, weighted = total + weights.sum(), weighted + weights @ value[b, part, h]
                else:
                    weight = 2.0 ** (factor * mean_keys[j] @ query[b, s, h])
                    total, weighted = total + weight * len(key[b, part]), weighted + weight * sums[j]
            attended[b, s, h] = weighted / total
    return attended, margins


def ssta_lists(query, key, grid, window, kept):
    """Return the scores of tiles and the tiles that each tile sees, [B, H, tiles, tiles] both. `query` and `key` are the sums of
    tiles, [B, H, tiles, D]."""
    query, key = (np.asarray(array, np.float64) / np.linalg.norm(array, axis=3, keepdims=True) for array in (query, key))
    tiles = key.shape[2]
    similarity = (np.einsum("bhqd,bhkd->bhqk", query, key) + 1) / 2
    unique = (np.einsum("bhid,bhkd->bhik", key, key) + 1) / 2
    unique[:, :, np.arange(tiles), np.arange(tiles)] = 0
    scores = 0.7 * similarity - 0.3 * unique.sum(2, keepdims=True) / (tiles - 1)
    is_seen = np.zeros(scores.shape, bool)
    np.put_along_axis(is_seen, np.argsort(-scores, axis=3)[..., :kept], True, 3)
    places = np.stack(np.unravel_index(np.arange(tiles), grid), 1)
    for one, place in enumerate(places):
        centre = [
            np.clip(at, side // 2, max(length - 1 - side // 2, 0)) for at, side, length in zip(place, window, grid, strict=True)
        ]
        is_seen[:, :, one] |= (np.abs(places - centre) <= np.array(window) // 2).all(1)
    return scores, is_seen


def ssta_attention(query, key, value, is_seen, size, context_tiles):
    """Compute SSTA of the video's queries from the lists of `ssta_lists`, all arrays [B, S, H, D]. Keys and values of the context
    follow. Tiles have `size` tokens, and queries of sample b see `context_tiles[b]` tiles of the context."""
    tiles = is_seen.shape[2]
    lists = [
        [[np.concatenate([np.flatnonzero(row), tiles + np.arange(count)]) for row in head] for head in sample]
        for sample, count in zip(is_seen, context_tiles, strict=True)
    ]
    sizes = np.full(key.shape[1] // size, size)
    return block_attention(query, key, value, lists, sizes, size, size)[0]
