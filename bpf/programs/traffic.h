/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */

/* What policies' traffic leaves by this node, and what comes back: counters, which the
 * records of translations name. */

#pragma once

#include "report.h"

#define TRAFFIC_PROBES 32 /* counters that are tried for a pair */

/* Takes a free counter for a policy. Returns 0 if there is none near its place. */
static __noinline __u32 take_counter(const struct traffic_key *key)
{
	__u32 first = key->policy ^ key->egress.words[2] ^ key->egress.words[3];

	for (__u32 i = 0; i < TRAFFIC_PROBES; i++) {
		__u32 index = (first + i) % TRAFFIC_COUNTERS;
		struct traffic_owner *o = bpf_map_lookup_elem(&sluice_trafown, &index);

		if (index && o && !o->policy && !__sync_val_compare_and_swap(&o->policy, 0, key->policy))
			return index;
	}
	return 0;
}

/* Returns the counter of a new translation, 0 if it is not counted: it is the host's own, or
 * there is none left. */
SUBPROGRAM __u32 counter_of(const struct decision *d)
{
	const struct traffic_value *known;
	struct traffic_key key ALIGNED = {};
	struct traffic_value new = {};
	struct traffic_owner *taken;

	if (!d || !d->policy)
		return 0;
	key.egress = d->egress;
	key.policy = d->policy;
	known = bpf_map_lookup_elem(&sluice_traffic, &key);
	if (known)
		return known->counter;
	new.counter = take_counter(&key);
	if (!new.counter || !bpf_map_update_elem(&sluice_traffic, &key, &new, BPF_NOEXIST))
		return new.counter;
	/* Another CPU was faster, or there is no memory. */
	taken = bpf_map_lookup_elem(&sluice_trafown, &new.counter);
	if (taken)
		__sync_val_compare_and_swap(&taken->policy, key.policy, 0);
	known = bpf_map_lookup_elem(&sluice_traffic, &key);
	return known ? known->counter : 0;
}

/* Counts a packet of a translation that began at a time: what left, or what came back. */
static __always_inline void count_traffic(__u32 counter, __u32 began, __u64 bytes, __u32 direction)
{
	struct traffic_count *c;
	struct metric *m;

	if (!counter)
		return;
	c = bpf_map_lookup_elem(&sluice_trafhits, &counter);
	if (!c || began <= c->since)
		return;
	m = direction == DIRECTION_EGRESS ? &c->sent : &c->received;
	m->packets++;
	m->bytes += bytes;
}
