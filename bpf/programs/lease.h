/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */

/* Which egress addresses that move this node has: those for which a majority of the voters votes
 * for it, until the votes run out. So a node that is cut off has none soon, as another one may
 * have them. */

#pragma once

#include "maps.h"

static __always_inline const struct voters_value *egress_voters(void)
{
	__u32 index = 0;

	return bpf_map_lookup_elem(&sluice_voters, &index);
}

/* Returns the entry of an address that this node may have, NULL if there is none. */
static __always_inline struct votes_value *votes_for(const struct address *addr)
{
	return bpf_map_lookup_elem(&sluice_votes, addr);
}

/* Reports whether this node has the address of an entry now: votes are counted by sets. */
static __noinline int is_held(const struct votes_value *v)
{
	const struct voters_value *voters = egress_voters();
	__u64 now = bpf_ktime_get_boot_ns();

	if (!v || !voters)
		return 0;
	for (__u32 s = 0; s < VOTER_SETS; s++) {
		const struct voter_set *set = &voters->sets[s];
		__u32 count = 0;

		for (__u32 i = 0; i < EGRESS_VOTERS; i++)
			count += v->votes[s][i].set == set->number &&
				 *(volatile const __u64 *)&v->votes[s][i].until > now;
		if (set->majority && count >= set->majority)
			return 1;
	}
	return 0;
}
