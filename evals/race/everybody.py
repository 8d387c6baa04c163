"""All contenders, in the order in which they race."""

from diffcache.evals.race import cache_dit_peers, diffusers_peers, ours

EVERYBODY = (*ours.CONTENDERS, *cache_dit_peers.PEERS, *diffusers_peers.PEERS)
