/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */

/* Where the traffic of pods leaves the cluster, as the tables have it. */

#pragma once

#include "ct.h"

static __always_inline const struct config_value *config(void)
{
	__u32 index = 0;
	const struct config_value *cfg = bpf_map_lookup_elem(&sluice_config, &index);

	/* The entry of an array is always there; one that was written has lifetimes. */
	return cfg && cfg->lifetime_tcp ? cfg : NULL;
}

static __always_inline void prefix_of(struct prefix_key *key, const struct tuple *t, const struct address *addr)
{
	__builtin_memset(key, 0, sizeof(*key));
	key->family = t->family;
	if (t->family == FAMILY_IPV4) {
		key->prefix_len = 32 + 32;
		__builtin_memcpy(key->addr, &addr->words[3], 4);
	} else {
		key->prefix_len = 32 + 128;
		__builtin_memcpy(key->addr, addr, 16);
	}
}

/* Returns what is known of the destination, a row's flags; 0 if it is outside. */
static __always_inline __u32 known_of_destination(const struct tuple *t)
{
	const struct ipcache_value *known;
	struct prefix_key key;

	prefix_of(&key, t, &t->daddr);
	known = bpf_map_lookup_elem(&sluice_ipcache, &key);
	return known ? known->flags : 0;
}

SUBPROGRAM __u32 destination_flags(const struct tuple *t)
{
	return t ? known_of_destination(t) : 0;
}

/* Reports whether an address is of a pod of this node, or may be of one that is not
 * known yet. */
SUBPROGRAM int of_local_pods(const struct tuple *t, const struct address *addr)
{
	const struct ipcache_value *known;
	struct prefix_key key;

	if (!t || !addr)
		return 0;
	prefix_of(&key, t, addr);
	known = bpf_map_lookup_elem(&sluice_ipcache, &key);
	return known && known->flags & IPCACHE_LOCAL_PODS && !(known->flags & (IPCACHE_HOST | IPCACHE_NODE));
}

SUBPROGRAM int covered(const struct tuple *t)
{
	struct prefix_key key;

	if (!t)
		return 0;
	prefix_of(&key, t, &t->daddr);
	return bpf_map_lookup_elem(&sluice_covered, &key) != NULL;
}

/* FNV-1a. Every node spreads the sources of a group alike. */
static __always_inline __u32 bucket_of(const struct address *source)
{
	__u32 hash = 2166136261;

	for (int i = 0; i < 16; i++)
		hash = (hash ^ source->bytes[i]) * 16777619;
	return hash % GATEWAY_BUCKETS;
}

/* Looks up the rule of a source's class for the destination, and the row of the
 * source's bucket. Returns NULL if there is none; d->group says how far it got. */
static __always_inline const struct gateway_value *find_gateway(const struct tuple *t, struct decision *d)
{
	struct egress_key key = {.egress_class = d->egress_class, .family = t->family};
	const struct egress_value *rule;
	struct gateway_key bucket;

	if (t->family == FAMILY_IPV4) {
		key.prefix_len = 64 + 32;
		__builtin_memcpy(key.addr, &t->daddr.words[3], 4);
	} else {
		key.prefix_len = 64 + 128;
		__builtin_memcpy(key.addr, &t->daddr, 16);
	}
	rule = bpf_map_lookup_elem(&sluice_egress, &key);
	if (!rule || rule->group == GROUP_EXCLUDED)
		return NULL;
	d->group = rule->group;
	bucket.group = rule->group;
	bucket.bucket = bucket_of(&t->saddr);
	return bpf_map_lookup_elem(&sluice_gateways, &bucket);
}

/* Copies the egress address of the flow's family out of a row; none if there is none. */
static __always_inline void set_egress(struct decision *d, const struct tuple *t, const struct gateway_value *row)
{
	if (t->family == FAMILY_IPV6)
		d->egress = row->egress6;
	else if (row->egress4)
		d->egress = mapped(row->egress4);
}

/* Decides on a flow that a local pod begins: REASON_PASSED, REASON_TO_GATEWAY
 * with d->gateway set, or why it is dropped. */
SUBPROGRAM __u32 decide_egress(const struct tuple *t, const struct pod_value *pod, struct decision *d)
{
	const struct gateway_value *row;
	const struct source_value *source;
	__u32 flags, pod_flags;

	if (!t || !pod || !d)
		return REASON_MALFORMED;
	flags = destination_flags(t);
	pod_flags = pod->flags;
	if (flags) {
		/* Where a service's endpoint is gets known after kube-proxy. */
		if (flags & IPCACHE_SERVICE && pod_flags & (POD_EGRESS_SELECTED | POD_EGRESS_UNKNOWN))
			d->flags |= CT_SERVICE;
		return REASON_PASSED;
	}
	source = bpf_map_lookup_elem(&sluice_sources, &t->saddr);
	if (pod_flags & POD_EGRESS_UNKNOWN || (pod_flags & POD_EGRESS_SELECTED && !source))
		return covered(t) ? REASON_POD_NOT_READY : REASON_PASSED;
	if (!source)
		return REASON_PASSED;
	d->egress_class = source->egress_class;
	row = find_gateway(t, d);
	if (!d->group)
		return REASON_PASSED;
	if (!row || no_address(&row->gateway))
		return REASON_NO_GATEWAY;
	d->gateway = row->gateway;
	set_egress(d, t, row);
	return REASON_TO_GATEWAY;
}

/* Decides on a flow that came over the overlay for this node as gateway:
 * REASON_TRANSLATED with d->egress set if it has one here, or why it is dropped. */
SUBPROGRAM __u32 decide_service(const struct tuple *t, struct decision *d)
{
	const struct gateway_value *row;
	const struct source_value *source;

	if (!t || !d)
		return REASON_MALFORMED;
	source = bpf_map_lookup_elem(&sluice_sources, &t->saddr);
	if (!source || known_of_destination(t))
		return REASON_NO_RULE;
	d->egress_class = source->egress_class;
	row = find_gateway(t, d);
	if (!d->group || !row)
		return REASON_NO_RULE;
	set_egress(d, t, row);
	return no_address(&d->egress) ? REASON_NO_EGRESS_IP : REASON_TRANSLATED;
}

/* Reports whether a gateway that a connection is pinned to still serves. */
static __always_inline bool serves(const struct address *gateway)
{
	const struct node_value *node = bpf_map_lookup_elem(&sluice_nodes, gateway);

	return node && node->flags & NODE_ALIVE;
}
